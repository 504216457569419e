import json
import math
import subprocess
import sys
import textwrap
import types
from pathlib import Path

import numpy as np
import pytest
import torch

from verl.utils.tracking import BACKENDS, Tracking


def lines(folder: Path) -> list[dict]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def test_file_has_each_step_once_before_finish(tmp_path: Path) -> None:
    """G9: three steps, the last one with the final validation."""
    tracking = Tracking("p", "e", ["file"], directory=tmp_path)
    tracking.log({"reward/score_mean": 0.5}, step=1)
    tracking.log({"reward/score_mean": 0.75}, step=2)
    tracking.log({"reward/score_mean": 1.0, "val/arithmetic/reward/mean@1": 0.25}, step=3)
    assert [line["step"] for line in lines(tmp_path)] == [1, 2, 3]
    assert lines(tmp_path)[2] == {"step": 3, "reward/score_mean": 1.0, "val/arithmetic/reward/mean@1": 0.25}
    tracking.finish()
    tracking.finish()
    with pytest.raises(RuntimeError, match="step 4 was logged after finish"):
        tracking.log({}, step=4)


@pytest.mark.parametrize("step", [3, 2])
def test_steps_must_rise(tmp_path: Path, step: int) -> None:
    tracking = Tracking("p", "e", ["file"], directory=tmp_path)
    tracking.log({"a": 1}, step=3)
    with pytest.raises(ValueError, match=f"step {step} was logged after step 3"):
        tracking.log({"a": 2}, step=step)
    tracking.finish()
    assert lines(tmp_path) == [{"step": 3, "a": 1}]


def test_file_holds_only_json_whatever_the_values_are(tmp_path: Path) -> None:
    tracking = Tracking("p", "e", "file", directory=tmp_path)
    values = {
        "nan": math.nan,
        "inf": torch.tensor(math.inf),
        "tensor": torch.tensor(1.5),
        "array": np.float32(0.25),
        "one": np.array([7]),
        "flag": True,
        "text": "é",
        "none": None,
    }
    tracking.log(values, step=0)
    tracking.finish()
    expected = {"nan": None, "inf": None, "tensor": 1.5, "array": 0.25, "one": 7, "flag": 1, "text": "é", "none": None}
    assert lines(tmp_path) == [{"step": 0, **expected}]
    assert "NaN" not in (tmp_path / "metrics.jsonl").read_text()


@pytest.mark.parametrize(("value", "message"), [(torch.zeros(2, 3), r"shape \(2, 3\)"), ([1, 2], "'bad' is a list")])
def test_a_metric_is_one_number(tmp_path: Path, value: object, message: str) -> None:
    tracking = Tracking("p", "e", ["file"], directory=tmp_path)
    with pytest.raises(ValueError, match=message):
        tracking.log({"bad": value}, step=1)
    tracking.finish()


def test_default_directory_is_named_after_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Tracking("proj", "exp", ["file"]).finish()
    assert (tmp_path / "runs" / "proj" / "exp" / "metrics.jsonl").exists()


def test_console_shows_chosen_metrics_on_one_line(capsys: pytest.CaptureFixture) -> None:
    tracking = Tracking("p", "e", "console")
    tracking.log({"timing/gen": 1.0, "timing/step": 2.0, "reward/score_mean": 0.123456, "val/x/reward/mean@1": 0.5}, 7)
    tracking.log({"my/own": 3}, 8)
    tracking.finish()
    assert capsys.readouterr().out.splitlines() == [
        "step 7 | val/x/reward/mean@1 0.5 | reward/score_mean 0.1235 | timing/step 2",
        "step 8 | my/own 3",
    ]


def test_unknown_backend_lists_the_known_ones() -> None:
    """G9."""
    with pytest.raises(ValueError, match="unknown logger 'mlflo' in trainer.logger: choose from console, file, tens"):
        Tracking("p", "e", ["console", "mlflo"])


def test_a_failing_login_is_clear_and_closes_what_had_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """G9: a stand-in for the wandb package whose init refuses, as without an API key."""

    def init(**settings: object) -> None:
        raise PermissionError("No API key configured")

    package = types.ModuleType("wandb")
    package.init = init
    monkeypatch.setitem(sys.modules, "wandb", package)
    with pytest.raises(ValueError, match="'wandb' did not start .*No API key.*wandb login.*WANDB_MODE=offline"):
        Tracking("p", "e", ["file", "wandb"], directory=tmp_path)


def test_a_missing_package_says_how_to_install_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(ValueError, match=r"'wandb' cannot be imported .*pip install wandb"):
        Tracking("p", "e", ["wandb"], directory=tmp_path)


def test_only_named_backends_are_imported(tmp_path: Path) -> None:
    script = f"""
        import sys
        from verl.utils.tracking import Tracking
        tracking = Tracking("p", "e", ["console", "file"], directory={str(tmp_path)!r})
        tracking.log({{"a": 1.0}}, step=1)
        tracking.finish()
        assert not {{"tensorboard", "wandb", "torch", "ray", "transformers"}} & set(sys.modules)
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(script)], check=True, timeout=60)


def test_every_backend_is_documented() -> None:
    assert Tracking.__doc__ is not None
    for name in BACKENDS:
        assert f'"{name}"' in Tracking.__doc__
