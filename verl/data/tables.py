"""Rows of parquet, Arrow and CSV files. Big ones are mapped into memory and not read into it."""

import hashlib
import json
import os
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv
import pyarrow.parquet as pq

from verl.data.rows import Row, check_present
from verl.data.sources import cache_folder

MAPPED_FROM_BYTES = 64 << 20
"""Files of more bytes than this, uncompressed, are written once as an Arrow file into the cache, and mapped."""
_ROWS_AT_ONCE = 4096
_CSV_BLOCK = 64 << 20


class ArrowRows:
    """Rows of a table: a parquet or Arrow file."""

    def __init__(self, path: Path, required: Sequence[str] = ()) -> None:
        self._path = path
        self._required = tuple(required)
        try:
            self._table = self._read()
        except (pa.ArrowException, OSError) as error:
            raise ValueError(f"{path} cannot be read as {path.suffix}: {error}") from error
        for column in required:
            self._check(column)

    def _read(self) -> pa.Table:
        if self._path.suffix.lower() == ".parquet":
            return _read_parquet(self._path)
        table = _map_arrow(self._path)
        table.validate(full=True)  # strings that are no UTF-8 would fail at their row, hours later
        return table

    def _check(self, column: str) -> None:
        check_present(column, self._table.column_names, str(self._path))
        if self._table[column].null_count:
            first = pc.index(self._table[column].is_null(), value=True).as_py()
            raise ValueError(f"{self.place(first)}: column {column!r} is null")

    def __len__(self) -> int:
        return int(self._table.num_rows)

    def __getitem__(self, row: int) -> Row:
        found: Row = self._table.slice(row, 1).to_pylist()[0]
        return found

    def columns(self, names: Sequence[str]) -> Iterator[tuple[Any, ...]]:
        known = [name for name in names if name in self._table.column_names]
        chosen = self._table.select(known)
        for start in range(0, len(self), _ROWS_AT_ONCE):
            part = chosen.slice(start, _ROWS_AT_ONCE)
            lists = {name: part[name].to_pylist() for name in known}
            yield from zip(*(lists.get(name, [None] * part.num_rows) for name in names), strict=True)

    def place(self, row: int) -> str:
        return f"{self._path}, row {row}"

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._path, self._required)


class CsvRows(ArrowRows):
    """Rows of a CSV file (commas) or TSV file (tabs) with a header. Every value is the text that stands there, so that
    the answer "007" stays what it is, but for two things that a table cannot hold otherwise: a column `a.b` is the key
    `b` of a dict `a`, and text that is a JSON object or a JSON list of objects is that."""

    def _read(self) -> pa.Table:
        return _read_csv(self._path)

    def _check(self, column: str) -> None:
        names = [name for name in self._table.column_names if name == column or name.startswith(f"{column}.")]
        check_present(column, [column] if names else self._table.column_names, str(self._path))
        for name in names if column in names else ():
            empty = pc.index(pc.equal(self._table[name], ""), value=True).as_py()
            if empty >= 0:
                raise ValueError(f"{self.place(empty)}: column {column!r} is empty")

    def __getitem__(self, row: int) -> Row:
        return _nested(super().__getitem__(row))

    def columns(self, names: Sequence[str]) -> Iterator[tuple[Any, ...]]:
        for number in range(len(self)):
            row = self[number]
            yield tuple(row.get(name) for name in names)


def _nested(row: Row) -> Row:
    found: Row = {}
    for name, text in row.items():
        section, dot, key = name.partition(".")
        if dot:
            found.setdefault(section, {})[key] = text
        else:
            found[name] = _structured(text)
    return found


def _structured(text: str) -> Any:
    if not text.startswith(("{", "[")):
        return text
    try:
        value = json.loads(text)
    except ValueError:
        return text
    objects = value if isinstance(value, list) else [value]
    return value if objects and all(isinstance(item, dict) for item in objects) else text


def _read_parquet(path: Path) -> pa.Table:
    # pq.read_table would take folders named key=value on the way for columns of the file.
    with pq.ParquetFile(path, memory_map=True) as file:
        groups = range(file.metadata.num_row_groups)
        if sum(file.metadata.row_group(group).total_byte_size for group in groups) < MAPPED_FROM_BYTES:
            table = file.read()
            table.validate(full=True)
            return table
        return _mapped(path, file.schema_arrow, file.iter_batches())


def _read_csv(path: Path) -> pa.Table:
    size = path.stat().st_size
    parsing = pacsv.ParseOptions(delimiter="\t" if path.suffix.lower() == ".tsv" else ",", newlines_in_values=True)
    reading = pacsv.ReadOptions(block_size=size + 1 if size < MAPPED_FROM_BYTES else _CSV_BLOCK)
    with path.open("rb") as file:
        header = file.readline(1 << 20)
    names = pacsv.read_csv(pa.py_buffer(header), parse_options=parsing).column_names
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ValueError(f"{path}: the header has {twice} more than once")
    converting = pacsv.ConvertOptions(column_types=dict.fromkeys(names, pa.string()), strings_can_be_null=False)
    try:
        if size < MAPPED_FROM_BYTES:
            return pacsv.read_csv(path, reading, parsing, converting)
        with pacsv.open_csv(path, reading, parsing, converting) as stream:
            return _mapped(path, stream.schema, stream)
    except pa.ArrowInvalid as error:
        line = _first_line_not_utf8(path)
        if line is None:
            raise
        raise ValueError(f"{path}, line {line} is not UTF-8: convert the file") from error


def _first_line_not_utf8(path: Path) -> int | None:
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            try:
                line.decode()
            except UnicodeDecodeError:
                return number
    return None


def _mapped(path: Path, schema: pa.Schema, batches: Any) -> pa.Table:
    """The file's rows from an Arrow file in the cache, which is written when it is not there."""
    state = path.stat()
    key = hashlib.sha256(f"{path.resolve()} {state.st_size} {state.st_mtime_ns}".encode()).hexdigest()[:24]
    target = cache_folder() / f"{path.stem}-{key}.arrow"
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=target.parent, suffix=".part")
        os.close(handle)
        try:
            with pa.OSFile(name, "wb") as sink, pa.ipc.new_file(sink, schema) as writer:
                for batch in batches:
                    batch.validate(full=True)
                    writer.write_batch(batch)
            os.replace(name, target)  # at once, so that another process never sees half a file
        finally:
            Path(name).unlink(missing_ok=True)
    return _map_arrow(target)


def _map_arrow(path: Path) -> pa.Table:
    source = pa.memory_map(str(path))
    try:
        return pa.ipc.open_file(source).read_all()
    except pa.ArrowInvalid:
        source.seek(0)
        return pa.ipc.open_stream(source).read_all()
