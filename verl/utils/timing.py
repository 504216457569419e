"""Where the seconds of a step go."""

import time
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager


@contextmanager
def timer(name: str, timings: MutableMapping[str, float]) -> Iterator[None]:
    """Add the wall-clock seconds that the block takes to `timings[name]`, also when the block raises.

    A name that is used several times in one step accumulates.
    """
    start = time.perf_counter()
    try:
        yield
    finally:
        timings[name] = timings.get(name, 0.0) + time.perf_counter() - start
