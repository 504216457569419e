"""Every random number of a run follows from one root seed, through names rather than through the order of calls."""

import hashlib
import operator
import random

import numpy as np
import torch
from torch import Tensor


def derive_seed(root: int, *labels: int | str) -> int:
    """A seed in [0, 2**63) for the use that `labels` name, e.g. `derive_seed(1, "rollout", rank)`.

    Seeds of different labels are independent (BLAKE2b of the labels), the same on every machine and in every process.
    TypeError for a label that is neither a string nor a whole number.
    """
    # Converting first makes numpy's integers and torch's scalars the same label as Python's.
    key = tuple(label if isinstance(label, str) else operator.index(label) for label in (root, *labels))
    digest = hashlib.blake2b(repr(key).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def row_seeds(seed: int, step: int, rows: int) -> Tensor:
    """One seed for each of the first `rows` rows of a step: int64 [rows], a function of (seed, step, row) only."""
    return torch.tensor([derive_seed(seed, "row", step, row) for row in range(rows)], dtype=torch.int64)


def seed_everything(seed: int) -> None:
    """Seed the global generators of Python, numpy and torch (all devices) of this process."""
    random.seed(seed)
    np.random.seed(seed % 2**32)  # numpy's old global generator takes 32 bits
    torch.manual_seed(seed)
