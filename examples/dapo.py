"""DAPO: GRPO with four changes, each a key of its own. On a CPU.

    python examples/dapo.py [key=value ...] [--config file.yaml] [--dry-run]

What it leaves out is as easy to try:

    python examples/dapo.py algorithm.filter_groups.enable=false
    python examples/dapo.py actor_rollout_ref.actor.clip_ratio_high=0.2
    python examples/dapo.py reward.reward_kwargs.overlong_buffer_cfg.enable=false
"""

import sys
from collections.abc import Sequence

from grpo import main as train

from verl.trainer.launch import exit_with

# `algorithm.name=dapo` sets those above the line to these values, and turns KL off.
DEFAULTS = [
    "algorithm.name=dapo",
    # 1. Clip higher: unlikely tokens may gain more.
    "actor_rollout_ref.actor.clip_ratio_low=0.2",
    "actor_rollout_ref.actor.clip_ratio_high=0.28",
    # 2. Dynamic sampling: sums whose answers are all right or all wrong teach nothing, so others are drawn.
    "algorithm.filter_groups.enable=true",
    # 3. Every token weighs the same, whatever the length of its answer.
    "actor_rollout_ref.actor.loss_agg_mode=token-mean",
    # ---------------------------------------------------------------------------------------------------------------
    "algorithm.filter_groups.metric=score",
    "algorithm.filter_groups.max_num_gen_batches=20",  # that many batches for one step, and no more
    # 4. Overlong answers: two digits and the newline are free, each further token costs a third of the penalty.
    "data.max_response_length=6",
    "reward.reward_manager.name=dapo",
    "reward.reward_kwargs.overlong_buffer_cfg.enable=true",
    "reward.reward_kwargs.overlong_buffer_cfg.len=3",
    "reward.reward_kwargs.overlong_buffer_cfg.penalty_factor=0.3",
    "trainer.experiment_name=dapo_arithmetic",
    "trainer.default_local_dir=outputs/dapo_arithmetic",
]


def main(argv: Sequence[str]) -> dict[str, float]:
    return train(argv, DEFAULTS, __doc__)


if __name__ == "__main__":
    exit_with(lambda: main(sys.argv[1:]))
