"""Whether the memory of a training process grows when vLLM generates in it and takes new weights after every step.

    python benchmarks/rollout_memory.py [--steps 200] [key=value ...]

PPO of a tiny random Llama on sums, all in this process: each step generates, trains, and brings the weights to vLLM.
Printed is the resident memory after the first step, at every tenth of the run, and after the last one, and how much
the second half of the run added.
"""

import argparse
import sys
import tempfile
from pathlib import Path
from typing import Any

import psutil
from tiny import write_tiny_model

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))
from data.arithmetic import write_arithmetic  # noqa: E402

from verl.trainer import PPOTrainer  # noqa: E402
from verl.trainer.callbacks import Callback  # noqa: E402


class Memory(Callback):
    """Notes the resident memory after every step, in MiB."""

    def __init__(self) -> None:
        self.curve: list[float] = []

    def on_step_end(self, trainer: Any, step: int, batch: Any, metrics: dict[str, float]) -> None:
        self.curve.append(psutil.Process().memory_info().rss / 2**20)


def digits(prompts: list[str], responses: list[str]) -> list[float]:
    return [sum(character.isdigit() for character in response) / 16 for response in responses]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="for example actor_rollout_ref.rollout.n=4")
    args = parser.parse_args()
    memory = Memory()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        train, _ = write_arithmetic(folder / "data", template="{a}+{b} is ")
        settings = {
            "data.train_batch_size": 8,
            "data.max_prompt_length": 16,
            "data.max_response_length": 16,
            "actor_rollout_ref.rollout.name": "vllm",
            "trainer.total_training_steps": args.steps,
            "trainer.total_epochs": args.steps,
            "trainer.worker_group": "local",
            "trainer.save_freq": -1,
            "trainer.val_before_train": False,
        }
        trainer = PPOTrainer(
            str(write_tiny_model(folder / "model", hidden=128, layers=2)),
            reward_fn=digits,
            dataset=str(train),
            config={**settings, **dict(override.split("=", 1) for override in args.overrides)},
            callbacks=[memory],
            output_dir=str(folder / "run"),
        )
        trainer.train()
    steps = sorted({1, *(args.steps * i // 10 for i in range(1, 11))} - {0})
    for step in steps:
        print(f"step {step:4}  {memory.curve[step - 1]:7.1f} MiB")
    growth = memory.curve[-1] - memory.curve[args.steps // 2 - 1]
    print(f"the second half of the run added {growth:.1f} MiB")


if __name__ == "__main__":
    main()
