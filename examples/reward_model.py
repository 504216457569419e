"""A reward model: a pretrained language model gets a head that scores right sums above wrong ones, on a CPU.

    python examples/reward_model.py [key=value ...]

The result is in outputs/reward_model/global_step_*/model/huggingface. A PPO run scores with it by

    python examples/ppo_trainer.py reward.reward_model.enable=true reward.rule_weight=0 \
        reward.reward_model.model.path=outputs/reward_model/global_step_30/model/huggingface
"""

import sys

from offline import with_defaults

from verl.trainer.launch import exit_with
from verl.trainer.main_reward_model import main as train

DEFAULTS = ["data.max_prompt_length=8", "data.max_response_length=8", "optim.lr=5e-5"]


def main(overrides: list[str]) -> dict[str, float]:
    return train(with_defaults("reward_model", "pairs", "model.path", DEFAULTS, overrides))


if __name__ == "__main__":
    exit_with(lambda: print(main(sys.argv[1:])))
