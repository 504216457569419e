"""How long prompts are, measured in parallel."""

import multiprocessing
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from itertools import islice
from typing import Any

import numpy as np
from tqdm import tqdm

from verl.data.files import Rows
from verl.data.prompts import PromptEncoder

_CHUNK = 512
_BAR_FROM = 10_000
"""Rows from which measuring takes long enough for a progress bar."""


def prompt_lengths(
    rows: Rows, count: int, prompt_key: str, encoder: PromptEncoder, workers: int = 1, tools_key: str = "tools"
) -> np.ndarray:
    """Tokens of the first `count` prompts, int64 [count], with their tools, measured by `workers` processes.

    More than one process starts Python anew for each, so a script must guard its start by `__name__ == "__main__"`.

    Raises ValueError with the place of a prompt that cannot be encoded.
    """
    starts = range(0, count, _CHUNK)
    values = islice(rows.columns((prompt_key, tools_key)), count)
    places = map(rows.place, range(count))
    chunks = ([(next(places), *value) for value in islice(values, _CHUNK)] for _ in starts)
    lengths: list[int] = []
    with tqdm(total=count, desc="measuring prompts", unit="prompt", disable=count < _BAR_FROM, leave=False) as bar:
        for part in _measure(chunks, encoder, min(workers, len(starts))):
            lengths += part
            bar.update(len(part))
    return np.array(lengths, dtype=np.int64)


Chunk = list[tuple[str, Any, Any]]
"""Place, prompt and tools of some rows."""


def _measure(chunks: Iterator[Chunk], encoder: PromptEncoder, workers: int) -> Iterator[list[int]]:
    """Lengths of each chunk, in order."""
    if workers <= 1:
        for chunk in chunks:
            yield _chunk_lengths(chunk, encoder)
        return
    context = multiprocessing.get_context("spawn")  # a fork of a process with threads may hang
    with ProcessPoolExecutor(workers, context, _set_encoder, (encoder,)) as pool:
        running: deque[Future[list[int]]] = deque()
        for chunk in chunks:
            running.append(pool.submit(_chunk_lengths, chunk))
            if len(running) >= 4 * workers:  # prompts ahead are held in memory
                yield running.popleft().result()
        while running:
            yield running.popleft().result()


_encoder: PromptEncoder | None = None  # of a measuring process, which gets it once instead of with every chunk


def _set_encoder(encoder: PromptEncoder) -> None:
    global _encoder
    _encoder = encoder


def _chunk_lengths(chunk: Chunk, encoder: PromptEncoder | None = None) -> list[int]:
    encoder = encoder or _encoder
    assert encoder is not None
    return encoder.lengths(chunk)
