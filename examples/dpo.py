"""Direct preference optimisation: a pretrained language model learns from pairs of a right and a wrong sum, on a CPU.

    python examples/dpo.py [key=value ...] [--config file.yaml] [--dry-run]

Other losses of pairs, and a reference that is asked only once:

    python examples/dpo.py algorithm.name=ipo
    python examples/dpo.py algorithm.label_smoothing=0.1
    python examples/dpo.py algorithm.name=simpo algorithm.beta=2 algorithm.simpo_gamma=1
    python examples/dpo.py algorithm.precompute_ref_log_probs=true
"""

import sys

from offline import example

from verl.config import PreferenceConfig
from verl.trainer.launch import exit_with
from verl.trainer.preference import PreferenceTrainer

DEFAULTS = [
    "algorithm.name=dpo",
    "data.train_batch_size=16",
    "data.max_prompt_length=8",
    "data.max_response_length=8",
    "actor_rollout_ref.actor.optim.lr=1e-5",
]

main = example("dpo", __doc__, PreferenceConfig, PreferenceTrainer, "pairs", "actor_rollout_ref.model.path", DEFAULTS)


if __name__ == "__main__":
    exit_with(lambda: main(sys.argv[1:]))
