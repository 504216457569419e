"""How long prompts are, measured in parallel."""

import pickle
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from queue import SimpleQueue
from typing import Any

import cloudpickle
import numpy as np
from tqdm import tqdm

from verl.data.files import Rows
from verl.data.prompts import PromptEncoder
from verl.utils.processes import end_python, start_python

_CHUNK = 512
_CHUNK_TIMEOUT_S = 600.0
_BAR_FROM = 10_000
"""Rows from which measuring takes long enough for a progress bar."""


def prompt_lengths(
    rows: Rows, count: int, prompt_key: str, encoder: PromptEncoder, workers: int = 1, tools_key: str = "tools"
) -> np.ndarray:
    """Tokens of the first `count` prompts, int64 [count], with their tools, measured by `workers` processes.

    Raises ValueError with the place of a prompt that cannot be encoded; RuntimeError or TimeoutError for a process that
    dies or hangs.
    """
    starts = range(0, count, _CHUNK)
    values = islice(rows.columns((prompt_key, tools_key)), count)
    places = map(rows.place, range(count))
    chunks = ([(next(places), *value) for value in islice(values, _CHUNK)] for _ in starts)
    lengths = np.empty(count, dtype=np.int64)
    with tqdm(total=count, desc="measuring prompts", unit="prompt", disable=count < _BAR_FROM, leave=False) as bar:
        for start, part in zip(starts, _measure(chunks, encoder, min(workers, len(starts))), strict=True):
            lengths[start : start + len(part)] = part
            bar.update(len(part))
    return lengths


Chunk = list[tuple[str, Any, Any]]
"""Place, prompt and tools of some rows."""


def _measure(chunks: Iterator[Chunk], encoder: PromptEncoder, workers: int) -> Iterator[list[int]]:
    """Lengths of each chunk, in order."""
    if workers <= 1:
        yield from map(encoder.lengths, chunks)
        return
    payload = cloudpickle.dumps(encoder)
    processes = [_Process(payload) for _ in range(workers)]
    idle: SimpleQueue[_Process] = SimpleQueue()
    for process in processes:
        idle.put(process)

    def measure(chunk: Chunk) -> list[int]:
        process = idle.get()  # there is one, since there are as many threads as processes
        try:
            return process.measure(chunk)
        finally:
            idle.put(process)

    threads = ThreadPoolExecutor(workers)  # they only wait for the processes
    running: deque[Future[list[int]]] = deque()
    try:
        for chunk in chunks:
            running.append(threads.submit(measure, chunk))
            if len(running) >= 4 * workers:  # prompts ahead are held in memory
                yield running.popleft().result()
        while running:
            yield running.popleft().result()
    finally:
        for process in processes:
            process.end()
        threads.shutdown(cancel_futures=True)


class _Process:
    """One process that measures (see `verl.data.measuring`)."""

    def __init__(self, encoder: bytes) -> None:
        # Where several processes tokenize, threads of each would only be in the others' way.
        self._process, self._connection = start_python("verl.data.measuring:main", TOKENIZERS_PARALLELISM="false")
        self._to_send = [encoder]

    def measure(self, chunk: Chunk) -> list[int]:
        first = chunk[0][0]
        answer: list[int] | Exception
        try:
            for message in (*self._to_send, pickle.dumps(chunk)):
                self._connection.send_bytes(message)
            self._to_send = []
            if not self._connection.poll(_CHUNK_TIMEOUT_S):
                raise TimeoutError(
                    f"{len(chunk)} prompts, the first being {first}, were not measured within {_CHUNK_TIMEOUT_S:g} s"
                )
            answer = pickle.loads(self._connection.recv_bytes())
        except (EOFError, BrokenPipeError, ConnectionResetError) as error:
            self.end()
            raise RuntimeError(
                f"a process that measured {len(chunk)} prompts, the first being {first}, ended with exit code "
                f"{self._process.returncode}; "
                "data.filter_overlong_prompts_workers=1 measures in the driver"
            ) from error
        if isinstance(answer, Exception):
            raise answer
        return answer

    def end(self) -> None:
        end_python(self._process)
