"""The examples of single algorithms, run at tiny size; each is short enough to be read at a glance."""

import importlib
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from verl.config.loader import load_config
from verl.config.presets import PRESETS
from verl.config.tree import value_at

EXAMPLES = Path(__file__).parents[2] / "examples"
OFFLINE = ("sft", "reward_model", "dpo", "kto")
ONLINE = ("grpo", "dapo")


@pytest.fixture
def examples_importable(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The folder on the path, as when its scripts are run; what they import from there is forgotten afterwards."""
    before = set(sys.modules)
    monkeypatch.syspath_prepend(str(EXAMPLES))
    yield
    for name in set(sys.modules) - before:
        if str(EXAMPLES) in str(getattr(sys.modules[name], "__file__", None)):
            del sys.modules[name]


@pytest.fixture
def main(examples_importable: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., dict[str, float]]:
    """`main(name, "key=value", ...)` runs an example in this process and in a folder of its own."""
    monkeypatch.chdir(tmp_path)

    def run(name: str, *overrides: str) -> dict[str, float]:
        common = ["trainer.total_training_steps=2", "trainer.worker_group=local", "trainer.logger=[file]"]
        return importlib.import_module(name).main([*common, *overrides])

    return run


@pytest.mark.parametrize("name", OFFLINE)
def test_it_trains_on_rows(main: Callable[..., Any], name: str, tiny_model_dir: Path, tmp_path: Path) -> None:
    section = "model" if name in ("sft", "reward_model") else "actor_rollout_ref.model"
    overrides = [f"{section}.path={tiny_model_dir}", "data.train_batch_size=4", "data.val_max_samples=4"]
    assert main(name, *overrides)["val/loss"] > 0
    assert (tmp_path / "outputs" / name / "global_step_2").is_dir()


@pytest.mark.parametrize("name", ONLINE)
def test_it_trains_on_samples(
    main: Callable[..., Any], name: str, tiny_model_dir: Path, sums_file: Path, letters_reward: Path, tmp_path: Path
) -> None:
    final = main(
        name,
        f"actor_rollout_ref.model.path={tiny_model_dir}",
        f"data.train_files={sums_file}",
        f"data.val_files={sums_file}",
        f"reward.custom_reward_function.path={letters_reward}",
        "data.train_batch_size=4",
        "actor_rollout_ref.actor.ppo_mini_batch_size=2",
        "actor_rollout_ref.rollout.name=hf",
        "actor_rollout_ref.rollout.stop_token_ids=[7]",
    )
    assert "val/arithmetic/reward/mean@1" in final
    lines = (tmp_path / "outputs" / f"{name}_arithmetic" / "metrics.jsonl").read_text().splitlines()
    last = json.loads(lines[-1])
    assert last["step"] == 2 and "critic/vf_loss" not in last
    assert ("actor/kl_loss" in last) == (name == "grpo")
    assert ("filter_groups/tried_prompts" in last and "reward/overlong_mean" in last) == (name == "dapo")


@pytest.mark.usefixtures("examples_importable")
def test_dapo_writes_out_what_its_name_sets() -> None:
    preset = {**PRESETS["dapo"], "algorithm.name": "dapo"}
    written = load_config(importlib.import_module("dapo").DEFAULTS)
    for key, value in preset.items():
        assert value_at(written, key) == value, key


@pytest.mark.parametrize("name", OFFLINE + ONLINE)
def test_it_is_short(name: str) -> None:
    assert len((EXAMPLES / f"{name}.py").read_text().splitlines()) < 60


@pytest.mark.parametrize("name", OFFLINE + ONLINE)
def test_a_file_wins_over_the_example_and_the_command_line_over_the_file(
    main: Callable[..., Any], name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine.yaml").write_text("data: {train_batch_size: 6}\ntrainer: {project_name: mine, seed: 5}\n")
    assert main(name, "trainer.seed=7", "--config", "mine.yaml", "--dry-run", "data.train_batch_size=8") == {}
    shown = OmegaConf.create(capsys.readouterr().out)
    assert (shown.trainer.project_name, shown.trainer.seed, shown.data.train_batch_size) == ("mine", 7, 8)
    assert not (tmp_path / "outputs").exists()  # nothing is prepared for a look


def test_data_of_ones_own_to_train_on_need_data_of_ones_own_to_validate_on(
    main: Callable[..., Any], tiny_model_dir: Path, sums_file: Path
) -> None:
    keys = [f"actor_rollout_ref.model.path={tiny_model_dir}", f"data.train_files={sums_file}"]
    with pytest.raises(ValueError, match="and one of them is the example's own: set both"):
        main("grpo", *keys)
