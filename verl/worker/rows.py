"""Which rows of a batch go to which data-parallel rank, and how the results find their way back.

Row identity: whatever padding, balancing and mini-batches do to the order, row i of the joined result belongs to row i
of the input.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeGuard

import numpy as np

from verl.protocol import DataProto, pad_dataproto_to_divisor
from verl.worker.balance import balanced_shards

BALANCE = "balance_batch"
"""`meta_info` key: true shares the rows out so that every rank gets about the same number of tokens."""

MINI_BATCH = "mini_batch_size"
"""`meta_info` key: rows per mini-batch, over all ranks. Each mini-batch is then spread over all ranks."""

LOCAL_MINI_BATCHES = "local_mini_batch_sizes"
"""`meta_info` key of a shard: rows of each mini-batch on this rank, the same numbers on every rank."""


@dataclass(frozen=True, eq=False)
class RowPlan:
    """The split of one batch.

    Attributes:
        rows: rows of the batch before padding.
        shards: per data-parallel rank, row numbers of the padded batch (int64, equally many); `rows` and above are
            pad rows.
        mini_batches: rows of each mini-batch on every rank, if the batch has mini-batches.
    """

    rows: int
    shards: tuple[np.ndarray, ...]
    mini_batches: tuple[int, ...] | None = None

    @property
    def padded(self) -> int:
        """Rows with padding."""
        return sum(map(len, self.shards))

    @property
    def in_order(self) -> bool:
        """Whether the shards, one after another, are the input: no padding, and no row moved."""
        return self.padded == self.rows and _is_range(np.concatenate(self.shards))

    def pad(self, batch: DataProto) -> DataProto:
        # Mini-batches are padded one by one, so more rows may be missing than any divisor below `rows` would add.
        return batch if self.padded == self.rows else pad_dataproto_to_divisor(batch, self.padded)[0]

    def take(self, padded: DataProto, dp_rank: int) -> DataProto:
        """The shard of `dp_rank`, out of a batch that `pad` returned."""
        shard = _take(padded, self.shards[dp_rank])
        if self.mini_batches is not None:
            shard.meta_info[LOCAL_MINI_BATCHES] = list(self.mini_batches)
        return shard

    def join(self, parts: Sequence[DataProto]) -> DataProto:
        """One part per shard, in the order of the input and without the pad rows.

        A part may have k rows for each of its shard's, side by side, with the same k everywhere; or no columns.
        """
        joined = DataProto.concat(parts)
        copies, rest = divmod(len(joined), self.padded)
        if rest or any(len(part) != copies * len(shard) for part, shard in zip(parts, self.shards, strict=True)):
            raise ValueError(
                f"ranks that were given {[len(shard) for shard in self.shards]} rows returned "
                f"{[len(part) for part in parts]}: the result needs the same number of rows for each input row"
            )
        if copies == 0 or self.in_order:
            return joined
        place = np.argsort(np.concatenate(self.shards), kind="stable")[: self.rows]
        return _take(joined, (place[:, None] * copies + np.arange(copies)).reshape(-1))


def plan_rows(rows: int, shards: int, mini_batch_size: int | None = None, weights: np.ndarray | None = None) -> RowPlan:
    """Split `rows` rows over `shards` ranks: in contiguous pieces, or balanced by `weights` (one per row).

    With `mini_batch_size` m, rows [0, m), [m, 2m), ... are split one by one, so that local mini-batch k of each rank is
    its share of global mini-batch k. For 8 rows, m = 4 and 2 ranks: rows 0,1,4,5 and 2,3,6,7. Whatever is split gets
    pad rows until all ranks have equally many of it.
    """
    if rows < 1:
        raise ValueError(f"a batch of {rows} rows cannot be split over {shards} data-parallel ranks")
    if mini_batch_size is not None and (not isinstance(mini_batch_size, int) or mini_batch_size < 1):
        raise ValueError(f"meta_info[{MINI_BATCH!r}] must be a positive integer, not {mini_batch_size!r}")
    parts: list[list[np.ndarray]] = [[] for _ in range(shards)]
    sizes, padded = [], rows
    step = mini_batch_size or rows
    for start in range(0, rows, step):
        numbers = np.arange(start, min(start + step, rows))
        missing = -len(numbers) % shards
        numbers = np.concatenate([numbers, np.arange(padded, padded + missing)])
        padded += missing
        if weights is None:
            pieces = np.split(numbers, shards)
        else:  # pad rows repeat the batch from its start
            pieces = [numbers[piece] for piece in balanced_shards(weights[numbers % rows], shards)]
        for part, piece in zip(parts, pieces, strict=True):
            part.append(piece)
        sizes.append(len(numbers) // shards)
    return RowPlan(rows, tuple(map(np.concatenate, parts)), None if mini_batch_size is None else tuple(sizes))


def plan_batches(batches: Mapping[str, DataProto], shards: int) -> RowPlan:
    """The split of batches (by argument name) that go into one call together, as their `meta_info` asks.

    Raises ValueError when they differ in rows or contradict each other, or when balancing lacks `attention_mask`.
    """
    rows = same_rows(batches)
    weights = None
    if _setting(batches, BALANCE):
        masks = [batch.batch["attention_mask"] for batch in batches.values() if "attention_mask" in tensor_keys(batch)]
        if not masks:
            raise ValueError(
                f"meta_info[{BALANCE!r}] is set, but no batch has the column 'attention_mask' that tells the lengths; "
                f"columns: {sorted(key for batch in batches.values() for key in tensor_keys(batch))}"
            )
        weights = masks[0].reshape(rows, -1).sum(-1).cpu().numpy()
    return plan_rows(rows, shards, _setting(batches, MINI_BATCH), weights)


def same_rows(batches: Mapping[str, DataProto]) -> int:
    """The number of rows, the same in each batch (by argument name), else ValueError with all of them."""
    rows = {name: len(batch) for name, batch in batches.items()}
    if len(set(rows.values())) != 1:
        raise ValueError(
            "batches that are split together need the same number of rows: "
            + ", ".join(f"{name} has {count}" for name, count in rows.items())
        )
    return next(iter(rows.values()))


def wants_own_split(batch: DataProto) -> bool:
    """Whether `meta_info` asks for more than contiguous pieces, so that finished shards cannot be used as they are."""
    return bool(batch.meta_info.get(BALANCE)) or MINI_BATCH in batch.meta_info


def has_columns(value: Any) -> TypeGuard[DataProto]:
    """Whether this is a batch that has rows to share out; one with only `meta_info` goes to every rank whole."""
    return isinstance(value, DataProto) and (value.batch is not None or bool(value.non_tensor_batch))


def tensor_keys(batch: DataProto) -> set[str]:
    return set() if batch.batch is None else {str(key) for key, _ in batch.batch.items()}


def _setting(batches: Mapping[str, DataProto], key: str) -> Any:
    found = {name: batch.meta_info[key] for name, batch in batches.items() if key in batch.meta_info}
    if len(set(found.values())) > 1:
        raise ValueError(
            f"meta_info[{key!r}] differs between batches of one call: "
            + ", ".join(f"{value!r} in {name}" for name, value in found.items())
        )
    return next(iter(found.values()), None)


def _is_range(numbers: np.ndarray) -> bool:
    return bool((np.diff(numbers) == 1).all())


def _take(batch: DataProto, numbers: np.ndarray) -> DataProto:
    if _is_range(numbers):  # a view: no copy
        return batch.slice(int(numbers[0]), int(numbers[-1]) + 1)
    return batch.select_idxs(numbers)
