"""GRPO: the answers to a sum are compared with each other, so that no critic is needed. On a CPU.

    python examples/grpo.py [key=value ...] [--config file.yaml] [--dry-run]

Its kin, by their short names (docs/algorithms.md has all of them):

    python examples/grpo.py algorithm.name=dr_grpo      # advantages and losses that no length or deviation divides
    python examples/grpo.py algorithm.name=gspo         # ratios of whole answers
    python examples/grpo.py algorithm.name=rloo         # KL in the reward, advantages by leaving one out
"""

import sys
from collections.abc import Sequence

from ppo_trainer import main as train

from verl.trainer.launch import exit_with

DEFAULTS = [
    "algorithm.name=grpo",  # the estimator, and KL to the reference in the loss
    "actor_rollout_ref.actor.kl_loss_coef=0.001",
    # 16 sums a step, each answered 4 times
    "data.train_batch_size=16",
    "actor_rollout_ref.rollout.n=4",
    "actor_rollout_ref.actor.ppo_mini_batch_size=8",
    "trainer.experiment_name=grpo_arithmetic",
    "trainer.default_local_dir=outputs/grpo_arithmetic",
]


def main(argv: Sequence[str], defaults: Sequence[str] = (), description: str | None = __doc__) -> dict[str, float]:
    return train(argv, [*DEFAULTS, *defaults], description)


if __name__ == "__main__":
    exit_with(lambda: main(sys.argv[1:]))
