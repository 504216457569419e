"""`DataProto`: a batch of rows with tensor columns, other columns and values that hold for all rows."""

import builtins
import operator
import os
import pickle
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast, overload

import numpy as np
import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor

from verl.protocol.columns import (
    Keys,
    RowIndex,
    as_column,
    check_array,
    check_same_columns,
    check_tensor,
    describe,
    join_arrays,
    join_tensors,
    names,
    pick,
    row_numbers,
)
from verl.protocol.compare import values_equal
from verl.protocol.meta import concat_meta, union_meta
from verl.protocol.serialization import EncodedBatch, decode_batch, encode_batch, read_file, writable, write_file

MaybeTensorDict = TensorDict | Any
"""A TensorDict or None. `Any` stands for None so that those who know it is there can index it without a check."""

_MIB = 2**20


@dataclass(eq=False)
class DataProtoItem:
    """One row: `batch` without the row dimension, one value per non-tensor column, and the batch's `meta_info`."""

    batch: MaybeTensorDict = None
    non_tensor_batch: dict[str, Any] = field(default_factory=dict)
    meta_info: dict[str, Any] = field(default_factory=dict)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "batch": encode_batch(self.batch)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, batch=decode_batch(state["batch"]))


@dataclass(eq=False)
class DataProto:
    """A batch of B rows.

    Every method but `pop` returns a new object and leaves its inputs alone. As in numpy and torch, columns that a
    method does not change and slices share memory with the input, while rows picked by an index are copies: so put
    a new tensor under a key instead of writing into an old one. Items of object columns are never copied.

    A batch may lack tensors, have 0 rows, or have no columns at all (only `meta_info`).

    Attributes:
        batch: tensors `[B, ...]`, or None.
        non_tensor_batch: arrays of length B; those of object dtype are 1-D.
        meta_info: values for the whole batch.

    Raises:
        TypeError, ValueError: see `check_consistency`.
    """

    batch: MaybeTensorDict = None
    non_tensor_batch: dict[str, np.ndarray] = field(default_factory=dict)
    meta_info: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.check_consistency()

    # ---- making ----

    @staticmethod
    def from_single_dict(data: Mapping[str, Any], meta_info: Mapping[str, Any] | None = None) -> "DataProto":
        """From one dict: tensors become tensor columns; arrays and lists become non-tensor columns."""
        tensors = {key: value for key, value in data.items() if isinstance(value, Tensor)}
        return DataProto.from_dict(tensors, {k: v for k, v in data.items() if k not in tensors}, meta_info)

    @staticmethod
    def from_dict(
        tensors: Mapping[str, Tensor] | None = None,
        non_tensors: Mapping[str, Any] | None = None,
        meta_info: Mapping[str, Any] | None = None,
    ) -> "DataProto":
        """From tensors `[B, ...]` and arrays or lists of length B.

        A list becomes a 1-D object column with its items as they are; so does an object array of higher rank.
        Raises ValueError, with every column's shape, when lengths differ.
        """
        tensors = dict(tensors or {})
        columns = {key: as_column(key, values) for key, values in (non_tensors or {}).items()}
        for key, tensor in tensors.items():
            check_tensor(key, tensor)
        values: dict[str, Any] = {**tensors, **columns}
        shapes = {key: tuple(value.shape) for key, value in values.items()}
        if len({shape[:1] for shape in shapes.values()}) > 1 or () in shapes.values():
            raise ValueError(f"every column needs a first dimension of the same size, but the shapes are {shapes}")
        rows = next((shape[0] for shape in shapes.values()), 0)
        return DataProto._assemble(tensors or None, columns, meta_info or {}, rows)

    @staticmethod
    def concat(parts: Sequence["DataProto"]) -> "DataProto":
        """Put the rows of `parts` one after another. All need the same columns, of the same widths and dtypes.

        `meta_info`: `timing` keeps every part's value ({name: [seconds, ...]}), `metrics` collects all entries in one
        list; other keys must agree where they are present. ValueError names the columns or the key that do not fit.
        """
        if not parts:
            raise ValueError("concat: there is nothing to concatenate: the list is empty")
        for number, part in enumerate(parts):
            check_same_columns(number, parts[0]._columns(), part._columns())
        first, batches = parts[0], [part._tensors() for part in parts]
        tensors = {key: join_tensors(key, [batch[key] for batch in batches]) for key in first._tensors()}
        arrays = {
            key: join_arrays(key, [part.non_tensor_batch[key] for part in parts]) for key in first.non_tensor_batch
        }
        has_batch = any(part.batch is not None for part in parts)
        meta = concat_meta([part.meta_info for part in parts])
        return DataProto._assemble(tensors if has_batch else None, arrays, meta, sum(map(len, parts)))

    @staticmethod
    def _assemble(
        tensors: Mapping[str, Tensor] | None, arrays: dict[str, np.ndarray], meta: Mapping[str, Any], rows: int
    ) -> "DataProto":
        # Without any column left, an empty TensorDict still knows the number of rows.
        has_batch = tensors is not None or (rows > 0 and not arrays)
        batch = TensorDict(dict(tensors or {}), batch_size=[rows]) if has_batch else None
        return DataProto(batch, arrays, dict(meta))

    # ---- looking ----

    def __len__(self) -> int:
        if self.batch is not None:
            return int(self.batch.batch_size[0])
        return next((len(column) for column in self.non_tensor_batch.values()), 0)

    def check_consistency(self) -> None:
        """Raise TypeError or ValueError, naming the column, unless all columns are dense and have the same length."""
        if self.batch is not None:
            if not isinstance(self.batch, TensorDictBase):
                raise TypeError(f"batch must be a TensorDict or None, not {type(self.batch).__name__}; see from_dict")
            if self.batch.batch_dims != 1:
                raise ValueError(
                    f"batch must have one batch dimension, but batch_size is {list(self.batch.batch_size)}"
                )
        for key, tensor in self._tensors().items():
            check_tensor(key, tensor)
            if key in self.non_tensor_batch:
                raise ValueError(f"column {key!r} is in both batch and non_tensor_batch")
        for key, column in self.non_tensor_batch.items():
            check_array(key, column)
        rows = len(self)
        for key, column in self.non_tensor_batch.items():
            if len(column) != rows:
                raise ValueError(f"non_tensor_batch[{key!r}] has {len(column)} rows, but the batch has {rows}")

    def print_size(self, prefix: str = "") -> None:
        """Print the MiB of the tensors and of the other columns (objects count by their pickled size)."""
        tensors = sum(tensor.nbytes for tensor in self._tensors().values())
        others = sum(
            len(pickle.dumps(column, protocol=5)) if column.dtype == object else column.nbytes
            for column in self.non_tensor_batch.values()
        )
        label = f"{prefix}: " if prefix else ""
        print(f"{label}{len(self)} rows, tensors {tensors / _MIB:.3f} MiB, non-tensors {others / _MIB:.3f} MiB")

    def _tensors(self) -> dict[str, Tensor]:
        return {} if self.batch is None else cast("dict[str, Tensor]", dict(self.batch.items()))

    def _columns(self) -> dict[str, str]:
        """Each column's name and the attribute that holds it."""
        return {**dict.fromkeys(self._tensors(), "batch"), **dict.fromkeys(self.non_tensor_batch, "non_tensor_batch")}

    def _is_bare(self) -> bool:
        """No columns and hence no number of rows: only `meta_info`."""
        return self.batch is None and not self.non_tensor_batch

    # ---- columns ----

    def select(
        self,
        batch_keys: Keys | None = None,
        non_tensor_batch_keys: Keys | None = None,
        meta_info_keys: Keys | None = None,
    ) -> "DataProto":
        """Only the named columns and meta values. None means all of that kind, `[]` none; the rows stay.

        Raises KeyError, with the known names, for a name that is not there.
        """
        tensors = pick("select", "batch", self._tensors(), batch_keys)
        arrays = pick("select", "non_tensor_batch", self.non_tensor_batch, non_tensor_batch_keys)
        meta = pick("select", "meta_info", self.meta_info, meta_info_keys)
        return self._assemble(None if self.batch is None else tensors, arrays, meta, len(self))

    def pop(
        self,
        batch_keys: Keys | None = None,
        non_tensor_batch_keys: Keys | None = None,
        meta_info_keys: Keys | None = None,
    ) -> "DataProto":
        """Take the named columns and meta values out of this object, in place, and return them. None means none.

        Raises KeyError, with the known names, for a name that is not there; then nothing was taken.
        """
        tensors = pick("pop", "batch", self._tensors(), batch_keys or ())
        arrays = pick("pop", "non_tensor_batch", self.non_tensor_batch, non_tensor_batch_keys or ())
        meta = pick("pop", "meta_info", self.meta_info, meta_info_keys or ())
        popped = self._assemble(tensors or None, arrays, meta, len(self))
        rest = self.select(
            self._tensors().keys() - tensors, self.non_tensor_batch.keys() - arrays, self.meta_info.keys() - meta
        )
        self.__dict__.update(rest.__dict__)
        return popped

    def rename(self, old_keys: Keys, new_keys: Keys) -> "DataProto":
        """Give columns, of either kind, new names; two may swap theirs.

        Raises KeyError for an old name that is not there, ValueError for lists of different lengths or a new name
        that another column has.
        """
        old, new = names(old_keys), names(new_keys)
        if len(old) != len(new):
            raise ValueError(f"rename: {len(old)} old names {old} but {len(new)} new names {new}")
        pick("rename", "columns", self._columns(), old)
        renamed = {**{key: key for key in self._columns()}, **dict(zip(old, new, strict=True))}
        taken = sorted(name for name, count in Counter(renamed.values()).items() if count > 1)
        if taken:
            raise ValueError(f"rename: more than one column would be named {taken}; columns: {sorted(self._columns())}")
        tensors = {renamed[key]: tensor for key, tensor in self._tensors().items()}
        arrays = {renamed[key]: column for key, column in self.non_tensor_batch.items()}
        return self._assemble(None if self.batch is None else tensors, arrays, self.meta_info, len(self))

    def union(self, other: "DataProto") -> "DataProto":
        """The columns and meta values of both, row by row. A name that both have must have the same value in both.

        NaN equals NaN in the same place. `timing` and `metrics` that differ are collected as in `concat`. An `other`
        without columns adds its meta only. Raises ValueError naming the key, or both numbers of rows.
        """
        if not isinstance(other, DataProto):  # such as what a worker's method forgot to return
            raise TypeError(f"union: the other one must be a DataProto, not {type(other).__name__}")
        if not (self._is_bare() or other._is_bare()) and len(self) != len(other):
            raise ValueError(f"union: {len(self)} rows on the left but {len(other)} on the right")
        mine, theirs = self._columns(), other._columns()
        for key in mine.keys() & theirs.keys():
            left, right = getattr(self, mine[key])[key], getattr(other, theirs[key])[key]
            if not values_equal(left, right):
                raise ValueError(
                    f"union: {key!r} has different values on the left ({describe(left)}) and on the right "
                    f"({describe(right)}); rename or pop one of them"
                )
        tensors = {**other._tensors(), **self._tensors()}
        arrays = {**other.non_tensor_batch, **self.non_tensor_batch}
        has_batch = self.batch is not None or other.batch is not None
        meta = union_meta(self.meta_info, other.meta_info)
        return self._assemble(tensors if has_batch else None, arrays, meta, max(len(self), len(other)))

    def to(self, device: str | torch.device) -> "DataProto":
        """The same batch with its tensors on `device`."""
        tensors = {key: tensor.to(device) for key, tensor in self._tensors().items()}
        return self._assemble(
            None if self.batch is None else tensors, self.non_tensor_batch.copy(), self.meta_info, len(self)
        )

    # ---- rows ----

    def __iter__(self) -> Iterator[DataProtoItem]:
        return (self[row] for row in range(len(self)))

    @overload
    def __getitem__(self, index: int | np.integer) -> DataProtoItem: ...
    @overload
    def __getitem__(self, index: builtins.slice | RowIndex) -> "DataProto": ...
    def __getitem__(self, index: int | np.integer | builtins.slice | RowIndex) -> "DataProto | DataProtoItem":
        """One row as a `DataProtoItem` for an int; a `DataProto` for a slice, list, array or tensor (`select_idxs`)."""
        if isinstance(index, builtins.slice):
            return self._take(index)
        if isinstance(index, list | range) or (isinstance(index, np.ndarray | Tensor) and index.ndim):
            return self.select_idxs(index)
        if isinstance(index, bool | np.bool_) or not hasattr(index, "__index__"):
            raise TypeError(
                f"rows are indexed by an int, a slice, or a list, array or tensor of integers or booleans, not "
                f"{type(index).__name__}; columns are data.batch[key] and data.non_tensor_batch[key]"
            )
        (row,) = row_numbers([operator.index(cast(int, index))], len(self))
        return DataProtoItem(
            None if self.batch is None else TensorDict({k: v[row] for k, v in self._tensors().items()}, batch_size=[]),
            {key: column[row] for key, column in self.non_tensor_batch.items()},
            self.meta_info.copy(),
        )

    def slice(self, start: int | None = None, end: int | None = None, step: int | None = None) -> "DataProto":
        """Rows `start:end:step`."""
        return self._take(builtins.slice(start, end, step))

    def select_idxs(self, idxs: RowIndex) -> "DataProto":
        """The rows at integer positions, in that order and as often as named, or where a boolean per row is true.

        Raises IndexError for a position that does not exist, ValueError for a boolean index of another length.
        """
        return self._take(row_numbers(idxs, len(self)))

    def reorder(self, indices: RowIndex) -> "DataProto":
        """A new batch whose row i is row `indices[i]` of this one. ValueError unless each row occurs exactly once."""
        numbers = row_numbers(indices, len(self))
        if not np.array_equal(np.sort(numbers), np.arange(len(self))):
            raise ValueError(
                f"reorder: the {len(numbers)} indices do not name each of the {len(self)} rows exactly once; "
                f"select_idxs takes any rows"
            )
        return self._take(numbers)

    def repeat(self, repeat_times: int, interleave: bool = True) -> "DataProto":
        """Each row `repeat_times` times: a,a,b,b if `interleave`, else a,b,a,b."""
        if repeat_times < 1:
            raise ValueError(f"repeat: repeat_times must be at least 1, not {repeat_times}")
        numbers = np.arange(len(self))
        return self._take(np.repeat(numbers, repeat_times) if interleave else np.tile(numbers, repeat_times))

    def chunk(self, chunks: int) -> list["DataProto"]:
        """`chunks` parts of equal length. ValueError if the number of rows does not allow it."""
        if chunks < 1:
            raise ValueError(f"chunk: the number of chunks must be at least 1, not {chunks}")
        rows = len(self)
        if rows % chunks:
            raise ValueError(
                f"chunk: {rows} rows do not divide into {chunks} equal chunks: first add {-rows % chunks} rows with "
                f"pad_dataproto_to_divisor(data, {chunks}), or use split(size), whose last part may be shorter"
            )
        size = rows // chunks
        return [self.slice(part * size, (part + 1) * size) for part in range(chunks)]

    def split(self, split_size: int) -> list["DataProto"]:
        """Parts of `split_size` rows; the last may be shorter. 0 rows give one part of 0 rows."""
        if split_size < 1:
            raise ValueError(f"split: the size must be at least 1, not {split_size}")
        return [self.slice(start, start + split_size) for start in range(0, max(len(self), 1), split_size)]

    def make_iterator(
        self, mini_batch_size: int, epochs: int, seed: int | None = None, shuffle: bool = False
    ) -> Iterator["DataProto"]:
        """All rows, `epochs` times over, in mini-batches of `mini_batch_size` rows.

        With `shuffle` each epoch has its own order, fixed by `seed` (without one, by torch's global generator).
        Raises ValueError at once if `mini_batch_size` does not divide the number of rows.
        """
        if mini_batch_size < 1 or len(self) % mini_batch_size:
            raise ValueError(
                f"make_iterator: {len(self)} rows do not divide into mini-batches of {mini_batch_size} rows"
            )
        generator = None if seed is None else torch.Generator().manual_seed(seed)

        def mini_batches() -> Iterator[DataProto]:
            for _ in range(epochs):
                epoch = self.reorder(torch.randperm(len(self), generator=generator)) if shuffle else self
                for start in range(0, len(self), mini_batch_size):
                    yield epoch.slice(start, start + mini_batch_size)

        return mini_batches()

    def _take(self, rows: builtins.slice | np.ndarray) -> "DataProto":
        if isinstance(rows, builtins.slice):
            numbers = range(len(self))[rows]
            if numbers.step < 0:  # which torch cannot slice by
                return self._take(np.array(numbers, dtype=np.int64))
            return self._map(lambda tensor: tensor[rows], lambda column: column[rows], len(numbers))
        index = torch.from_numpy(rows)
        return self._map(lambda tensor: tensor[index], lambda column: column[rows], len(rows))

    def _map(
        self, on_tensor: Callable[[Tensor], Tensor], on_array: Callable[[np.ndarray], np.ndarray], rows: int
    ) -> "DataProto":
        tensors = None if self.batch is None else {key: on_tensor(tensor) for key, tensor in self._tensors().items()}
        arrays = {key: on_array(column) for key, column in self.non_tensor_batch.items()}
        return self._assemble(tensors, arrays, self.meta_info, rows)

    # ---- travelling ----

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "batch": encode_batch(self.batch)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        batch: EncodedBatch | None = state["batch"]
        columns = {key: writable(column) for key, column in state["non_tensor_batch"].items()}
        # A new dict, because copy.copy comes through here with the sender's own.
        meta = dict(state["meta_info"])
        self.__dict__.update(state, batch=decode_batch(batch), non_tensor_batch=columns, meta_info=meta)

    def save_to_disk(self, path: str | os.PathLike[str]) -> None:
        """Write to one file, in one move: `path` never holds a part. Tensors of any device are loaded on the CPU."""
        write_file(self, path)

    @staticmethod
    def load_from_disk(path: str | os.PathLike[str]) -> "DataProto":
        """Read what `save_to_disk` wrote. It is a pickle underneath: load only files that you trust.

        Raises FileNotFoundError if there is no such file, ValueError if it is damaged or something else.
        """
        data = read_file(path)
        if not isinstance(data, DataProto):
            raise ValueError(f"{path} holds a {type(data).__name__}, not a DataProto")
        return data
