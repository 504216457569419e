import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

from verl import DataProto
from verl.trainer.samples import read_rows, sample_rows, write_rows
from verl.utils.tracking import Tracking

Run = Callable[..., list[dict[str, Any]]]


@pytest.mark.parametrize("dump_format", ["jsonl", "parquet"])
def test_rollouts_and_validations_are_dumped(
    tiny_run: Callable[..., list[str]],
    run_metrics: Run,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    dump_format: str,
) -> None:
    folders = {name: tmp_path / name for name in ("rollout", "validation")}
    records = run_metrics(
        tiny_run(
            *(f"trainer.{name}_data_dir={folder}" for name, folder in folders.items()),
            f"trainer.dump_format={dump_format}",
            "trainer.test_freq=1",
            "trainer.log_val_generations=2",
            "trainer.logger=[console,file,tensorboard]",
        )
    )
    for name, rows in (("rollout", 8), ("validation", 12)):
        assert sorted(path.name for path in folders[name].iterdir()) == [f"1.{dump_format}", f"2.{dump_format}"]
        lines = read_rows(folders[name] / f"2.{dump_format}")
        assert len(lines) == rows
        assert {"step", "input", "output", "score", "tokens", "data_source", "uid", "index", "gts"} == set(lines[0])
        assert all(line["step"] == 2 and line["input"].endswith("=") for line in lines)
        assert all(line["gts"] == str(eval(line["input"][:-1])) for line in lines)
    rollout = read_rows(folders["rollout"] / f"1.{dump_format}")
    mean = sum(line["score"] for line in rollout) / len(rollout)
    assert mean == pytest.approx(records[0]["reward/score_mean"], abs=1e-5)
    shown = [line for line in capsys.readouterr().out.splitlines() if "val/samples" in line]
    assert len(shown) == 4 and "input " in shown[0] and "score " in shown[0]


def test_tables_go_to_the_backends_that_can_show_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    tracking = Tracking("p", "e", ["console", "file", "tensorboard"], directory=tmp_path)
    tracking.log_table("val/samples", [{"input": "a|b\nc", "score": 0.5}, {"input": "d", "note": None}], step=3)
    tracking.log({"x": 1.0}, step=3)
    tracking.finish()
    first = capsys.readouterr().out.splitlines()[0]
    assert first.startswith("step 3 val/samples | input ") and first.endswith("| score 0.5")
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    (text,) = [tag for tag in events.Tags()["tensors"] if tag.startswith("val/samples")]
    shown = events.Tensors(text)[0].tensor_proto.string_val[0].decode()
    assert shown.splitlines() == [
        "| input | score | note |", "| --- | --- | --- |", r"| a\|b<br>c | 0.5 |  |", "| d |  |  |",
    ]  # fmt: skip
    assert [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()] == [
        {"step": 3, "x": 1.0}
    ]
    with pytest.raises(RuntimeError, match="after finish"):
        tracking.log_table("t", [{"a": 1}], step=4)


ROWS: list[dict[str, Any]] = [
    {"output": "3\u2028\x85\n", "score": 1.0, "tokens": 2, "acc": True, "pred": "7", "parts": {"a": [1]}, "n": 1},
    {"output": "سلام 👋", "score": 0.5, "tokens": 1, "acc": False, "pred": 7, "parts": {"b": {}}, "n": 0.5},
    {"output": "", "score": None, "tokens": 0, "acc": None, "pred": None, "parts": [], "n": 3},
]  # fmt: skip


@pytest.mark.parametrize("dump_format", ["jsonl", "parquet"])
def test_what_is_written_is_read_back_equal(tmp_path: Path, dump_format: Any) -> None:
    path = write_rows(str(tmp_path), 7, ROWS, dump_format)
    assert path == tmp_path / f"7.{dump_format}" and list(tmp_path.iterdir()) == [path]
    assert read_rows(path) == [{"step": 7, **row} for row in ROWS]
    write_rows(str(tmp_path), 7, ROWS[:1], dump_format)
    assert len(read_rows(path)) == 1


def test_parquet_columns_have_types_that_other_readers_know(tmp_path: Path) -> None:
    excluded = [{"score": None, "reason": None}]
    path, empty = write_rows(str(tmp_path), 1, ROWS, "parquet"), write_rows(str(tmp_path), 2, excluded, "parquet")
    assert {field.name: str(field.type) for field in pq.read_schema(path)} == {
        "step": "int64", "output": "string", "score": "double", "tokens": "int64", "acc": "bool", "pred": "string",
        "parts": "string", "n": "double",
    }  # fmt: skip
    assert pq.read_table(path)["parts"].to_pylist() == ['{"a": [1]}', '{"b": {}}', "[]"]
    assert {field.name: str(field.type) for field in pq.read_schema(empty)} == {
        "step": "int64", "score": "double", "reason": "string",
    }  # fmt: skip


@pytest.mark.parametrize("dump_format", ["jsonl", "parquet"])
def test_what_json_does_not_have_is_written_as_what_comes_nearest(tmp_path: Path, dump_format: Any) -> None:
    values = {
        "nan": float("nan"), "half": "\ud83d", "array": np.array([1.5, np.inf]), "number": np.int64(3),
        "tensor": torch.tensor([[1]]), "tuple": (1, "a"), "keys": {2: None}, "object": complex(1, 2), "big": 2**70,
    }  # fmt: skip
    assert read_rows(write_rows(str(tmp_path), 0, [values], dump_format)) == [
        {
            "step": 0, "nan": None, "half": "\\ud83d", "array": [1.5, None], "number": 3, "tensor": [[1]],
            "tuple": [1, "a"], "keys": {"2": None}, "object": "(1+2j)", "big": 2**70,
        }
    ]  # fmt: skip


def test_a_reward_function_replaces_no_column_of_the_sample(tiny_tokenizer: Any) -> None:
    """`output` among what it returned stands beside the model's output."""
    tensors = {
        "prompts": torch.tensor([[0, 7]]), "responses": torch.tensor([[8, 2]]),
        "attention_mask": torch.tensor([[0, 1, 1, 1]]), "response_mask": torch.tensor([[1, 1]]),
        "token_level_scores": torch.tensor([[0.0, 0.5]]),
    }  # fmt: skip
    extras = {name: np.array([value], dtype=object) for name, value in {"score/output": "mine", "score/acc": 1}.items()}
    assert sample_rows(DataProto.from_dict(tensors, extras), tiny_tokenizer) == [
        {"input": " ", "output": "!", "score": 0.5, "tokens": 2, "score/output": "mine", "acc": 1}
    ]
