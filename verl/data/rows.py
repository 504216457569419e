"""What rows of a file are, and the checks that every kind of file shares."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

Row = dict[str, Any]


class Rows(Protocol):
    """The rows of one file. Pickling sends the path: the receiver opens the file again."""

    def __len__(self) -> int: ...

    def __getitem__(self, row: int) -> Row: ...

    def place(self, row: int) -> str:
        """Where a person finds the row: file and line, or file and row (counted from 0)."""
        ...

    def columns(self, names: Sequence[str]) -> Iterator[tuple[Any, ...]]:
        """The values of these columns in every row, None where a row lacks one: faster than row by row."""
        ...


class MissingColumnError(ValueError):
    """A file, or a row of it, lacks a column. Whoever asked for the column knows which setting chooses it."""

    def __init__(self, column: str, message: str) -> None:
        super().__init__(column, message)  # both, since a copy is made of these
        self.column = column

    def __str__(self) -> str:
        return str(self.args[1])


def check_present(column: str, columns: Sequence[str] | Mapping[str, Any], place: str) -> None:
    if column not in columns:
        raise MissingColumnError(column, f"{place}: there is no column {column!r}, only {', '.join(columns)}")


def values_of(rows: "Rows", names: Sequence[str]) -> Iterator[tuple[Any, ...]]:
    """`Rows.columns` for files that are read row by row."""
    for number in range(len(rows)):
        row = rows[number]
        yield tuple(row.get(name) for name in names)
