"""What a user may name as data: globs, URLs, generators, and files that are not what they are called."""

import csv
import json
import os
import pickle
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from verl.config import DataConfig
from verl.data import RLHFDataset
from verl.data import tables as tables_module
from verl.data.files import open_rows
from verl.data.sources import cache_folder, local_files


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("VERL_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


def jsonl(path: Path, prompts: list[str]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps({"prompt": prompt}) + "\n" for prompt in prompts))
    return path


def test_globs_are_sorted_and_must_fit_something(tmp_path: Path) -> None:
    files = [jsonl(tmp_path / name, ["x"]) for name in ("b.jsonl", "a.jsonl", "deep/c.jsonl")]
    assert local_files(f"{tmp_path}/*.jsonl") == [files[1], files[0]]
    assert local_files([f"{tmp_path}/**/*.jsonl"]) == [files[1], files[0], files[2]]
    odd = jsonl(tmp_path / "odd[1].jsonl", ["x"])
    assert local_files(odd) == [odd]
    with pytest.raises(FileNotFoundError, match=r"no file fits .*\*.parquet"):
        local_files(f"{tmp_path}/*.parquet")
    with pytest.raises(FileNotFoundError, match=r"is not a file: write .*/\* for all in it"):
        open_rows(tmp_path)
    with pytest.raises(ValueError, match="no data file is given"):
        local_files([])


def test_urls_are_downloaded_once_and_again_when_they_change(own_cache: Path) -> None:
    import fsspec

    memory = fsspec.filesystem("memory")
    with memory.open("/data/a.jsonl", "w") as file:
        file.write('{"prompt": "one"}\n')
    (first,) = local_files("memory://data/a.jsonl")
    assert open_rows(first)[0] == {"prompt": "one"}
    assert Path(first).is_relative_to(own_cache) and cache_folder() == own_cache
    assert local_files("memory://data/*.jsonl") != []
    stamp = os.stat(first).st_mtime_ns
    assert (local_files("memory://data/a.jsonl"), os.stat(first).st_mtime_ns) == ([first], stamp)
    with memory.open("/data/a.jsonl", "w") as file:
        file.write('{"prompt": "other"}\n')
    assert open_rows(local_files("memory://data/a.jsonl")[0])[0] == {"prompt": "other"}
    with pytest.raises(FileNotFoundError, match="there is no file memory://data/gone.jsonl"):
        local_files("memory://data/gone.jsonl")
    with pytest.raises(ValueError, match="nosuch://x/y.jsonl cannot be read: Protocol not known"):
        local_files("nosuch://x/y.jsonl")
    memory.rm("/data", recursive=True)


class Answers(SimpleHTTPRequestHandler):
    """Serves the folder `directory`, and writes down what was fetched from it; `plain` leaves out dates and sizes."""

    plain = False
    fetched: list[str]

    def do_GET(self) -> None:
        self.fetched.append(self.path)
        super().do_GET()

    def send_header(self, keyword: str, value: str) -> None:
        if not (self.plain and keyword in ("Last-Modified", "Content-Length")):
            super().send_header(keyword, value)

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing on the console."""


@contextmanager
def serving(folder: Path, **attributes: Any) -> Iterator[tuple[str, list[str]]]:
    """The URL of `folder`, and the list of what is fetched from there."""
    fetched: list[str] = []
    handler = type("Handler", (Answers,), {"fetched": fetched, **attributes})
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(handler, directory=str(folder))) as server:
        thread = Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", fetched
        finally:
            server.shutdown()
            thread.join(timeout=10)


def age(path: Path, seconds: int) -> None:
    """Dates in HTTP have whole seconds."""
    os.utime(path, (1_700_000_000 + seconds, 1_700_000_000 + seconds))


def test_a_file_behind_http_is_fetched_again_when_it_has_changed(tmp_path: Path) -> None:
    pytest.importorskip("aiohttp", reason="fsspec reads http with aiohttp")
    path = jsonl(tmp_path / "web" / "a.jsonl", ["one"])
    age(path, 0)
    with serving(path.parent) as (url, fetched):
        (first,) = local_files(f"{url}/a.jsonl")
        stamp = os.stat(first).st_mtime_ns
        before = len(fetched)
        assert local_files(f"{url}/a.jsonl") == [first] and os.stat(first).st_mtime_ns == stamp
        per_look = len(fetched) - before  # fsspec asks whether there is one
        jsonl(path, ["two"])  # of the same size
        age(path, 1)
        assert open_rows(local_files(f"{url}/a.jsonl")[0])[0] == {"prompt": "two"}
        assert len(fetched) == before + 2 * per_look + 1
        jsonl(path, ["three"])  # of the same date
        age(path, 1)
        assert open_rows(local_files(f"{url}/a.jsonl")[0])[0] == {"prompt": "three"}
        assert open_rows(first)[0] == {"prompt": "one"}


def test_a_server_that_tells_nothing_of_its_files_is_asked_each_time(tmp_path: Path) -> None:
    pytest.importorskip("aiohttp", reason="fsspec reads http with aiohttp")
    path = jsonl(tmp_path / "web" / "a.jsonl", ["one"])
    with serving(path.parent, plain=True) as (url, _):
        for prompt in ("one", "two"):
            jsonl(path, [prompt])
            assert open_rows(local_files(f"{url}/a.jsonl")[0])[0] == {"prompt": prompt}


def test_a_file_url_and_a_dataset_of_it(tmp_path: Path, tiny_tokenizer: Any) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"prompt": "x", "data_source": "s"}\n')
    assert len(RLHFDataset(f"file://{path}", tiny_tokenizer, DataConfig())) == 1


CSV = 'prompt,data_source,reward_model.ground_truth,extra_info.index,note\n"a, ""b""\nc",s,007,3,\nسلام 👋,s,1.0,4,x\n'


@pytest.mark.parametrize("start", [b"", b"\xef\xbb\xbf"])
@pytest.mark.parametrize("ends", ["\n", "\r\n"])
def test_csv(tmp_path: Path, start: bytes, ends: str) -> None:
    """BOM and CRLF; quotes, commas and line ends in a cell; values stay text; dots make dicts."""
    path = tmp_path / "a.csv"
    path.write_bytes(start + CSV.replace("\n", ends).encode())
    rows = open_rows(path, ["prompt", "reward_model"])
    assert [rows[0], rows[1]] == [
        {"prompt": f'a, "b"{ends}c', "data_source": "s", "reward_model": {"ground_truth": "007"},
         "extra_info": {"index": "3"}, "note": ""},
        {"prompt": "سلام 👋", "data_source": "s", "reward_model": {"ground_truth": "1.0"},
         "extra_info": {"index": "4"}, "note": "x"},
    ]  # fmt: skip
    assert list(rows.columns(["note", "gone"])) == [("", None), ("x", None)]
    assert pickle.loads(pickle.dumps(rows))[1] == rows[1]


def test_csv_cells_that_are_objects(tmp_path: Path) -> None:
    path = tmp_path / "a.tsv"
    chat = [{"role": "user", "content": "x"}]
    with path.open("w", newline="") as file:
        writer = csv.writer(file, delimiter="\t")
        writer.writerows([["prompt", "reward_model"], [json.dumps(chat), '{"ground_truth": 1}'], ["[1, 2]", "{oops"]])
    rows = open_rows(path)
    assert rows[0] == {"prompt": chat, "reward_model": {"ground_truth": 1}}
    assert rows[1] == {"prompt": "[1, 2]", "reward_model": "{oops"}


def test_text_files_have_a_prompt_a_line(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes("\ufeffone\r\n\r\n  two words \r\nlast".encode())
    rows = open_rows(path, ["prompt"])
    assert [rows[i]["prompt"] for i in range(len(rows))] == ["one", "  two words ", "last"]
    assert rows.place(2) == f"{path}, line 4"


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.csv", b"prompt,x\n1,2\n3\n", "a.csv cannot be read as .csv: .*Expected 2 columns, got 1"),
        ("a.csv", b"prompt\nok\n\xff\xfe\n", "a.csv, line 3 is not UTF-8"),
        ("a.csv", b"prompt,prompt\n1,2\n", r"the header has \['prompt'\] more than once"),
        ("a.csv", b"question\nx\n", "no column 'prompt', only question"),
        ("a.csv", b"prompt,x\n,2\n", "row 0: column 'prompt' is empty"),
        ("a.csv", b"prompt\n", "a.csv is empty"),
        ("a.txt", b"\xff\n", "a.txt, line 1 is not UTF-8"),
        ("a.txt", b" \n\n", "a.txt is empty"),
        ("a.jsonl", b"PAR1....", "named .jsonl but is a .parquet file: rename it"),
        ("a.parquet", b"ARROW1\0\0", "named .parquet but is a .arrow file: rename it"),
        ("a.json", b"\x1f\x8b\x08", r"named .json but is compressed \(gzip\): unpack it"),
        ("a.jsonl", "{}\n".encode("utf-16"), "a.jsonl, line 1 is not UTF-8"),
        ("a.jsonl", b"[" * 100_000 + b"\n", "a.jsonl, line 1 is not valid JSON"),
        ("a.parquet", b'{"prompt": "x"}\n', "a.parquet cannot be read as .parquet"),
    ],
)  # fmt: skip
def test_files_that_are_not_what_they_should_be(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    """F5 and its kind."""
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=message):
        open_rows(tmp_path / name, ["prompt"])


def test_a_line_of_100_megabytes(tmp_path: Path) -> None:
    """It is read with less than 1 GiB of memory in all (360 MiB when this was written)."""
    path = tmp_path / "a.jsonl"
    path.write_text('{"prompt": "' + "x" * 100_000_000 + '"}\n{"prompt": "y"}\n')
    code = (
        "from verl.data.files import open_rows\n"
        f"rows = open_rows({str(path)!r}, ['prompt'])\n"
        "print(len(rows), len(rows[0]['prompt']), rows[1]['prompt'])\n"
        "status = open('/proc/self/status').read()\n"  # ru_maxrss would begin with what this process has
        "print(status.partition('VmHWM:')[2].split()[0])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    path.unlink()  # pytest would keep it for three runs
    found, kibibytes = done.stdout.splitlines()
    assert found == "2 100000000 y"
    assert int(kibibytes) < 1 << 20


def test_one_long_line_of_each_kind(tmp_path: Path) -> None:
    text = "x" * 8_000_000
    for name, content in (("a.jsonl", f'{{"prompt": "{text}"}}\n'), ("a.csv", f"prompt\n{text}\n"), ("a.txt", text)):
        (tmp_path / name).write_text(content)
        assert len(open_rows(tmp_path / name, ["prompt"])[0]["prompt"]) == 8_000_000


def test_big_tables_are_mapped_from_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own_cache: Path) -> None:
    monkeypatch.setattr(tables_module, "MAPPED_FROM_BYTES", 100)
    prompts = [f"prompt {number}" for number in range(1000)]
    pq.write_table(pa.table({"prompt": prompts, "n": range(1000)}), tmp_path / "a.parquet", row_group_size=300)
    (tmp_path / "b.csv").write_text("prompt,n\n" + "".join(f"{prompt},{n}\n" for n, prompt in enumerate(prompts)))
    for name, kind in (("a.parquet", int), ("b.csv", str)):
        for _ in range(2):
            rows = open_rows(tmp_path / name, ["prompt"])
            assert rows[777] == {"prompt": "prompt 777", "n": kind(777)}
            assert [value for (value,) in rows.columns(["prompt"])] == prompts
    assert len(list(own_cache.glob("*.arrow"))) == 2
    pq.write_table(pa.table({"prompt": ["new"] * 1000}), tmp_path / "a.parquet")
    assert open_rows(tmp_path / "a.parquet")[0] == {"prompt": "new"}
    assert not list(own_cache.glob("*.part"))


def test_generated_prompts_name_the_package_that_they_need(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "reasoning_gym", None)  # which an import takes for not installed
    with pytest.raises(ValueError, match="chain_sum needs the package reasoning-gym: pip install reasoning-gym$"):
        open_rows("reasoning_gym:chain_sum")


def test_generated_prompts(tiny_tokenizer: Any) -> None:
    pytest.importorskip("reasoning_gym", reason="the package reasoning-gym is not installed")
    from verl.rewards import default_compute_score

    name = "reasoning_gym:chain_sum?size=5&seed=1&max_terms=3"
    rows = open_rows(name, ["prompt", "data_source", "reward_model"])
    assert len(rows) == 5
    row = rows[2]
    assert row["data_source"] == "reasoning_gym/chain_sum"
    assert pickle.loads(pickle.dumps(rows))[2] == row == open_rows(name)[2] != open_rows(name.replace("=1", "=2"))[2]
    answer = row["reward_model"]["ground_truth"]

    def score(text: str) -> Any:
        return default_compute_score(row["data_source"], text, answer, row["extra_info"])

    assert (score(f"<answer>{answer}</answer>"), score(answer), score("no")) == (1, 1, 0)
    dataset = RLHFDataset(name, tiny_tokenizer, DataConfig(max_prompt_length=400))
    assert dataset[2]["index"] == 2
    for wrong, message in [
        ("reasoning_gym:nope", "reasoning_gym:nope: Dataset 'nope' not registered"),
        ("reasoning_gym:chain_sum?sise=3", "unexpected keyword argument 'sise'"),
    ]:
        with pytest.raises(ValueError, match=message):
            open_rows(wrong)
