"""Files whose rows may be written in several ways, and which of their rows are used."""

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tqdm import tqdm

from verl.data.files import JoinedRows, open_rows
from verl.data.prompts import located
from verl.data.sources import Files, local_files

logger = logging.getLogger(__name__)

DataFiles = Files


def open_with_columns(files: DataFiles, ways: Sequence[Mapping[str, str]]) -> JoinedRows:
    """The rows of all files. In each file, every row has the columns of the first way that the file's first row fits.
    A way is columns, each with the key that chooses it.

    FileNotFoundError or ValueError as `open_rows`, and ValueError for a file that fits no way.
    """
    opened = []
    for path in local_files(files):
        first = open_rows(path)[0]
        fitting = next((way for way in ways if all(first.get(column) is not None for column in way)), None)
        if fitting is None:
            found = ", ".join(f"{column} (null)" if value is None else column for column, value in first.items())
            wanted = " or ".join(", ".join(way) for way in ways)
            keys = ", ".join(key for way in ways for key in way.values())
            raise ValueError(f"{path} has the columns {found}: expected {wanted} (chosen by {keys})")
        opened.append(open_rows(path, fitting))
    return JoinedRows(opened)


class RowTooLongError(ValueError):
    """A row has more tokens than the config allows, and may not be cut."""


def short_enough(rows: JoinedRows, count: int, read: Callable[[int], Any]) -> list[int]:
    """Which of the first `count` rows `read` does not find too long (RowTooLongError); the log tells how many are.

    ValueError, with its place, for a row with another fault, and when none is left.
    """
    kept = []
    for number in tqdm(range(count), desc="measuring rows", unit="row", disable=count < 10_000, leave=False):
        with located(rows.place(number)):
            try:
                read(number)
            except RowTooLongError as error:
                last = error
                continue
        kept.append(number)
    if not kept:
        raise ValueError(f"all {count} rows, the first being {rows.place(0)}, are too long: {last}")
    if len(kept) < count:
        logger.warning("dropped %d of %d rows that are too long (the last one: %s)", count - len(kept), count, last)
    return kept
