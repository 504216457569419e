"""Dealing rows of different lengths out to processes."""

import heapq
from collections.abc import Sequence

import numpy as np


def balanced_shards(weights: Sequence[int] | np.ndarray, shards: int) -> list[np.ndarray]:
    """Split rows into `shards` parts with equally many rows and about equal total weight.

    Greedy: the heaviest row left goes to the lightest part that still has room (Graham, "Bounds on multiprocessing
    timing anomalies", 1969, with a cap on rows). Ties go to the earlier row and the earlier part, so the result is
    fixed by its input. Returns int64 row numbers per part, each in rising order.

    Raises ValueError if `shards` does not divide the number of rows.
    """
    weights = np.asarray(weights)
    if shards < 1 or len(weights) % shards:
        raise ValueError(f"{len(weights)} rows do not divide into {shards} parts with equally many rows")
    room = len(weights) // shards
    parts: list[list[int]] = [[] for _ in range(shards)]
    lightest = [(0, part) for part in range(shards)]
    for row in np.argsort(-weights, kind="stable"):
        load, part = heapq.heappop(lightest)
        parts[part].append(int(row))
        if len(parts[part]) < room:
            heapq.heappush(lightest, (load + int(weights[row]), part))
    return [np.array(sorted(part), dtype=np.int64) for part in parts]
