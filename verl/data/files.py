"""Rows of data files. A file is opened and checked once, and stays compact until a row is asked for."""

from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

from verl.data.generated import GeneratedRows
from verl.data.lines import JsonRows, TextRows
from verl.data.rows import MissingColumnError, Row, Rows
from verl.data.sources import GENERATED
from verl.data.tables import ArrowRows, CsvRows

__all__ = ["JoinedRows", "Row", "Rows", "open_rows"]

_READERS: dict[str, Callable[[Path, Sequence[str]], Rows]] = {
    ".parquet": ArrowRows,
    ".arrow": ArrowRows,
    ".jsonl": JsonRows,
    ".json": JsonRows,
    ".csv": CsvRows,
    ".tsv": CsvRows,
    ".txt": TextRows,
}
_LOOKS_LIKE = {
    b"PAR1": ".parquet",
    b"ARROW1": ".arrow",
    b"\x1f\x8b": "gzip",
    b"PK\x03\x04": "zip",
    b"(\xb5/\xfd": "zstd",
}


def open_rows(path: str | Path, required: Sequence[str] | Mapping[str, str | None] = ()) -> Rows:
    """Open a data file: .parquet, .arrow (IPC file or stream), .jsonl, .json (an array of objects, or lines), .csv,
    .tsv or .txt (a prompt a line), or generated data (see `verl.data.generated`).

    Args:
        required: columns that every row must have; as a mapping, with the caller's setting that chooses each, if one
            does.

    Raises:
        FileNotFoundError: no such file.
        ValueError: an unknown kind of file, a file that is empty or damaged or no UTF-8, a malformed line, a
            `required` column that is absent or null; the message names file, and column, line or row.
    """
    try:
        return _open(path, list(required))
    except MissingColumnError as error:
        setting = required[error.column] if isinstance(required, Mapping) else None
        if setting is None:
            raise
        raise MissingColumnError(error.column, f"{error} ({setting} chooses the column)") from error


def _open(path: str | Path, required: Sequence[str]) -> Rows:
    if isinstance(path, str) and path.startswith(GENERATED):
        return GeneratedRows(path, required)
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(
            f"there is no data file {path}"
            if not path.exists()
            else f"{path} is not a file: write {path}/* for all in it"
        )
    kind = path.suffix.lower()
    if kind not in _READERS:
        raise ValueError(f"{path}: unknown kind of data file {path.suffix!r}: expected {', '.join(_READERS)}")
    if path.stat().st_size == 0:
        raise ValueError(f"{path} is empty: it has no rows")
    _check_kind(path)
    rows = _READERS[kind](path, required)
    if len(rows) == 0:
        raise ValueError(f"{path} is empty: it has no rows")
    return rows


def _check_kind(path: Path) -> None:
    """ValueError for a file whose beginning says that its name is wrong."""
    with path.open("rb") as file:
        beginning = file.read(8)
    kind = next((kind for magic, kind in _LOOKS_LIKE.items() if beginning.startswith(magic)), None)
    if kind is None or kind == path.suffix.lower():
        return
    if kind in _READERS:
        raise ValueError(f"{path} is named {path.suffix} but is a {kind} file: rename it")
    raise ValueError(f"{path} is named {path.suffix} but is compressed ({kind}): unpack it")


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

    def columns(self, names: Sequence[str]) -> Iterator[tuple[Any, ...]]:
        for rows in self._files:
            yield from rows.columns(names)

    def _locate(self, row: int) -> tuple[Rows, int]:
        if not 0 <= row < len(self):
            raise IndexError(f"row {row} does not exist: there are {len(self)} rows")
        file = bisect_right(self._ends, row)
        return self._files[file], row - (self._ends[file - 1] if file else 0)
