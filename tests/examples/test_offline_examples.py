"""The examples without rollouts, run at tiny size; each is short enough to be read at a glance."""

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
NAMES = ("sft", "reward_model", "dpo", "kto")


@pytest.fixture
def examples_importable(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The folder on the path, as when its scripts are run; what they import from there is forgotten afterwards."""
    before = set(sys.modules)
    monkeypatch.syspath_prepend(str(EXAMPLES))
    yield
    for name in set(sys.modules) - before:
        if str(EXAMPLES) in str(getattr(sys.modules[name], "__file__", None)):
            del sys.modules[name]


@pytest.mark.usefixtures("examples_importable")
@pytest.mark.parametrize("name", NAMES)
def test_it_trains(name: str, tiny_model_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    section = "model" if name in ("sft", "reward_model") else "actor_rollout_ref.model"
    metrics = importlib.import_module(name).main(
        [
            f"{section}.path={tiny_model_dir}",
            "data.train_batch_size=4",
            "data.val_max_samples=4",
            "trainer.total_training_steps=2",
            "trainer.worker_group=local",
            "trainer.logger=[file]",
        ]
    )
    assert metrics["val/loss"] > 0
    assert (tmp_path / "outputs" / name / "global_step_2").is_dir()


@pytest.mark.parametrize("name", NAMES)
def test_it_is_short(name: str) -> None:
    assert len((EXAMPLES / f"{name}.py").read_text().splitlines()) < 60
