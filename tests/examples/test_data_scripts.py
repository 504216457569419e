"""The preparation scripts on small files of the public sets' form."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from verl.config import DataConfig
from verl.data import RLHFDataset
from verl.data.files import open_rows

SCRIPTS = Path(__file__).parents[2] / "examples" / "data"


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def run(script: str, *arguments: object) -> str:
    command = [sys.executable, str(SCRIPTS / script), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stdout


def test_gsm8k(tmp_path: Path, tiny_tokenizer: Any) -> None:
    from verl.rewards import default_compute_score

    rows = [{"question": "How much is 500 + 700?", "answer": "500+700=<<500+700=1200>>1200\n#### 1,200"}]
    file = write(tmp_path / "a.jsonl", rows)
    out = run("gsm8k.py", "--train", file, "--test", file, "--out", tmp_path / "out")
    assert out.split() == [str(tmp_path / "out" / f"{split}.parquet") for split in ("train", "test")]
    dataset = RLHFDataset(tmp_path / "out" / "train.parquet", tiny_tokenizer, DataConfig())
    item = dataset[0]
    assert item["reward_model"] == {"style": "rule", "ground_truth": "1200"}
    assert default_compute_score(item["data_source"], "so #### 1200", "1200") == 1


def said(*turns: str) -> list[dict[str, str]]:
    """Messages of user and assistant in turn."""
    return [{"role": ("user", "assistant")[i % 2], "content": turn} for i, turn in enumerate(turns)]


def dialogue(*turns: str) -> str:
    return "".join(f"\n\n{('Human', 'Assistant')[i % 2]}: {turn}" for i, turn in enumerate(turns))


@pytest.mark.parametrize(
    ("row", "prompt"),
    [
        ({"chosen": dialogue("a?", "b", "c", "yes"), "rejected": dialogue("a?", "b", "c", "no")}, said("a?", "b", "c")),
        ({"prompt": "a?", "chosen": said("a?", "yes"), "rejected": said("a?", "no")}, said("a?")),
        ({"prompt": "a?", "chosen": "yes", "rejected": "no"}, said("a?")),
    ],
    ids=["dialogues", "messages", "answers"],
)
def test_preference_sets(tmp_path: Path, row: dict[str, Any], prompt: list[dict[str, str]]) -> None:
    useless = [{**row, "rejected": row["chosen"]}, {"chosen": "no turns", "rejected": "none"}]
    file = write(tmp_path / "a.jsonl", [row, *useless])
    out = run("preference_set.py", "--train", file, "--test", file, "--out", tmp_path / "out")
    assert out.splitlines()[0].endswith("train.parquet: 1 pairs, 2 rows left out")
    written = open_rows(tmp_path / "out" / "test.parquet")
    pair = {"prompt": prompt, "chosen": "yes", "rejected": "no"}
    assert written[0] == {**pair, "extra_info": {"split": "test", "index": 0}}
