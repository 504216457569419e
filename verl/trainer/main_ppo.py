"""`python -m verl.trainer.main_ppo key=value ... [--config file.yaml] [--dry-run]`: one run from the command line."""

from collections.abc import Sequence

from verl.config import PPOConfig
from verl.models.loading import load_model_tokenizer
from verl.trainer.check_models import check_models
from verl.trainer.checks import checked
from verl.trainer.launch import command_line, exit_with, running
from verl.trainer.ray_ppo import RayPPOTrainer
from verl.trainer.roles import default_roles


def main(argv: Sequence[str] | None = None) -> dict[str, float]:
    """Parse, check, run. Returns the final metrics."""
    return command_line(PPOConfig, checked, run, __doc__, argv)


def run(config: PPOConfig) -> dict[str, float]:
    """Build the trainer for a resolved config, train, and end what was started. Returns the final metrics."""
    check_models(config)
    tokenizer = load_model_tokenizer(config.actor_rollout_ref.model, chat_template=config.data.chat_template)
    # The trainer reads the data and tells its faults before Ray starts and models load.
    trainer = RayPPOTrainer(config, tokenizer, default_roles(config))
    with running(trainer):
        return trainer.fit()


if __name__ == "__main__":
    exit_with(main)
