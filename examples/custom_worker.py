"""A worker and a trainer of your own: reward answers that have rarely been given before.

    python examples/custom_worker.py [key=value ...] [--config file.yaml] [--dry-run]

`NoveltyWorker` is a new role. It lives in the same Ray actors as the models, its method is registered like theirs, so
the driver splits the batch over processes and joins the results; and the trainer calls it in one line.
"""

import sys
from collections import Counter
from collections.abc import Sequence

import torch
from ppo_trainer import main as train

from verl import DataProto
from verl.config import PPOConfig
from verl.models.loading import load_model_tokenizer
from verl.trainer import RayPPOTrainer
from verl.trainer.launch import exit_with, running
from verl.trainer.roles import default_roles
from verl.trainer.steps import with_tensors
from verl.worker import Dispatch, Worker, register


class NoveltyWorker(Worker):
    """Remembers the answers it has seen."""

    def __init__(self, config: PPOConfig, role: str) -> None:
        super().__init__()
        self.seen: Counter[tuple[int, ...]] = Counter()

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def init_model(self) -> None:
        """There is no model to load, but the trainer asks every role."""

    @register(dispatch_mode=Dispatch.DP_COMPUTE_PROTO)
    def compute_novelty(self, batch: DataProto) -> DataProto:
        """`novelty` [B]: 1 / (times this answer was given, this one included)."""
        lengths = batch.batch["response_mask"].sum(-1).tolist()
        novelty = []
        for response, length in zip(batch.batch["responses"].tolist(), lengths, strict=True):
            answer = tuple(response[:length])
            self.seen[answer] += 1
            novelty.append(1 / self.seen[answer])
        return DataProto.from_dict({"novelty": torch.tensor(novelty)})


class NoveltyTrainer(RayPPOTrainer):
    """PPO whose scores have a bonus for new answers."""

    def score(self, batch: DataProto, validate: bool = False) -> tuple[DataProto, dict[str, float]]:
        batch, metrics = super().score(batch, validate)
        if validate:  # validation measures the task alone
            return batch, metrics
        novelty = self.worker_groups["novelty"].compute_novelty(batch).batch["novelty"]
        last = batch.batch["response_mask"].sum(-1) - 1
        scores = batch.batch["token_level_scores"].clone()
        scores[torch.arange(len(batch)), last] += 0.1 * novelty
        metrics["reward/novelty_mean"] = float(novelty.mean())
        return with_tensors(batch, token_level_scores=scores), metrics


DEFAULTS = [
    "trainer.total_training_steps=3",
    "trainer.experiment_name=novelty",
    "trainer.default_local_dir=outputs/novelty",
]


def run(config: PPOConfig) -> dict[str, float]:
    roles = {**default_roles(config), "novelty": NoveltyWorker}
    tokenizer = load_model_tokenizer(config.actor_rollout_ref.model)
    trainer = NoveltyTrainer(config, tokenizer, roles)
    with running(trainer):
        return trainer.fit()


def main(argv: Sequence[str]) -> dict[str, float]:
    return train(argv, DEFAULTS, __doc__, run)


if __name__ == "__main__":
    exit_with(lambda: main(sys.argv[1:]))
