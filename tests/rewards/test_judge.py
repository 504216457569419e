"""The judge against a server of this test, on 127.0.0.1."""

import json
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from verl.config.loader import load_config
from verl.protocol import DataProto
from verl.rewards import load_reward_manager

Batches = Callable[..., DataProto]


class Server(ThreadingHTTPServer):
    """Answers as `reply(question, number)` says: (status, text or body, headers)."""

    request_queue_size = 128  # 5 would turn away some of many that come at once

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.requests: list[dict[str, Any]] = []
        self.times: list[float] = []
        self.keys: list[str | None] = []
        self.running = self.most_running = 0
        self.byte_every_s = 0.0
        self.lock = threading.Lock()
        self.reply: Callable[[str, int], tuple[int, Any, dict[str, str]]] = lambda question, number: (200, "1", {})

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/v1"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_POST(self) -> None:
        server = self.server
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with server.lock:
            server.requests.append({"path": self.path, **body})
            server.times.append(time.monotonic())
            server.keys.append(self.headers.get("Authorization"))
            number = len(server.requests)
            server.running += 1
            server.most_running = max(server.most_running, server.running)
        status, text, headers = server.reply(body["messages"][0]["content"], number)
        with server.lock:
            server.running -= 1
        data = json.dumps({"choices": [{"message": {"content": text}}]} if isinstance(text, str) else text).encode()
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        for at in range(0, len(data), 1 if server.byte_every_s else len(data)):
            self.wfile.write(data[at : at + 1] if server.byte_every_s else data)
            time.sleep(server.byte_every_s)

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def server() -> Iterator[Server]:
    running = Server()
    thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    yield running
    running.shutdown()
    running.server_close()
    thread.join()


@pytest.fixture
def judged(server: Server, tiny_tokenizer: Any) -> Iterator[Callable[..., Any]]:
    """`judged("key=value", ...)` -> a manager with the judge alone, at a high rate; a row has 1 s."""

    def build(*overrides: str) -> Any:
        settings = ["base_url=" + server.url, "model=m", "rate=1000", "retries=2", *overrides]
        config = load_config([f"reward.judge.{setting}" for setting in settings]).reward
        config.functions = {"none": {"path": __file__, "name": "nothing", "weight": 0}}
        config.num_workers, config.timeout_s = 0, 1.0
        managers.append(load_reward_manager(config, tiny_tokenizer))
        return managers[-1]

    managers: list[Any] = []
    yield build
    for manager in managers:
        manager.close()


def nothing(data_source: Any, solution_str: Any, ground_truth: Any, extra_info: Any) -> float:
    return 0.0


def test_the_judge_reads_the_row_and_its_last_number_is_the_score(
    server: Server, judged: Any, responses_batch: Batches, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JUDGE_KEY", "k")
    server.reply = lambda question, number: (200, f"I'd say: {len(question) % 10 / 10}", {})
    manager = judged("prompt={prompt}|{response}|{ground_truth}", "api_key_env=JUDGE_KEY", "weight=2")
    result = manager(responses_batch(["{prompt}", "ab"], prompts=["q", "q"]))
    asked = sorted(request["messages"][0]["content"] for request in server.requests)
    assert asked == ["q|ab|2", "q|{prompt}|2"]  # braces of a response are not filled in
    assert server.requests[0] | {"messages": None} == {
        "path": "/v1/chat/completions", "model": "m", "messages": None, "max_tokens": 64, "temperature": 0,
    }  # fmt: skip
    assert server.keys == ["Bearer k"] * 2
    assert result.token_level_scores.sum(-1).tolist() == pytest.approx([2 * 0.2, 2 * 0.6])
    assert result.extras["judge/reply"][1] == "I'd say: 0.6"


def test_equal_questions_are_asked_once_and_a_file_remembers(
    server: Server, judged: Any, responses_batch: Batches, tmp_path: Path
) -> None:
    cache = tmp_path / "replies.jsonl"
    manager = judged(f"cache={cache}")
    for _ in range(2):
        manager(responses_batch(["a", "a", "b"]))
    assert len(server.requests) == 2
    judged(f"cache={cache}")(responses_batch(["b", "c"]))
    assert len(server.requests) == 3
    cache.write_text("no json\n")
    with pytest.raises(ValueError, match="replies.jsonl, line 1 is no reply"):
        judged(f"cache={cache}")


def test_failed_requests_are_repeated(server: Server, judged: Any, responses_batch: Batches) -> None:
    def reply(question: str, number: int) -> tuple[int, Any, dict[str, str]]:
        return (429, "slow down", {"Retry-After": "0.1"}) if number == 1 else (200, "0.5", {})

    server.reply = reply
    result = judged()(responses_batch(["a"]))
    assert result.token_level_scores.sum() == 0.5
    assert len(server.requests) == 2
    assert server.times[1] - server.times[0] >= 0.1


@pytest.mark.parametrize(
    ("status", "text", "tries", "message"),
    [
        (503, "busy", 3, "no reply in 3 tries"),
        (401, "bad key", 1, "refused the request with 401: .*bad key"),
        (200, "good", 1, "no number: 'good'"),
        (200, {"choices": []}, 3, "no reply in 3 tries: IndexError"),
    ],
)
def test_without_a_reply_the_row_has_no_score(
    server: Server, judged: Any, responses_batch: Batches, status: int, text: Any, tries: int, message: str
) -> None:
    server.reply = lambda question, number: (status, text, {"Retry-After": "0"})
    with pytest.raises(ValueError, match=f"row 0 .*judge: .*JudgeError: .*{message}"):
        judged()(responses_batch(["a"]))
    assert len(server.requests) == tries


def test_rate_and_concurrency_are_kept(server: Server, judged: Any, responses_batch: Batches) -> None:
    def reply(question: str, number: int) -> tuple[int, str, dict[str, str]]:
        time.sleep(0.1)
        return 200, "1", {}

    server.reply = reply
    judged("rate=20", "concurrency=3")(responses_batch([str(number) for number in range(12)]))
    assert server.most_running <= 3
    assert max(server.times) - min(server.times) >= 11 / 20 - 0.1


def test_rows_that_wait_for_their_turn_are_not_timed_out(server: Server, judged: Any, responses_batch: Batches) -> None:
    """60 rows at 20 a second take 3 s, where the limit of a row is 1 s; one is asked again after 1.5 s."""
    server.reply = lambda question, number: (503, "busy", {"Retry-After": "1.5"}) if number == 3 else (200, "1", {})
    result = judged("rate=20")(responses_batch([str(number) for number in range(60)]))
    assert result.token_level_scores.sum() == 60
    assert len(server.requests) == 61


def test_as_many_are_asked_at_once_as_concurrency_says(server: Server, judged: Any, responses_batch: Batches) -> None:
    """More than the 32 threads that asyncio's own pool has at most: each is answered when all 40 have asked."""
    together = threading.Barrier(40, timeout=20)

    def reply(question: str, number: int) -> tuple[int, str, dict[str, str]]:
        together.wait()
        return 200, "1", {}

    server.reply = reply
    manager = judged("concurrency=40", "retries=0")
    assert manager(responses_batch([str(number) for number in range(40)])).token_level_scores.sum() == 40
    assert server.most_running == 40
    manager.close()
    assert manager(responses_batch(["0"])).token_level_scores.sum() == 1  # a reply that it remembers


def test_a_reply_that_never_ends_is_a_failed_request(server: Server, judged: Any, responses_batch: Batches) -> None:
    """A byte every 0.2 s, some 10 s in all: each read is in time."""
    server.byte_every_s = 0.2
    with pytest.raises(ValueError, match="JudgeError: the judge gave no reply in 1 tries: TimeoutError"):
        judged("timeout_s=0.5", "retries=0")(responses_batch(["a"]))


def test_an_error_that_never_ends_is_a_failed_request(server: Server, judged: Any, responses_batch: Batches) -> None:
    """The second try gets a reply; the thread that read the error's body has ended by then."""

    def reply(question: str, number: int) -> tuple[int, Any, dict[str, str]]:
        server.byte_every_s = 0.05 if number == 1 else 0.0
        return (500, "x" * 500, {}) if number == 1 else (200, "3", {})

    server.reply = reply
    manager = judged("timeout_s=0.3", "retries=1", "concurrency=1")
    assert manager(responses_batch(["a"])).token_level_scores.sum() == 3


def test_the_first_row_that_fails_ends_the_asking(server: Server, judged: Any, responses_batch: Batches) -> None:
    """1000 rows at 5 a second: nobody waits 200 s for an error that is known."""
    server.reply = lambda question, number: (401, "bad key", {})
    with pytest.raises(ValueError, match="refused the request with 401: .*bad key"):
        judged("rate=5")(responses_batch([str(number) for number in range(1000)]))
    assert len(server.requests) < 50


def test_a_row_that_fails_elsewhere_ends_the_asking(
    server: Server, tiny_tokenizer: Any, responses_batch: Batches
) -> None:
    config = load_config([f"reward.judge.base_url={server.url}", "reward.judge.model=m", "reward.judge.rate=5"]).reward
    config.functions = {"fails": {"path": __file__, "name": "fails"}}
    manager = load_reward_manager(config, tiny_tokenizer)
    with pytest.raises(ValueError, match="fails: the scoring function raised KeyError: 'answer'"):
        manager(responses_batch([str(number) for number in range(1000)]))
    manager.close()
    assert len(server.requests) < 500


def fails(data_source: Any, solution_str: Any, ground_truth: Any, extra_info: Any) -> float:
    raise KeyError("answer")


def test_the_cache_is_opened_before_anything_is_asked(
    server: Server, judged: Any, responses_batch: Batches, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its folder is made, `~` is the user's; what cannot be a file is said at the start, with the key."""
    monkeypatch.setenv("HOME", str(tmp_path))
    judged("cache=~/new/folder/replies.jsonl")(responses_batch(["a"]))
    assert len((tmp_path / "new/folder/replies.jsonl").read_text().splitlines()) == 1
    (tmp_path / "latin").write_bytes(b"\xff")
    for cache, reason in [("new/folder", "Is a directory"), ("latin", "can't decode"), ("latin/x", "File exists")]:
        with pytest.raises(ValueError, match=f"reward.judge.cache=.*{cache} cannot be read and written .*{reason}"):
            judged(f"cache={tmp_path / cache}")
    assert len(server.requests) == 1


def test_a_server_that_is_not_there(tiny_tokenizer: Any, responses_batch: Batches, judged: Any, server: Server) -> None:
    manager = judged("retries=0", "base_url=http://127.0.0.1:9/v1")
    with pytest.raises(ValueError, match="JudgeError: the judge gave no reply in 1 tries: .*refused"):
        manager(responses_batch(["a"]))


def test_a_judge_needs_a_model() -> None:
    from verl.config.validate import validate

    with pytest.raises(ValueError, match="reward.judge.base_url is set without reward.judge.model"):
        validate(load_config(["reward.judge.base_url=http://localhost:1"]))
