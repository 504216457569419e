"""The main job: a pretrained language model gets better at arithmetic through PPO, on a CPU.

    python examples/ppo_trainer.py [key=value ...] [--config file.yaml] [--dry-run]

It prepares SmolLM2-135M-Instruct and a data set of sums, then runs the same `run()` as
`python -m verl.trainer.main_ppo`: actor, critic and reference in Ray workers, a rule as reward. Every key can be
overridden, for example

    python examples/ppo_trainer.py trainer.worker_group=local                  # no Ray, for a debugger
    python examples/ppo_trainer.py trainer.n_gpus_per_node=2                   # two worker processes
    python examples/ppo_trainer.py algorithm.name=grpo actor_rollout_ref.rollout.n=4
    python examples/ppo_trainer.py actor_rollout_ref.model.path=Qwen/Qwen2.5-0.5B-Instruct     # on a GPU
"""

import json
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from data.arithmetic import write_arithmetic
from inputs import Inputs

from verl.config import PPOConfig
from verl.trainer.checks import checked
from verl.trainer.launch import command_line, exit_with
from verl.trainer.main_ppo import run

OUTPUT = Path("outputs/ppo_arithmetic")
SUMS = OUTPUT / "data"
INPUTS = Inputs("actor_rollout_ref.model.path", (SUMS / "train.parquet", SUMS / "test.parquet"), write_arithmetic)

DEFAULTS = [
    # 64 sums a step, each answered once; two digits and the newline are all an answer needs.
    "data.train_batch_size=64",
    "data.max_prompt_length=16",
    "data.max_response_length=3",
    "actor_rollout_ref.rollout.name=auto",  # vLLM where it is installed, else transformers
    "actor_rollout_ref.rollout.stop_token_ids=[198]",  # "\\n" in the vocabularies of SmolLM2 and Qwen
    "actor_rollout_ref.actor.ppo_mini_batch_size=32",
    "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=16",
    "actor_rollout_ref.actor.optim.lr=1e-5",
    "actor_rollout_ref.actor.optim.lr_warmup_steps=4",
    "critic.optim.lr=3e-5",
    "algorithm.name=ppo",
    "algorithm.kl_ctrl.kl_coef=0.001",
    "trainer.total_training_steps=12",
    "trainer.test_freq=4",
    "trainer.resume_mode=disable",
    "trainer.log_val_generations=8",
    "trainer.logger=[console,file]",
    "trainer.project_name=verl_examples",
    "trainer.experiment_name=ppo_arithmetic",
]


def main(
    argv: Sequence[str],
    defaults: Sequence[str] = (),
    description: str | None = __doc__,
    run: Callable[[PPOConfig], dict[str, float]] = run,
) -> dict[str, float]:
    """`run` with the example's defaults, then `defaults`, then what the command line says."""
    keys = [*DEFAULTS, f"trainer.default_local_dir={OUTPUT}", *INPUTS.defaults(), *defaults]
    return command_line(PPOConfig, checked, lambda config: train(config, run), description, argv, keys)


def train(config: PPOConfig, run: Callable[[PPOConfig], dict[str, float]]) -> dict[str, float]:
    INPUTS.prepare(config)
    metrics_file = Path(config.trainer.default_local_dir) / "metrics.jsonl"
    started = time.perf_counter()
    final = run(config)
    by_rule = bool(config.reward.rule_weight) and not config.reward.reward_model.enable
    report(metrics_file, time.perf_counter() - started, "accuracy" if by_rule else "reward")
    return final


def report(metrics_file: Path, seconds: float, measure: str) -> None:
    """Print the validation's figure before and after, and draw it and the reward by step."""
    if not metrics_file.exists():  # trainer.logger is without `file`
        return
    records = [json.loads(line) for line in metrics_file.read_text().splitlines()]
    key = next((key for record in records for key in record if key.startswith("val/") and "mean@" in key), None)
    if key is None:
        return
    accuracy = [(record["step"], record[key]) for record in records if key in record]
    rewards = [(record["step"], record["reward/score_mean"]) for record in records if "reward/score_mean" in record]
    shown = ".1%" if measure == "accuracy" else ".3f"
    before, after = format(accuracy[0][1], shown), format(accuracy[-1][1], shown)
    print(f"\nvalidation {measure}: {before} before, {after} after ({seconds:.0f} s in all)")
    print(f"metrics: {metrics_file}")
    plot = metrics_file.with_name("learning.png")
    draw(plot, rewards, accuracy)
    print(f"plot:    {plot}")


def draw(path: Path, rewards: list[tuple[int, float]], accuracy: list[tuple[int, float]]) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(7, 4))
    axes.plot(*zip(*rewards, strict=True), color="tab:blue", alpha=0.6, label="mean reward of the sampled answers")
    axes.plot(*zip(*accuracy, strict=True), color="tab:red", marker="o", label="validation accuracy (greedy)")
    axes.set(xlabel="step", ylim=(0, 1), title="PPO on sums")
    axes.grid(alpha=0.3)
    axes.legend(loc="lower right")
    figure.tight_layout()
    figure.savefig(path, dpi=120)


if __name__ == "__main__":
    exit_with(lambda: main(sys.argv[1:]))
