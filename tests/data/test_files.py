import json
import pickle
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from verl.data.files import JoinedRows, open_rows

ROWS = [
    {"prompt": [{"role": "user", "content": "1+1?"}], "data_source": "a", "extra_info": {"index": 5}},
    {"prompt": [{"role": "user", "content": "سلام 👋"}], "data_source": "b", "extra_info": {"index": 6}},
]


def write(path: Path, rows: list[dict]) -> Path:
    table = pa.Table.from_pylist(rows)
    if path.suffix == ".parquet":
        pq.write_table(table, path)
    elif path.suffix == ".arrow":
        with pa.ipc.new_file(path, table.schema) as writer:
            writer.write_table(table)
    elif path.suffix == ".json":
        path.write_text(json.dumps(rows, indent=1))
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.mark.parametrize("name", ["a.parquet", "a.arrow", "a.jsonl", "a.json"])
def test_rows_come_back_as_written(tmp_path: Path, name: str) -> None:
    rows = open_rows(write(tmp_path / name, ROWS), ["prompt"])
    assert len(rows) == 2
    assert [rows[0], rows[1]] == ROWS
    again = pickle.loads(pickle.dumps(rows))
    assert [again[0], again[1]] == ROWS


@pytest.mark.parametrize("name", ["A.PARQUET", "A.Json", "A.JSONL"])
def test_the_case_of_an_extension_means_nothing(tmp_path: Path, name: str) -> None:
    write(tmp_path / name.lower(), ROWS).rename(tmp_path / name)
    assert open_rows(tmp_path / name)[1] == ROWS[1]
    assert open_rows(_tabs(tmp_path / "B.TSV"))[0] == {"prompt": "x", "n": "1"}


def _tabs(path: Path) -> Path:
    path.write_text("prompt\tn\nx\t1\n")
    return path


def test_arrow_stream(tmp_path: Path) -> None:
    table = pa.Table.from_pylist(ROWS)
    with pa.ipc.new_stream(tmp_path / "a.arrow", table.schema) as writer:
        writer.write_table(table)
    assert open_rows(tmp_path / "a.arrow")[1] == ROWS[1]


def test_folders_named_key_value_add_no_column(tmp_path: Path) -> None:
    folder = tmp_path / "split=train"
    folder.mkdir()
    assert open_rows(write(folder / "a.parquet", ROWS))[0] == ROWS[0]


def test_json_rows_keep_their_own_nested_keys(tmp_path: Path) -> None:
    """F5: two lines with different nested keys."""
    path = tmp_path / "a.jsonl"
    path.write_text(
        '{"prompt": "x", "extra_info": {"a": 1}}\n{"prompt": "y", "extra_info": {"b": {"c": [2]}}, "z": 0}\n'
    )
    rows = open_rows(path, ["prompt"])
    assert rows[0] == {"prompt": "x", "extra_info": {"a": 1}}
    assert rows[1] == {"prompt": "y", "extra_info": {"b": {"c": [2]}}, "z": 0}


def test_json_lines_with_bom_crlf_blank_lines_and_no_last_newline(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_bytes(b'\xef\xbb\xbf{"prompt": "x"}\r\n\r\n{"prompt": "\xc3\xa9"}')
    rows = open_rows(path)
    assert [rows[i] for i in range(len(rows))] == [{"prompt": "x"}, {"prompt": "é"}]
    assert rows.place(1) == f"{path}, line 3"


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.jsonl", b"", "a.jsonl is empty"),
        ("a.jsonl", b"\n \n", "a.jsonl is empty"),
        ("a.json", b"[]", "a.json is empty"),
        ("a.parquet", b"", "a.parquet is empty"),
        ("a.jsonl", b'{"prompt": "x"}\n{"prompt": \n', "a.jsonl, line 2 is not valid JSON"),
        ("a.json", b'[{"prompt": "x"},', "a.json is not valid JSON"),
        ("a.jsonl", b'{"prompt": "x"}\n\n{"prompt": "\xff"}\n', "a.jsonl, line 3 is not UTF-8"),
        ("a.json", b'[{"prompt": "\xff"}]', "a.json is not UTF-8"),
        ("a.jsonl", b'{"prompt": "x"}\n["prompt"]\n', "a.jsonl, line 2: expected an object, found a list"),
        ("a.jsonl", b'{"prompt": "x"}\n{"q": 1, "r": 2}\n', "line 2: there is no column 'prompt', only q, r"),
        ("a.jsonl", b'{"prompt": "x"}\n{"prompt": null}\n', "a.jsonl, line 2: column 'prompt' is null"),
        ("a.json", b'[{"prompt": "x"}, {"prompt": null}]', "a.json, row 1: column 'prompt' is null"),
        ("a.parquet", b"PAR1 and nothing more", "a.parquet cannot be read as .parquet"),
        ("a.arrow", b'{"prompt": "x"}\n', "a.arrow cannot be read as .arrow"),
        ("a.xlsx", b"x", "unknown kind of data file '.xlsx': expected .parquet"),
        ("a", b"x", "unknown kind of data file ''"),
    ],
)
def test_a_bad_file_is_named_with_its_line(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    """F5: missing column, empty file, non-UTF-8 file."""
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError) as caught:
        open_rows(tmp_path / name, ["prompt"])
    assert message in str(caught.value)
    assert name in str(caught.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="there is no data file .*nothing.parquet"):
        open_rows(tmp_path / "nothing.parquet")
    with pytest.raises(FileNotFoundError, match="is not a file"):
        open_rows(tmp_path)


def test_a_truncated_parquet_file(tmp_path: Path) -> None:
    path = write(tmp_path / "a.parquet", ROWS)
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(ValueError, match="a.parquet cannot be read as .parquet"):
        open_rows(path)


def test_parquet_columns_rows_and_text_are_checked(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"prompt": ["x", "y", None], "n": [1, 2, 3]}), path)
    with pytest.raises(ValueError, match="a.parquet, row 2: column 'prompt' is null"):
        open_rows(path, ["prompt"])
    for required in (["question"], {"question": None}):
        with pytest.raises(ValueError, match="a.parquet: there is no column 'question', only prompt, n$"):
            open_rows(path, required)
    with pytest.raises(ValueError, match=r"no column 'question', only prompt, n \(its_key chooses the column\)"):
        open_rows(path, {"n": "other_key", "question": "its_key"})
    pq.write_table(pa.table({"prompt": pa.array([b"x", b"\xff"]).view(pa.string())}), path)
    with pytest.raises(ValueError, match="a.parquet cannot be read as .parquet: .*UTF8"):
        open_rows(path, ["prompt"])
    pq.write_table(pa.table({"prompt": pa.array([], pa.string())}), path)
    with pytest.raises(ValueError, match="a.parquet is empty"):
        open_rows(path, ["prompt"])


def test_joined_rows_know_their_file(tmp_path: Path) -> None:
    first = write(tmp_path / "a.parquet", [{"prompt": "0"}, {"prompt": "1"}])
    second = write(tmp_path / "b.jsonl", [{"prompt": "2", "more": 1}])
    rows = JoinedRows([open_rows(first), open_rows(second), open_rows(first)])
    assert len(rows) == 5
    assert [rows[i]["prompt"] for i in range(5)] == ["0", "1", "2", "0", "1"]
    assert rows[2] == {"prompt": "2", "more": 1}
    assert (rows.place(1), rows.place(2), rows.place(3)) == (f"{first}, row 1", f"{second}, line 1", f"{first}, row 0")
    with pytest.raises(IndexError, match="row 5 does not exist: there are 5 rows"):
        rows[5]
