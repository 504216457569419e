"""A language model behind an OpenAI-compatible server, as a scorer."""

import asyncio
import hashlib
import http.client
import json
import os
import re
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock
from typing import Any

from verl.config.reward import JudgeConfig

_NUMBER = re.compile(r"[-+]?(?:[0-9]+(?:\.[0-9]+)?|\.[0-9]+)")
_FIELD = re.compile(r"\{(prompt|response|ground_truth)\}")
_FIRST_WAIT_S = 0.5
_LONGEST_WAIT_S = 30.0
_LONGEST_REPLY = 16 << 20
_TRY_AGAIN = (408, 409, 425, 429, 500, 502, 503, 504)
_FAILED_TRY = (
    OSError, http.client.HTTPException, ValueError, KeyError, IndexError, TypeError, RecursionError
)  # fmt: skip
"""What a server that is down, cut short or talks nonsense raises."""


class _StatusError(Exception):
    """An HTTP status that is no success, with what the server said."""

    def __init__(self, code: int, retry_after: str | None, said: str) -> None:
        super().__init__(f"HTTP status {code}")
        self.code, self.retry_after, self.said = code, retry_after, said


class JudgeError(RuntimeError):
    """The server gave no usable reply; the message says what it said."""


@dataclass
class Judge:
    """Asks `model` at `base_url` about a response; the last number of its reply is the score (a row function).

    A request that takes longer than `timeout_s` has failed. Failed requests (also: no connection, 408, 429, 5xx) are
    repeated after 0.5, 1, 2, ... seconds, or what the server's Retry-After says, up to `retries` times. Requests start
    at most `rate` times a second, `concurrency` at once. A row so has no time limit of its own: it takes its turn.

    Equal questions are asked once; with `cache` their replies are kept in that file, over runs.

    Raises ValueError for a cache that cannot be read or written, or that holds anything but replies.
    """

    base_url: str
    model: str
    prompt: str
    rate: float = 10.0
    concurrency: int = 16
    retries: int = 4
    timeout_s: float = 30.0
    max_tokens: int = 64
    temperature: float = 0.0
    cache: str | None = None
    api_key_env: str = "OPENAI_API_KEY"
    _replies: dict[str, str] = field(default_factory=dict, init=False, repr=False)
    _lock: Any = field(default_factory=Lock, init=False, repr=False)
    _next_start: float = field(default=0.0, init=False, repr=False)
    _threads: ThreadPoolExecutor | None = field(default=None, init=False, repr=False)

    @classmethod
    def from_config(cls, config: JudgeConfig) -> "Judge":
        assert config.base_url is not None and config.model is not None, "validate() refuses a judge without a model"
        given = {name: value for name, value in vars(config).items() if name != "weight"}
        return cls(**given)

    def __post_init__(self) -> None:
        self._running: dict[str, asyncio.Future[str]] = {}
        self._slots: tuple[asyncio.AbstractEventLoop, asyncio.Semaphore] | None = None
        if self.cache is not None:
            self._file = Path(self.cache).expanduser()
            self._read_cache()

    def close(self) -> None:
        """End the threads that ask; what they are asking now is not waited for. The next call starts new ones."""
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)
            self._threads = None

    async def __call__(
        self, data_source: str, solution_str: str, ground_truth: Any, extra_info: Any, prompt_str: str
    ) -> dict[str, Any]:
        """`score`, and the judge's `reply`. Raises JudgeError when there is no reply or no number in it."""
        parts = {"prompt": prompt_str, "response": solution_str, "ground_truth": str(ground_truth)}
        # One pass, so that braces in a response are never filled in.
        question = _FIELD.sub(lambda found: parts[found[1]], self.prompt)
        reply = await self._reply(question)
        numbers = _NUMBER.findall(reply)
        if not numbers:
            raise JudgeError(f"the judge's reply has no number: {reply!r:.200}")
        return {"score": float(numbers[-1]), "reply": reply}

    async def _reply(self, question: str) -> str:
        body = {
            "model": self.model,
            "messages": [{"role": "user", "content": question}],
            "max_tokens": self.max_tokens,
            "temperature": self.temperature,
        }
        key = hashlib.sha256(json.dumps([self.base_url, body], sort_keys=True).encode()).hexdigest()
        if key in self._replies:
            return self._replies[key]
        loop = asyncio.get_running_loop()
        running = self._running.get(key)
        if running is None or running.get_loop() is not loop:
            running = asyncio.ensure_future(self._ask(body))
            self._running[key] = running
        reply = await asyncio.shield(running)
        self._remember(key, reply)
        return reply

    async def _ask(self, body: dict[str, Any]) -> str:
        for attempt in range(self.retries + 1):
            async with self._slot():
                await self._turn()
                try:
                    return await self._limited_post(body)
                except _StatusError as error:
                    problem: Exception = error
                    if error.code not in _TRY_AGAIN:
                        raise JudgeError(
                            f"the judge refused the request with {error.code}: {error.said:.300}"
                        ) from error
                except _FAILED_TRY as error:
                    problem = error
            if attempt < self.retries:
                await asyncio.sleep(_pause(problem, attempt))
        raise JudgeError(f"the judge gave no reply in {self.retries + 1} tries: {problem!r:.300}") from problem

    async def _limited_post(self, body: dict[str, Any]) -> str:
        if self._threads is None:  # of its own: asyncio's has few threads on a machine with few processors
            self._threads = ThreadPoolExecutor(self.concurrency, thread_name_prefix="judge")
        asked = asyncio.get_running_loop().run_in_executor(self._threads, self._post, body)
        # The limit that urlopen takes is that of each read: a server may send a byte now and then for ever.
        return await asyncio.wait_for(asked, self.timeout_s)

    def _post(self, body: dict[str, Any]) -> str:
        headers = {"Content-Type": "application/json"}
        if os.environ.get(self.api_key_env):
            headers["Authorization"] = f"Bearer {os.environ[self.api_key_env]}"
        url = f"{self.base_url.rstrip('/')}/chat/completions"
        request = urllib.request.Request(url, json.dumps(body).encode(), headers)
        deadline = time.monotonic() + self.timeout_s
        try:
            with urllib.request.urlopen(request, timeout=self.timeout_s) as response:
                reply = _read(response, deadline)
        except urllib.error.HTTPError as error:
            said = b""
            with error, suppress(*_FAILED_TRY):  # the code alone says enough
                said = _read(error, deadline)
            raise _StatusError(error.code, error.headers.get("Retry-After"), said.decode(errors="replace")) from error
        content = json.loads(reply)["choices"][0]["message"]["content"]
        if not isinstance(content, str):
            raise ValueError(f"the reply's content is {content!r}")
        return content

    def _slot(self) -> asyncio.Semaphore:
        """The limit on requests at once; asyncio's own belong to one event loop, and each scoring has a new one."""
        loop = asyncio.get_running_loop()
        if self._slots is None or self._slots[0] is not loop:
            self._slots = loop, asyncio.Semaphore(self.concurrency)
            self._running.clear()
        return self._slots[1]

    async def _turn(self) -> None:
        """Wait until the rate allows another request."""
        with self._lock:
            start = max(time.monotonic(), self._next_start)
            self._next_start = start + 1 / self.rate
        await asyncio.sleep(start - time.monotonic())

    def _read_cache(self) -> None:
        """Before anything is asked, since replies may be paid for: read the file, see that it can be written."""
        name = f"reward.judge.cache={self.cache}"
        try:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            with self._file.open("a+", encoding="utf-8") as file:
                file.seek(0)
                lines = file.read().splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise ValueError(f"{name} cannot be read and written ({error}): expected a text file of replies") from error
        for number, line in enumerate(lines, start=1):
            try:
                entry = json.loads(line)
                self._replies[entry["key"]] = entry["reply"]
            except (ValueError, KeyError, TypeError) as error:
                raise ValueError(f"{name}, line {number} is no reply: {error!r}") from error

    def _remember(self, key: str, reply: str) -> None:
        with self._lock:
            if key in self._replies:
                return
            self._replies[key] = reply
            if self.cache is not None:
                with self._file.open("a", encoding="utf-8") as file:
                    file.write(json.dumps({"key": key, "reply": reply}) + "\n")


def _read(response: Any, deadline: float) -> bytes:
    """The whole body. TimeoutError after the deadline, ValueError for one that does not end: a thread that reads on
    would hold its place, and the process."""
    body = bytearray()
    while part := response.read1(1 << 16):
        body += part
        if time.monotonic() > deadline:
            raise TimeoutError("the reply came too slowly")
        if len(body) > _LONGEST_REPLY:
            raise ValueError(f"the reply is longer than {_LONGEST_REPLY >> 20} MiB")
    return bytes(body)


def _pause(problem: Exception, attempt: int) -> float:
    """Seconds before the next try."""
    asked = problem.retry_after if isinstance(problem, _StatusError) else None
    wait = float(asked) if asked is not None and _NUMBER.fullmatch(asked) else _FIRST_WAIT_S * 2**attempt
    return min(max(wait, 0.0), _LONGEST_WAIT_S)
