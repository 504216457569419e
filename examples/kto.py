"""KTO: a pretrained language model learns from single answers that are marked as right or wrong, on a CPU.

    python examples/kto.py [key=value ...] [--config file.yaml] [--dry-run]

Where one kind of answer is rarer, its weight makes up for it:

    python examples/kto.py algorithm.desirable_weight=1.33 algorithm.beta=0.2
"""

import sys

from offline import example

from verl.config import PreferenceConfig
from verl.trainer.launch import exit_with
from verl.trainer.preference import PreferenceTrainer

DEFAULTS = [
    "algorithm.name=kto",
    "data.max_prompt_length=8",
    "data.max_response_length=8",
    "actor_rollout_ref.actor.optim.lr=1e-5",
]

main = example("kto", __doc__, PreferenceConfig, PreferenceTrainer, "judged", "actor_rollout_ref.model.path", DEFAULTS)


if __name__ == "__main__":
    exit_with(lambda: main(sys.argv[1:]))
