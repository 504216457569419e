"""Supervised fine-tuning: a pretrained language model learns sums from right answers, on a CPU.

    python examples/sft.py [key=value ...] [--config file.yaml] [--dry-run]

The model, with its tokenizer, is then in outputs/sft/global_step_*/model/huggingface, ready for RL:

    python examples/ppo_trainer.py actor_rollout_ref.model.path=outputs/sft/global_step_30/model/huggingface
    python examples/sft.py trainer.worker_group=local                          # no Ray, for a debugger
    # chats of your own
    python examples/sft.py data.train_files=chats.jsonl data.val_files=null trainer.test_freq=-1 data.max_length=512 \\
        data.train_batch_size=8
"""

import sys

from offline import example

from verl.config import SFTConfig
from verl.trainer.launch import exit_with
from verl.trainer.sft import SFTTrainer

DEFAULTS = ["data.max_length=16", "optim.lr=1e-5", "model.use_remove_padding=true"]

main = example("sft", __doc__, SFTConfig, SFTTrainer, "answers", "model.path", DEFAULTS)


if __name__ == "__main__":
    exit_with(lambda: main(sys.argv[1:]))
