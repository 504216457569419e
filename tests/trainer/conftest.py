"""A tiny PPO run: random Llama, sums as raw prompts, everything on disk."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest


@pytest.fixture(scope="session")
def sums_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """12 sums of one digit each, as the field's data sets have them."""
    rows = [
        {
            "data_source": "arithmetic",
            "prompt": f"{a}+{b}=",
            "reward_model": {"style": "rule", "ground_truth": str(a + b)},
            "extra_info": {"index": index},
        }
        for index, (a, b) in enumerate((a, b) for a in range(1, 4) for b in range(1, 5))
    ]
    path = tmp_path_factory.mktemp("sums") / "sums.parquet"
    pq.write_table(pa.Table.from_pylist(rows), path)
    return path


@pytest.fixture(scope="session")
def letters_reward(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file with a rule that a random model satisfies now and then, so that there is something to learn from."""
    path = tmp_path_factory.mktemp("reward") / "letters.py"
    path.write_text(
        "def compute_score(data_source, solution_str, ground_truth, extra_info):\n"
        "    return sum(character.isalpha() for character in solution_str) / 5\n"
    )
    return path


@pytest.fixture
def tiny_run(tiny_model_dir: Path, sums_file: Path, letters_reward: Path, tmp_path: Path) -> Callable[..., list[str]]:
    """`tiny_run("key=value", ...)` -> overrides of a run of 2 steps in this process; the given ones win."""

    def overrides(*extra: str) -> list[str]:
        return [
            f"actor_rollout_ref.model.path={tiny_model_dir}",
            f"data.train_files={sums_file}",
            f"data.val_files={sums_file}",
            "data.train_batch_size=4",
            "data.max_prompt_length=8",
            "data.max_response_length=5",
            "actor_rollout_ref.rollout.n=2",
            "actor_rollout_ref.actor.ppo_mini_batch_size=2",
            "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=3",
            "actor_rollout_ref.actor.optim.lr=1e-3",
            "critic.optim.lr=1e-3",
            "algorithm.use_kl_in_reward=true",
            f"reward.custom_reward_function.path={letters_reward}",
            "trainer.total_training_steps=2",
            "trainer.val_before_train=false",
            "trainer.logger=[file]",
            "trainer.worker_group=local",
            f"trainer.default_local_dir={tmp_path / 'run'}",
            *extra,
        ]

    return overrides


def read_metrics(folder: Path) -> list[dict[str, Any]]:
    """The records of a run's metrics file, one a step."""
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


@pytest.fixture
def run_metrics(tmp_path: Path) -> Callable[..., list[dict[str, Any]]]:
    """`run_metrics(overrides, name)` runs in a folder of its own and returns what was logged."""
    from verl.config.loader import load_config
    from verl.trainer.checks import checked
    from verl.trainer.main_ppo import run

    def execute(overrides: list[str], name: str = "run") -> list[dict[str, Any]]:
        folder = tmp_path / name
        run(checked(load_config([*overrides, f"trainer.default_local_dir={folder}"])))
        return read_metrics(folder)

    return execute
