"""What the examples without rollouts (sft.py, reward_model.py, dpo.py, kto.py) share."""

from pathlib import Path

from data.preferences import write_preferences
from smollm2 import prepare_smollm2

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


def with_defaults(name: str, kind: str, model_key: str, defaults: list[str], overrides: list[str]) -> list[str]:
    """The overrides after the example's defaults, with its model and data prepared unless others are given."""
    output = Path("outputs") / name
    chosen = {override.split("=", 1)[0].lstrip("+") for override in overrides}
    settings = [*COMMON, f"trainer.experiment_name={name}", f"trainer.default_local_dir={output}", *defaults]
    if model_key not in chosen:
        settings.append(f"{model_key}={prepare_smollm2(Path('outputs/smollm2'))}")
    if not {"data.train_files", "data.val_files"} & chosen:
        train, test = write_preferences(output / "data", kind)
        settings += [f"data.train_files={train}", f"data.val_files={test}"]
    return [*settings, *overrides]
