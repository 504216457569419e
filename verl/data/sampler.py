"""In which order rows are visited, as a state that can be saved."""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from torch.utils.data import Sampler

from verl.config import DataConfig
from verl.protocol.columns import object_column
from verl.utils.imports import import_from_path


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

    def settings(self) -> dict[str, Any]:
        """All that the order follows from, by the names that a user knows: a saved place is one in this order only."""
        return {"rows": self.rows, "data.seed": self.seed, "data.shuffle": self.shuffle}

    def order(self, epoch: int) -> np.ndarray:
        """Row numbers in the order of an epoch."""
        return (
            np.random.default_rng([self.seed, epoch]).permutation(self.rows) if self.shuffle else np.arange(self.rows)
        )


class _Epoch(Iterator[Any]):
    """The rows, or batches of rows, of one epoch. Which epoch is settled by the first row: loaders also make iterators
    that they never use."""

    def __init__(self, sampler: EpochSampler) -> None:
        self._sampler = sampler
        self._epoch: int | None = None
        self._position = 0
        self._order = np.arange(0)

    def _start(self, epoch: int) -> None:
        self._epoch = epoch
        self._order = self._sampler.order(epoch)
        self._sampler.next_epoch = epoch + 1

    def __next__(self) -> Any:
        if self._epoch is None:
            self._start(self._sampler.next_epoch)
        if self._position >= len(self._order):
            raise StopIteration
        row = self._order[self._position]
        self._position += 1
        return row if isinstance(row, list) else int(row)

    def state_dict(self) -> dict[str, Any]:
        sampler = self._sampler
        epoch = sampler.next_epoch if self._epoch is None else self._epoch
        return {"epoch": epoch, "position": self._position}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._start(state["epoch"])
        self._position = state["position"]


class LengthSampler(EpochSampler):
    """Every row once an epoch, in batches of rows of near length, the batches and the rows at random.

    Rows are shuffled, cut into stretches of `batches` batches, and sorted by length within each, so that batches differ
    from epoch to epoch. The rows that fill no last batch come last.
    """

    def __init__(self, lengths: np.ndarray, batch_size: int, seed: int, batches: int = 50) -> None:
        super().__init__(len(lengths), seed)
        self.lengths = lengths
        self.batch_size = batch_size
        self.batches = batches

    def settings(self) -> dict[str, Any]:
        return {
            **super().settings(),
            "data.train_batch_size": self.batch_size,
            "lengths of prompts (digest)": _digest(self.lengths),
        }

    def order(self, epoch: int) -> np.ndarray:
        random = np.random.default_rng([self.seed, epoch])
        rows, stretch = random.permutation(self.rows), self.batch_size * self.batches
        for start in range(0, self.rows, stretch):
            part = rows[start : start + stretch]
            rows[start : start + stretch] = part[np.argsort(self.lengths[part], kind="stable")]
        whole = self.rows // self.batch_size * self.batch_size
        batches = rows[:whole].reshape(-1, self.batch_size)
        return np.concatenate([random.permutation(batches).reshape(-1), rows[whole:]])


class TokenBatchSampler(EpochSampler):
    """Batches of any number of rows, each of at most `max_tokens` cells: rows x the longest of them. Every row is in
    one batch of an epoch.

    With `shuffle`, rows are shuffled, sorted by length within stretches of `stretch` rows, and packed; then the batches
    are shuffled. Without it, rows are packed in their order.

    Raises ValueError for a row longer than `max_tokens`.
    """

    def __init__(
        self, lengths: np.ndarray, max_tokens: int, seed: int, shuffle: bool = True, stretch: int = 1024
    ) -> None:
        super().__init__(len(lengths), seed, shuffle)
        if len(lengths) and lengths.max() > max_tokens:
            row = int(lengths.argmax())
            raise ValueError(f"row {row} has {lengths[row]} tokens, more than a batch of {max_tokens} tokens holds")
        self.lengths = lengths
        self.max_tokens = max_tokens
        self.stretch = stretch

    def settings(self) -> dict[str, Any]:
        return {
            **super().settings(),
            "max_tokens_per_batch": self.max_tokens,
            "lengths of prompts (digest)": _digest(self.lengths),
        }

    def __len__(self) -> int:
        """Batches of the next epoch."""
        return len(self.order(self.next_epoch))

    def order(self, epoch: int) -> np.ndarray:
        """The batches of an epoch: an object array of lists of row numbers."""
        if not self.shuffle:
            return object_column(pack(np.arange(self.rows), self.lengths, self.max_tokens))
        random = np.random.default_rng([self.seed, epoch])
        rows = random.permutation(self.rows)
        batches: list[list[int]] = []
        for start in range(0, self.rows, self.stretch):
            part = rows[start : start + self.stretch]
            batches += pack_by_length(part, self.lengths, self.max_tokens)
        return object_column(batches)[random.permutation(len(batches))]


def pack(rows: np.ndarray, lengths: np.ndarray, max_tokens: int, max_padding: int | None = None) -> list[list[int]]:
    """`rows` cut, in their order, into lists of at most `max_tokens` cells (rows x the longest of them), and at most
    `max_padding` cells that are padding."""
    batches: list[list[int]] = []
    longest = tokens = 0
    for row in rows.tolist():
        length = int(lengths[row])
        longest, tokens = max(longest, length), tokens + length
        cells = (len(batches[-1]) + 1) * longest if batches else max_tokens + 1
        if cells <= max_tokens and (max_padding is None or cells - tokens <= max_padding):
            batches[-1].append(row)
        else:
            batches.append([row])
            longest = tokens = length
    return batches


def pack_by_length(rows: np.ndarray, lengths: np.ndarray, max_tokens: int) -> list[list[int]]:
    """`rows` in lists of near length. A list is closed before padding takes more than an eighth of `max_tokens`: to
    fill it up with longer rows would pad all that it holds."""
    return pack(rows[np.argsort(lengths[rows], kind="stable")], lengths, max_tokens, max_tokens // 8)


class MixedSampler(EpochSampler):
    """Every row once an epoch, the sources mixed: as long as all of them last, any stretch of the order holds them in
    the ratio of their weights, to within one row each.

    Args:
        sources: of each row.
        weights: of each source, above 0; one that is not named has weight 1.
    """

    def __init__(self, sources: Sequence[Any], weights: Mapping[str, float], seed: int) -> None:
        super().__init__(len(sources), seed)
        names, self.source = np.unique(np.array([str(source) for source in sources]), return_inverse=True)
        self.names: list[str] = names.tolist()
        unknown = sorted(set(weights) - set(self.names))
        if unknown:
            raise ValueError(
                f"data.sampler.weights: no row has the data source {unknown[0]!r}, only {', '.join(self.names)}"
            )
        self.weights = np.array([float(weights.get(name, 1.0)) for name in self.names])
        if not (np.isfinite(self.weights) & (self.weights > 0)).all():
            raise ValueError(f"data.sampler.weights={dict(weights)}: weights must be above 0")

    def settings(self) -> dict[str, Any]:
        return {
            **super().settings(),
            "data.sampler.weights": dict(zip(self.names, self.weights.tolist(), strict=True)),
            "data sources (digest)": _digest(self.source),
        }

    def order(self, epoch: int) -> np.ndarray:
        random = np.random.default_rng([self.seed, epoch])
        rows = random.permutation(self.rows)
        due = np.empty(self.rows)
        for number, weight in enumerate(self.weights):
            mine = np.flatnonzero(self.source[rows] == number)
            # Row k of a source is due when the mixture has come to k / weight.
            due[mine] = (np.arange(len(mine)) + 0.5) / weight
        return rows[np.argsort(due, kind="stable")]


class CurriculumSampler(EpochSampler):
    """Every row once an epoch, by rising `values`; rows of equal value in a random order."""

    def __init__(self, values: Sequence[Any], seed: int, column: str = "") -> None:
        super().__init__(len(values), seed)
        self.column = column
        try:
            self.values = np.array(values, dtype=np.float64)
        except (TypeError, ValueError) as error:
            raise ValueError(f"data.sampler.column={column}: a curriculum needs numbers: {error}") from error
        bad = np.flatnonzero(np.isnan(self.values))
        if len(bad):
            raise ValueError(f"data.sampler.column={column}: row {bad[0]} has no number there")

    def settings(self) -> dict[str, Any]:
        return {
            **super().settings(),
            "data.sampler.column": self.column,
            "values of the column (digest)": _digest(self.values),
        }

    def order(self, epoch: int) -> np.ndarray:
        rows = np.random.default_rng([self.seed, epoch]).permutation(self.rows)
        return rows[np.argsort(self.values[rows], kind="stable")]


def _digest(values: np.ndarray) -> str:
    return hashlib.sha256(np.ascontiguousarray(values).tobytes()).hexdigest()[:12]


def make_sampler(dataset: Any, config: DataConfig, seed: int, batch_size: int) -> Sampler[int]:
    """The sampler of training prompts that `config.sampler` names.

    Raises ValueError for a data set without what the sampler needs (`lengths()`, `column(name)`), and for a class of
    the user's own that cannot be loaded.
    """
    chosen = config.sampler
    if chosen.class_path is not None:
        if chosen.class_name is None:
            raise ValueError("data.sampler.class_path is set without data.sampler.class_name: name the class")
        try:
            sampler_class = import_from_path(f"{chosen.class_path}:{chosen.class_name}")
        except ValueError as error:
            raise ValueError(f"data.sampler: {error}") from error
        sampler: Sampler[int] = sampler_class(data_source=dataset, data_config=config)
        return sampler
    if chosen.name == "random":
        return EpochSampler(len(dataset), seed, config.shuffle)
    needed = "lengths" if chosen.name == "length" else "column"
    if not hasattr(dataset, needed):
        raise ValueError(f"data.sampler.name={chosen.name}: {type(dataset).__name__} has no method {needed}()")
    if chosen.name == "length":
        return LengthSampler(dataset.lengths(), batch_size, seed)
    if chosen.name == "mixed":
        return MixedSampler(dataset.column(config.reward_fn_key), chosen.weights, seed)
    if chosen.column is None:
        raise ValueError("data.sampler.name=curriculum needs data.sampler.column: the column to sort by")
    return CurriculumSampler(dataset.column(chosen.column), seed, chosen.column)
