"""Every estimator with every policy loss, aggregation and way of KL: two steps of a tiny model each.

A step here is what follows the rollout: advantages, the update by a worker group, log-probs under the new weights. The
rollout is always the same; whole steps of every algorithm by its name are in test_algorithms.py.
"""

import copy
import itertools
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from verl import DataProto
from verl.algorithms.advantages import ADVANTAGE_ESTIMATORS
from verl.algorithms.policy_losses import POLICY_LOSSES
from verl.config import ConfigError, PPOConfig
from verl.config.loader import load_config
from verl.config.validate import LOSS_AGG_MODES
from verl.trainer.checks import checked
from verl.trainer.steps import (
    REWARD_COLUMN,
    choose_tokens,
    compute_advantage,
    correct_rollout,
    for_workers,
    penalize_kl,
    with_tensors,
)
from verl.utils.metrics import merge_metrics, metric_values
from verl.worker.actor import ActorWorker
from verl.workers import LocalWorkerGroup
from verl.workers.classes import ClassWithInitArgs

ROWS, PROMPT, RESPONSE = 4, 3, 4
KL_ROUTES = ("none", "reward", "loss")
CHOICES = list(itertools.product(POLICY_LOSSES, LOSS_AGG_MODES, KL_ROUTES))
Config = Callable[..., PPOConfig]


@pytest.fixture(scope="module")
def config(tiny_model_dir_factory: Callable[..., Path]) -> Config:
    """`config(estimator, loss, aggregation, kl)`: as a run would have it. ConfigError for what is refused."""
    path = tiny_model_dir_factory("llama", hidden_size=16, num_hidden_layers=1, intermediate_size=16)

    base = load_config(
        [
            f"actor_rollout_ref.model.path={path}",
            "data.train_files=sums.parquet",
            "data.train_batch_size=2",
            f"data.max_response_length={RESPONSE}",
            "actor_rollout_ref.rollout.n=2",
            "actor_rollout_ref.actor.ppo_mini_batch_size=2",
            "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=3",
            "actor_rollout_ref.actor.optim.lr=1e-4",
            "trainer.worker_group=local",
        ]
    )

    def build(estimator: str, loss: str, aggregation: str, kl: str) -> PPOConfig:
        chosen = copy.deepcopy(base)  # since reading the keys each time would take most of these tests' time
        actor, algorithm = chosen.actor_rollout_ref.actor, chosen.algorithm
        algorithm.adv_estimator, algorithm.use_kl_in_reward = estimator, kl == "reward"
        actor.policy_loss.loss_mode, actor.loss_agg_mode, actor.use_kl_loss = loss, aggregation, kl == "loss"
        return checked(chosen)

    return build


@pytest.fixture(scope="module")
def groups(config: Config) -> dict[tuple[str, ...], LocalWorkerGroup]:
    """A group of one worker for each choice but the estimator's, which workers never see."""
    found = {}
    for choice in CHOICES:
        found[choice] = LocalWorkerGroup(ray_cls_with_init=ClassWithInitArgs(ActorWorker, config("grpo", *choice)))
        found[choice].init_model()
    return found


@pytest.fixture
def responses() -> DataProto:
    """Two prompts with two samples each; lengths 4, 2, 3, 1, and a hole (a tool's answer) in the third."""
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(6, 120, (ROWS, PROMPT + RESPONSE), generator=generator)
    mask = torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0], [1, 0, 1, 0], [1, 0, 0, 0]])
    attention = torch.cat(
        [
            torch.ones(ROWS, PROMPT, dtype=torch.long),
            torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0], [1, 1, 1, 0], [1, 0, 0, 0]]),
        ],
        1,
    )
    scores = torch.zeros(ROWS, RESPONSE)
    scores[torch.arange(ROWS), torch.tensor([3, 1, 2, 0])] = torch.tensor([1.0, 0.0, 0.5, 2.0])
    return DataProto.from_dict(
        {
            "input_ids": ids,
            "attention_mask": attention,
            "position_ids": attention.cumsum(-1) - 1,
            "responses": ids[:, PROMPT:],
            "response_mask": mask,
            "token_level_scores": scores,
            "values": torch.full((ROWS, RESPONSE), 0.3),
            "baseline_scores": torch.tensor([0.5, 0.5, 1.0, 1.0]),
            f"{REWARD_COLUMN}x": torch.tensor([1.0, 0.0, 0.5, 1.0]),
            f"{REWARD_COLUMN}y": torch.tensor([0.0, 1.0, 0.0, 1.0]),
        },
        {"uid": ["a", "a", "b", "b"]},
    )


def step(group: LocalWorkerGroup, batch: DataProto, config: PPOConfig, seed: int) -> dict[str, float]:
    actor, algorithm = config.actor_rollout_ref.actor, config.algorithm
    log_probs = group.compute_log_prob(for_workers(batch)).batch["old_log_probs"]
    reference = log_probs - 0.1 * batch.batch["response_mask"]
    batch = with_tensors(batch, old_log_probs=log_probs, ref_log_probs=reference)
    if algorithm.use_kl_in_reward:
        batch, _ = penalize_kl(batch, 0.1, "kl")
    else:
        batch = with_tensors(batch, token_level_rewards=batch.batch["token_level_scores"])
    batch, _ = compute_advantage(batch, algorithm)
    batch, _ = correct_rollout(batch, algorithm.rollout_correction)
    batch = choose_tokens(batch, actor, seed)
    columns = [name for name in ("ref_log_probs", "selected") if name in batch.batch.keys()]  # noqa: SIM118
    sent = for_workers(batch, "old_log_probs", "advantages", *columns, mini_batch_size=ROWS)
    return metric_values(merge_metrics(group.update_actor(sent)))


@pytest.mark.parametrize("estimator", ADVANTAGE_ESTIMATORS)
def test_two_steps(
    config: Config, groups: dict[tuple[str, ...], LocalWorkerGroup], responses: DataProto, estimator: str
) -> None:
    for choice in CHOICES:
        if choice[2] == "reward" and ADVANTAGE_ESTIMATORS[estimator].needs_reward_components:
            with pytest.raises(ConfigError, match="normalises rewards one by one, and KL in the reward"):
                config(estimator, *choice)
            continue
        chosen = config(estimator, *choice)
        for number in range(2):
            metrics = step(groups[choice], responses, chosen, number)
            assert metrics["actor/skipped_steps"] == 0, choice
            assert 0 < metrics["actor/grad_norm"] < 1e4, choice
            assert ("actor/kl_loss" in metrics) == (choice[2] == "loss"), choice
