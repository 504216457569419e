"""Penalties for long responses."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class OverlongBuffer:
    """Soft overlong punishment (DAPO, Yu et al. 2025, arXiv:2503.14476, equation 13).

    Nothing up to `max_length - buffer` tokens; from there linearly down to `-factor` at `max_length`:

        penalty = factor * min(0, (max_length - buffer - length) / buffer)

    Raises ValueError unless 0 < buffer <= max_length and factor >= 0.
    """

    max_length: int
    buffer: int
    factor: float = 1.0
    log: bool = False

    def __post_init__(self) -> None:
        if not 0 < self.buffer <= self.max_length:
            raise ValueError(
                f"the overlong buffer must have from 1 to {self.max_length} tokens (the longest response), "
                f"not {self.buffer}"
            )
        if not self.factor >= 0:
            raise ValueError(f"the overlong penalty factor must be at least 0, not {self.factor}")

    def __call__(self, length: int) -> float:
        """The penalty, at most 0, of a response of `length` tokens."""
        return self.factor * min(0.0, (self.max_length - self.buffer - length) / self.buffer)


def length_penalty(
    data_source: str, solution_str: str, ground_truth: Any, extra_info: Any, per_character: float = 0.001, free: int = 0
) -> float:
    """`-per_character` for each character of the response after the first `free` ones: a row function, by weight
    beside others. (Tokens are counted by the overlong buffer of the dapo manager.)"""
    return -per_character * max(0, len(solution_str) - free)
