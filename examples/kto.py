"""KTO: a pretrained language model learns from single answers that are marked as right or wrong, on a CPU.

    python examples/kto.py [key=value ...]

Where one kind of answer is rarer, its weight makes up for it:

    python examples/kto.py algorithm.desirable_weight=1.33 algorithm.beta=0.2
"""

import sys

from offline import with_defaults

from verl.trainer.launch import exit_with
from verl.trainer.main_preference import main as train

DEFAULTS = [
    "algorithm.name=kto",
    "data.max_prompt_length=8",
    "data.max_response_length=8",
    "actor_rollout_ref.actor.optim.lr=1e-5",
]


def main(overrides: list[str]) -> dict[str, float]:
    return train(with_defaults("kto", "judged", "actor_rollout_ref.model.path", DEFAULTS, overrides))


if __name__ == "__main__":
    exit_with(lambda: print(main(sys.argv[1:])))
