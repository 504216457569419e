"""What the examples without rollouts (sft.py, reward_model.py, dpo.py, kto.py) share."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from data.preferences import write_preferences
from inputs import Inputs

from verl.trainer.launch import command_line
from verl.trainer.offline import OfflineTrainer, checked, run

COMMON = [
    "data.train_batch_size=32",
    "data.val_batch_size=50",
    "data.val_max_samples=100",
    "trainer.total_training_steps=30",
    "trainer.test_freq=10",
    "trainer.save_freq=0",
    "trainer.resume_mode=disable",
    "trainer.project_name=verl_examples",
]


def example(
    name: str,
    description: str | None,
    config: type[Any],
    trainer: type[OfflineTrainer[Any]],
    kind: str,
    model_key: str,
    defaults: Sequence[str],
) -> Callable[[Sequence[str]], dict[str, float]]:
    """The `main` of an example: arguments of the command line -> final metrics.

    `kind` is that of `write_preferences`.
    """
    output = Path("outputs") / name
    files = (output / "data" / "train.jsonl", output / "data" / "test.jsonl")
    inputs = Inputs(model_key, files, lambda folder: write_preferences(folder, kind))
    own = [f"trainer.experiment_name={name}", f"trainer.default_local_dir={output}"]

    def train(config: Any) -> dict[str, float]:
        inputs.prepare(config)
        final = run(trainer, config)
        print(final)
        return final

    def main(argv: Sequence[str]) -> dict[str, float]:
        return command_line(config, checked, train, description, argv, [*COMMON, *own, *inputs.defaults(), *defaults])

    return main
