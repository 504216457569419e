import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from verl.utils.tracking import Tracking

Run = Callable[..., list[dict[str, Any]]]


def test_rollouts_and_validations_are_dumped(
    tiny_run: Callable[..., list[str]], run_metrics: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folders = {name: tmp_path / name for name in ("rollout", "validation")}
    records = run_metrics(
        tiny_run(
            *(f"trainer.{name}_data_dir={folder}" for name, folder in folders.items()),
            "trainer.test_freq=1",
            "trainer.log_val_generations=2",
            "trainer.logger=[console,file,tensorboard]",
        )
    )
    for name, rows in (("rollout", 8), ("validation", 12)):
        assert sorted(path.name for path in folders[name].iterdir()) == ["1.jsonl", "2.jsonl"]
        lines = [json.loads(line) for line in (folders[name] / "2.jsonl").read_text().splitlines()]
        assert len(lines) == rows
        assert {"step", "input", "output", "score", "tokens", "data_source", "uid", "index", "gts"} == set(lines[0])
        assert all(line["step"] == 2 and line["input"].endswith("=") for line in lines)
        assert all(line["gts"] == str(eval(line["input"][:-1])) for line in lines)
    rollout = [json.loads(line) for line in (folders["rollout"] / "1.jsonl").read_text().splitlines()]
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
