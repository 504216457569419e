"""`python -m verl.trainer.main_preference key=value ... [--config file.yaml] [--dry-run]`: preference learning."""

from collections.abc import Sequence

from verl.config import PreferenceConfig
from verl.trainer.launch import command_line, exit_with
from verl.trainer.offline import checked, run
from verl.trainer.preference import PreferenceTrainer


def main(argv: Sequence[str] | None = None) -> dict[str, float]:
    """Parse, check, run. Returns the final metrics."""
    return command_line(PreferenceConfig, checked, lambda config: run(PreferenceTrainer, config), __doc__, argv)


if __name__ == "__main__":
    exit_with(main)
