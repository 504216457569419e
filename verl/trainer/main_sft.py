"""`python -m verl.trainer.main_sft key=value ... [--config file.yaml] [--dry-run]`: supervised fine-tuning."""

from collections.abc import Sequence

from verl.config import SFTConfig
from verl.trainer.launch import command_line, exit_with
from verl.trainer.offline import checked, run
from verl.trainer.sft import SFTTrainer


def main(argv: Sequence[str] | None = None) -> dict[str, float]:
    """Parse, check, run. Returns the final metrics."""
    return command_line(SFTConfig, checked, lambda config: run(SFTTrainer, config), __doc__, argv)


if __name__ == "__main__":
    exit_with(main)
