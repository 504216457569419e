"""A reward model: a pretrained language model gets a head that scores right sums above wrong ones, on a CPU.

    python examples/reward_model.py [key=value ...] [--config file.yaml] [--dry-run]

The result is in outputs/reward_model/global_step_*/model/huggingface. A PPO run scores with it by

    python examples/ppo_trainer.py reward.reward_model.enable=true reward.rule_weight=0 \\
        reward.reward_model.model.path=outputs/reward_model/global_step_30/model/huggingface
"""

import sys

from offline import example

from verl.config import RewardModelTrainingConfig
from verl.trainer.launch import exit_with
from verl.trainer.reward_model import RewardModelTrainer

DEFAULTS = ["data.max_prompt_length=8", "data.max_response_length=8", "optim.lr=5e-5"]

main = example("reward_model", __doc__, RewardModelTrainingConfig, RewardModelTrainer, "pairs", "model.path", DEFAULTS)


if __name__ == "__main__":
    exit_with(lambda: main(sys.argv[1:]))
