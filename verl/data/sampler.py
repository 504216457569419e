"""In which order rows are visited, as a state that can be saved."""

from collections.abc import Iterator
from typing import Any

import numpy as np
from torch.utils.data import Sampler


class EpochSampler(Sampler[int]):
    """Every row once an epoch. With `shuffle`, the order of epoch k follows from (rows, seed, k) and nothing else.

    Each pass is the next epoch. Its iterator holds the place, which StatefulDataLoader saves and loads.
    """

    def __init__(self, rows: int, seed: int, shuffle: bool = True) -> None:
        if seed < 0:
            raise ValueError(f"the seed of the data order must be at least 0, not {seed}")
        self.rows = rows
        self.seed = seed
        self.shuffle = shuffle
        self.next_epoch = 0

    def __len__(self) -> int:
        return self.rows

    def __iter__(self) -> Iterator[int]:
        return _Epoch(self)

    def order(self, epoch: int) -> np.ndarray:
        """Row numbers in the order of an epoch."""
        return (
            np.random.default_rng([self.seed, epoch]).permutation(self.rows) if self.shuffle else np.arange(self.rows)
        )


class _Epoch(Iterator[int]):
    """The rows of one epoch. Which one is settled by the first row: loaders also make iterators that they never use."""

    def __init__(self, sampler: EpochSampler) -> None:
        self._sampler = sampler
        self._epoch: int | None = None
        self._position = 0
        self._order = np.arange(0)

    def _start(self, epoch: int) -> None:
        self._epoch = epoch
        self._order = self._sampler.order(epoch)
        self._sampler.next_epoch = epoch + 1

    def __next__(self) -> int:
        if self._epoch is None:
            self._start(self._sampler.next_epoch)
        if self._position >= len(self._order):
            raise StopIteration
        row = int(self._order[self._position])
        self._position += 1
        return row

    def state_dict(self) -> dict[str, Any]:
        sampler = self._sampler
        epoch = sampler.next_epoch if self._epoch is None else self._epoch
        settings = {"rows": sampler.rows, "seed": sampler.seed, "shuffle": sampler.shuffle}
        return {"epoch": epoch, "position": self._position, **settings}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name in ("rows", "seed", "shuffle"):
            now = getattr(self._sampler, name)
            if state[name] != now:
                raise ValueError(
                    f"the data order was saved with {name}={state[name]} but is now made with {name}={now}: "
                    "go on with the same data, seed and shuffling, or set trainer.resume_mode=disable"
                )
        self._start(state["epoch"])
        self._position = state["position"]
