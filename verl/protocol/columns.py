"""Single columns of a batch: making, checking, indexing and joining them."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

Keys = str | Collection[str]
"""One name or several."""

RowIndex = Sequence[int] | Sequence[bool] | np.ndarray | Tensor
"""Rows to take, 1-D: integers (negative ones count from the end) or one boolean per row."""


def object_column(values: Iterable[Any]) -> np.ndarray:
    """A 1-D object array with one item per value, whatever the values are.

    `np.array` makes a matrix of equally long lists, so that [["a"], ["b"]] and [["a"], ["b", "c"]] differ in rank.
    """
    items = list(values)
    column = np.empty(len(items), dtype=object)
    for row, item in enumerate(items):
        column[row] = item
    return column


def as_column(key: str, values: Any) -> np.ndarray:
    """`values` as a non-tensor column: a list or an object array of any rank becomes a 1-D object column."""
    if isinstance(values, list | tuple):
        return object_column(values)
    if not isinstance(values, np.ndarray):
        raise TypeError(f"column {key!r} must be a numpy array or a list, not {type(values).__name__}")
    if values.dtype == object and values.ndim > 1:
        return object_column(row.tolist() for row in values)
    return values


def check_tensor(key: str, value: Any) -> None:
    """Raise unless `value` is a dense tensor, the only kind that has rows and can be sent."""
    if not isinstance(value, Tensor):
        raise TypeError(
            f"batch[{key!r}] must be a tensor, not {type(value).__name__}; non_tensor_batch is for the rest"
        )
    if value.is_nested or value.layout != torch.strided:
        kind = "nested (jagged)" if value.is_nested else str(value.layout)
        raise ValueError(f"batch[{key!r}] is a {kind} tensor; pad it to a dense one, with a mask for what is valid")


def check_array(key: str, value: Any) -> None:
    """Raise unless `value` is an array of rows, and a 1-D one if its items are objects."""
    if not isinstance(value, np.ndarray):
        raise TypeError(f"non_tensor_batch[{key!r}] must be a numpy array, not {type(value).__name__}")
    if value.ndim == 0 or (value.dtype == object and value.ndim != 1):
        raise ValueError(
            f"non_tensor_batch[{key!r}] has shape {value.shape} and dtype {value.dtype}: it needs one entry per row, "
            f"and an object column must be 1-D (DataProto.from_dict makes one out of a list)"
        )


def row_numbers(index: RowIndex, rows: int) -> np.ndarray:
    """`index` as int64 row numbers in [0, rows).

    Raises ValueError for a boolean index of another length than `rows` or an index that is not 1-D, TypeError for
    other than integers or booleans, IndexError for a row that does not exist.
    """
    numbers = index.detach().cpu().numpy() if isinstance(index, Tensor) else np.asarray(index)
    if numbers.ndim != 1:
        raise ValueError(f"an index of rows must be 1-D, but this one has shape {numbers.shape}")
    if numbers.dtype == bool:
        if len(numbers) != rows:
            raise ValueError(f"a boolean index of length {len(numbers)} does not fit {rows} rows")
        return np.flatnonzero(numbers)
    if numbers.size == 0:
        return np.zeros(0, dtype=np.int64)  # an empty list has no dtype of its own
    if numbers.dtype.kind not in "iu":
        raise TypeError(f"an index of rows must hold integers or booleans, not {numbers.dtype}")
    outside = numbers[(numbers < -rows) | (numbers >= rows)]
    if outside.size:
        raise IndexError(f"row {outside[0]} does not exist: there are {rows} rows")
    return np.where(numbers < 0, numbers + rows, numbers).astype(np.int64)


def join_tensors(key: str, parts: Sequence[Tensor]) -> Tensor:
    """Concatenate along the rows. Widths and dtypes must agree: ValueError with those that do not."""
    kinds = {(tuple(part.shape[1:]), part.dtype) for part in parts}
    if len(kinds) > 1:
        seen = ", ".join(sorted(f"{str(dtype).removeprefix('torch.')} rows of shape {shape}" for shape, dtype in kinds))
        raise ValueError(f"concat: batch[{key!r}] differs between the parts: {seen}")
    return torch.cat(list(parts))


def join_arrays(key: str, parts: Sequence[np.ndarray]) -> np.ndarray:
    """Concatenate along the rows. If any part holds objects, so does the result; else kinds and widths must agree."""
    if any(part.dtype == object for part in parts):
        return object_column(item for part in parts for item in part)
    kinds = {(part.shape[1:], part.dtype.kind) for part in parts}
    if len(kinds) > 1:
        seen = ", ".join(sorted({f"{part.dtype} rows of shape {part.shape[1:]}" for part in parts}))
        raise ValueError(f"concat: non_tensor_batch[{key!r}] differs between the parts: {seen}")
    return np.concatenate(parts)


def names(keys: Keys) -> list[str]:
    return [keys] if isinstance(keys, str) else list(keys)


def pick(operation: str, where: str, values: Mapping[str, Any], keys: Keys | None) -> dict[str, Any]:
    """The named entries, in the order they have in `values`; all for None. KeyError with the known names otherwise."""
    if keys is None:
        return dict(values)
    wanted = names(keys)
    unknown = [key for key in wanted if key not in values]
    if unknown:
        raise KeyError(f"{operation}: {where} has no {unknown}; it has {sorted(values)}")
    return {key: value for key, value in values.items() if key in wanted}


def check_same_columns(number: int, first: Mapping[str, str], other: Mapping[str, str]) -> None:
    """Raise ValueError unless part `number` has the columns (name to kind) of part 0."""
    only_first = [f"{kind}[{key!r}]" for key, kind in sorted(first.items() - other.items())]
    only_other = [f"{kind}[{key!r}]" for key, kind in sorted(other.items() - first.items())]
    if only_first or only_other:
        raise ValueError(
            f"concat: the columns differ: only part 0 has: {', '.join(only_first) or '-'}; "
            f"only part {number} has: {', '.join(only_other) or '-'}"
        )


def describe(column: Tensor | np.ndarray) -> str:
    """Kind, dtype and shape, for messages."""
    return f"{type(column).__name__} {str(column.dtype).removeprefix('torch.')}{list(column.shape)}"
