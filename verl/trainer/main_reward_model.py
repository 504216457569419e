"""`python -m verl.trainer.main_reward_model key=value ... [--config file.yaml] [--dry-run]`: train a reward model."""

from collections.abc import Sequence

from verl.config import RewardModelTrainingConfig
from verl.trainer.launch import command_line, exit_with
from verl.trainer.offline import checked, run
from verl.trainer.reward_model import RewardModelTrainer


def main(argv: Sequence[str] | None = None) -> dict[str, float]:
    """Parse, check, run. Returns the final metrics."""
    return command_line(
        RewardModelTrainingConfig, checked, lambda config: run(RewardModelTrainer, config), __doc__, argv
    )


if __name__ == "__main__":
    exit_with(main)
