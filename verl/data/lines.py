"""Rows of JSON and text files."""

import json
import mmap
from array import array
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from verl.data.rows import Row, check_present, values_of

_BOM = b"\xef\xbb\xbf"


class LineRows:
    """Rows of a text file, one a line. Only the lines' places are kept in memory."""

    unit = "line"

    def __init__(self, path: Path, required: Sequence[str] = ()) -> None:
        self._path = path
        self._required = tuple(required)
        self._text: bytes | mmap.mmap
        with path.open("rb") as file:
            self._text = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        self._prepare()
        self._starts, self._numbers = self._index_lines()

    def _prepare(self) -> None:
        """Bring the text into lines, if it is not in lines yet."""

    def _row(self, text: str, number: int) -> Row:
        raise NotImplementedError

    def _index_lines(self) -> tuple[np.ndarray, np.ndarray]:
        """Start and number of each line that is not blank; every line is parsed once, to be sure of it."""
        starts, numbers = array("q"), array("q")
        for number, (start, line) in enumerate(_lines(self._text)):
            if line.strip():
                row = self._parse(line, number)
                for column in self._required:
                    place = self._place_of(number)
                    check_present(column, row, place)
                    if row[column] is None:
                        raise ValueError(f"{place}: column {column!r} is null")
                starts.append(start)
                numbers.append(number)
        return np.frombuffer(starts, dtype=np.int64), np.frombuffer(numbers, dtype=np.int64)

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
        return f"{self._path}, {self.unit} {number + (self.unit == 'line')}"

    def _parse(self, line: bytes, number: int) -> Row:
        try:
            text = line.decode()
        except UnicodeDecodeError as error:
            raise ValueError(f"{self._place_of(number)} is not UTF-8 ({error}): convert the file") from error
        return self._row(text, number)

    def columns(self, names: Sequence[str]) -> Iterator[tuple[Any, ...]]:
        return values_of(self, names)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._path, self._required)


class JsonRows(LineRows):
    """Rows of a JSON file, as written: no key of one row appears in another."""

    def _prepare(self) -> None:
        if self._path.suffix.lower() == ".json" and _starts_array(self._text):
            self.unit = "row"
            self._text = _as_lines(self._text, self._path)

    def _row(self, text: str, number: int) -> Row:
        try:
            row = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{self._place_of(number)} is not valid JSON: {error}") from error
        if not isinstance(row, dict):
            raise ValueError(f"{self._place_of(number)}: expected an object, found a {type(row).__name__}")
        return row


class TextRows(LineRows):
    """Each line that is not blank is a prompt."""

    def _row(self, text: str, number: int) -> Row:
        return {"prompt": text.removesuffix("\r")}


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
