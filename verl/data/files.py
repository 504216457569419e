"""Rows of data files. A file is opened and checked once, and stays compact until a row is asked for."""

import json
import mmap
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

Row = dict[str, Any]


class Rows(Protocol):
    """The rows of one file. Pickling sends the path: the receiver opens the file again."""

    def __len__(self) -> int: ...

    def __getitem__(self, row: int) -> Row: ...

    def place(self, row: int) -> str:
        """Where a person finds the row: file and line, or file and row (counted from 0)."""
        ...


def open_rows(path: str | Path, required: Sequence[str] = ()) -> Rows:
    """Open a data file: .parquet, .arrow (IPC file or stream), .jsonl, or .json (an array of objects, or lines).

    Raises:
        FileNotFoundError: no such file.
        ValueError: an unknown kind of file, a file that is empty or damaged or no UTF-8, a malformed line, a
            `required` column that is absent or null; the message names file, and column, line or row.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"there is no data file {path}" if not path.exists() else f"{path} is not a file")
    if path.suffix not in _READERS:
        raise ValueError(f"{path}: unknown kind of data file {path.suffix!r}: expected {', '.join(_READERS)}")
    if path.stat().st_size == 0:
        raise ValueError(f"{path} is empty: it has no rows")
    rows = _READERS[path.suffix](path, required)
    if len(rows) == 0:
        raise ValueError(f"{path} is empty: it has no rows")
    return rows


class ArrowRows:
    """Rows of a parquet or Arrow file, as a table that is memory-mapped where the format allows it."""

    def __init__(self, path: Path, required: Sequence[str] = ()) -> None:
        self._path = path
        self._required = tuple(required)
        try:
            self._table = _read_parquet(path) if path.suffix == ".parquet" else _read_arrow(path)
            self._table.validate(full=True)  # strings that are no UTF-8 would fail at their row, hours later
        except (pa.ArrowException, OSError) as error:
            raise ValueError(f"{path} cannot be read as {path.suffix}: {error}") from error
        for column in required:
            _check_present(column, self._table.column_names, str(path))
            nulls = pc.index(self._table[column].is_null(), value=True).as_py()
            if nulls >= 0:
                raise ValueError(f"{self.place(nulls)}: column {column!r} is null")

    def __len__(self) -> int:
        return int(self._table.num_rows)

    def __getitem__(self, row: int) -> Row:
        found: Row = self._table.slice(row, 1).to_pylist()[0]
        return found

    def place(self, row: int) -> str:
        return f"{self._path}, row {row}"

    def __reduce__(self) -> tuple[Callable[..., Rows], tuple[Any, ...]]:
        return open_rows, (self._path, self._required)


class JsonRows:
    """Rows of a JSON file, as written: no key of one row appears in another. Only the lines' places are kept."""

    def __init__(self, path: Path, required: Sequence[str] = ()) -> None:
        self._path = path
        self._required = tuple(required)
        self._text: bytes | mmap.mmap
        with path.open("rb") as file:
            self._text = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        self._unit = "line"
        if path.suffix == ".json" and _starts_array(self._text):
            self._unit = "row"
            self._text = _as_lines(self._text, path)
        self._starts, self._numbers = self._index_lines()

    def _index_lines(self) -> tuple[np.ndarray, np.ndarray]:
        """Start and number of each line that is not blank; every line is parsed once, to be sure of it."""
        starts, numbers = [], []
        for number, (start, line) in enumerate(_lines(self._text)):
            if line.strip():
                row = self._parse(line, number)
                for column in self._required:
                    place = self._place_of(number)
                    _check_present(column, row, place)
                    if row[column] is None:
                        raise ValueError(f"{place}: column {column!r} is null")
                starts.append(start)
                numbers.append(number)
        return np.array(starts, dtype=np.int64), np.array(numbers, dtype=np.int64)

    def __len__(self) -> int:
        return len(self._starts)

    def __getitem__(self, row: int) -> Row:
        start = int(self._starts[row])
        end = self._text.find(b"\n", start)
        return self._parse(self._text[start : end if end >= 0 else len(self._text)], int(self._numbers[row]))

    def place(self, row: int) -> str:
        return self._place_of(int(self._numbers[row]))

    def _place_of(self, number: int) -> str:
        # Lines count from 1, as in every editor; rows from 0.
        return f"{self._path}, {self._unit} {number + (self._unit == 'line')}"

    def _parse(self, line: bytes, number: int) -> Row:
        try:
            row = json.loads(line.decode())
        except UnicodeDecodeError as error:
            raise ValueError(f"{self._place_of(number)} is not UTF-8 ({error}): convert the file") from error
        except ValueError as error:
            raise ValueError(f"{self._place_of(number)} is not valid JSON: {error}") from error
        if not isinstance(row, dict):
            raise ValueError(f"{self._place_of(number)}: expected an object, found a {type(row).__name__}")
        return row

    def __reduce__(self) -> tuple[Callable[..., Rows], tuple[Any, ...]]:
        return open_rows, (self._path, self._required)


class JoinedRows:
    """The rows of several files, one file after another, each with its own columns."""

    def __init__(self, files: Sequence[Rows]) -> None:
        self._files = list(files)
        self._ends = list(accumulate(map(len, self._files)))

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def __getitem__(self, row: int) -> Row:
        rows, local = self._locate(row)
        return rows[local]

    def place(self, row: int) -> str:
        rows, local = self._locate(row)
        return rows.place(local)

    def _locate(self, row: int) -> tuple[Rows, int]:
        if not 0 <= row < len(self):
            raise IndexError(f"row {row} does not exist: there are {len(self)} rows")
        file = bisect_right(self._ends, row)
        return self._files[file], row - (self._ends[file - 1] if file else 0)


def _read_parquet(path: Path) -> pa.Table:
    # pq.read_table would take folders named key=value on the way for columns of the file.
    with pq.ParquetFile(path, memory_map=True) as file:
        return file.read()


def _read_arrow(path: Path) -> pa.Table:
    source = pa.memory_map(str(path))
    try:
        return pa.ipc.open_file(source).read_all()
    except pa.ArrowInvalid:
        source.seek(0)
        return pa.ipc.open_stream(source).read_all()


def _starts_array(text: bytes | mmap.mmap) -> bool:
    return text[:4096].removeprefix(_BOM).lstrip().startswith(b"[")


def _as_lines(text: bytes | mmap.mmap, path: Path) -> bytes:
    """A JSON array with one item a line."""
    try:
        items = json.loads(text[:].decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8 ({error}): convert the file") from error
    except ValueError as error:
        raise ValueError(f"{path} is not valid JSON: {error}") from error
    return b"\n".join(json.dumps(item).encode() for item in items)


def _lines(text: bytes | mmap.mmap) -> Iterator[tuple[int, bytes]]:
    """Start and bytes of each line, without a byte order mark."""
    start = len(_BOM) if text[: len(_BOM)] == _BOM else 0
    while start < len(text):
        end = text.find(b"\n", start)
        end = end if end >= 0 else len(text)
        yield start, text[start:end]
        start = end + 1


def _check_present(column: str, columns: Sequence[str] | Mapping[str, Any], place: str) -> None:
    if column not in columns:
        raise ValueError(
            f"{place}: there is no column {column!r}, only {', '.join(columns)} "
            "(data.prompt_key and data.reward_fn_key choose columns)"
        )


_BOM = b"\xef\xbb\xbf"

_READERS: dict[str, Callable[[Path, Sequence[str]], Rows]] = {
    ".parquet": ArrowRows,
    ".arrow": ArrowRows,
    ".jsonl": JsonRows,
    ".json": JsonRows,
}
