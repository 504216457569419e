"""Files whose rows may be written in several ways, told apart by the columns of the first row."""

from collections.abc import Sequence

from verl.data.files import JoinedRows, open_rows
from verl.data.sources import Files, local_files

DataFiles = Files


def open_with_columns(files: DataFiles, ways: Sequence[Sequence[str]]) -> JoinedRows:
    """The rows of all files. In each file, every row has the columns of the first way that the file's first row fits.

    FileNotFoundError or ValueError as `open_rows`, and ValueError for a file that fits no way.
    """
    opened = []
    for path in local_files(files):
        first = open_rows(path)[0]
        fitting = next((way for way in ways if all(first.get(column) is not None for column in way)), None)
        if fitting is None:
            wanted = " or ".join(", ".join(way) for way in ways)
            raise ValueError(f"{path} has the columns {', '.join(first)}: expected {wanted} (data.*_key name columns)")
        opened.append(open_rows(path, list(fitting)))
    return JoinedRows(opened)
