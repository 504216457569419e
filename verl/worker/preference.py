"""A policy that learns from preferences, in one process.

A row of a batch is two sequences that must stay together, [b, 2, ...]:

    pairs       0 the chosen answer, 1 the rejected one
    judged      0 the answer that `labels` judges, 1 an answer of another row after this row's prompt (KTO's KL point)

`ref_sequence_log_probs` [b, 2] has log p of each whole answer under the reference policy. `preference_objective` is
all that a worker needs to learn from such rows, wherever they come from.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

from tensordict import TensorDict
from torch import Tensor, nn

from verl.algorithms.masked import masked_sum
from verl.algorithms.preference_losses import (
    LabelledResponses,
    PreferenceLoss,
    PreferencePairs,
    get_preference_loss,
    kto_kl_point,
    loss_arguments,
)
from verl.config import PPOConfig, PreferenceConfig
from verl.engine.base import MicroBatching, Outputs, TrainEngine
from verl.models.wrapper import ModelWrapper
from verl.utils.distributed import all_reduce_sum
from verl.utils.metrics import Metrics
from verl.worker.dispatch import Dispatch, register
from verl.worker.model_worker import ModelSettings, optimizer_steps, update_micro_batching
from verl.worker.objective import Objective
from verl.worker.offline import OfflineWorker, named, valid_pairs
from verl.worker.reference import ReferencePolicyWorker

REFERENCE = "ref_sequence_log_probs"


def policy_settings(config: PPOConfig | PreferenceConfig) -> ModelSettings:
    """What the policy is trained with, by advantages or by preferences."""
    policy, steps = config.actor_rollout_ref, config.trainer.total_training_steps
    actor, batch_size = policy.actor, config.data.train_batch_size
    assert actor.ppo_mini_batch_size is not None
    if steps is not None and isinstance(config, PPOConfig) and config.critic.enable:
        steps -= config.trainer.critic_warmup  # in which the policy waits
    return ModelSettings(
        model=policy.model,
        fsdp=actor.fsdp_config,
        optim=actor.optim,
        optimizer_steps=optimizer_steps(steps, batch_size, actor.ppo_mini_batch_size, actor.ppo_epochs),
    )


class PreferenceWorker(OfflineWorker):
    """Trains the policy on rows of two sequences."""

    config: PreferenceConfig

    def __init__(self, config: PreferenceConfig, role: str = "actor", module: nn.Module | None = None) -> None:
        super().__init__(config, role, module)

    def settings(self) -> ModelSettings:
        return policy_settings(self.config)

    def build_module(self) -> ModelWrapper:
        return self.load_policy()

    def micro_batching(self) -> MicroBatching:
        return update_micro_batching(self.config.actor_rollout_ref.actor)

    def epochs(self) -> int:
        return self.config.actor_rollout_ref.actor.ppo_epochs

    def model_kwargs(self) -> dict[str, Any]:
        return {"remove_padding": self.config.actor_rollout_ref.model.use_remove_padding}

    def objective(self, prefix: str) -> Objective:
        algorithm = self.config.algorithm
        return preference_objective(algorithm.name, loss_arguments(algorithm), prefix, self.model_kwargs())


class PreferenceReferenceWorker(ReferencePolicyWorker):
    """The reference policy for answers that nobody sampled: its temperature is 1."""

    @property
    def temperature(self) -> float:
        return 1.0

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def release(self) -> None:
        """Let go of the model; it is loaded again if it is needed again."""
        self.drop_engine()


def preference_objective(
    loss: str, arguments: Mapping[str, Any], prefix: str, model_kwargs: Mapping[str, Any]
) -> Objective:
    """The objective of the preference loss named `loss`, called with `arguments`.

    Args:
        model_kwargs: those of the policy's forward in training, for KTO's KL point, which is computed beforehand.
    """
    chosen_loss = get_preference_loss(loss)
    if chosen_loss.takes is LabelledResponses:
        return _judged_objective(chosen_loss, arguments, prefix, model_kwargs)
    return _pair_objective(chosen_loss, arguments, prefix)


def _pair_objective(preference_loss: PreferenceLoss, arguments: Mapping[str, Any], prefix: str) -> Objective:
    def loss_fn(outputs: Outputs, batch: TensorDict) -> tuple[Tensor, Metrics]:
        pairs = PreferencePairs.from_rows(outputs["log_probs"].flatten(0, 1), batch["response_mask"].flatten(0, 1))
        if preference_loss.needs_reference:
            reference = batch[REFERENCE]
            pairs = dataclasses.replace(pairs, ref_chosen=reference[:, 0], ref_rejected=reference[:, 1])
        loss, metrics = preference_loss(pairs, **arguments)
        return loss, named(prefix, loss, pairs.count(), metrics)

    return Objective(loss_fn, lambda mini: valid_pairs(mini).sum())


def _judged_objective(
    preference_loss: PreferenceLoss, arguments: Mapping[str, Any], prefix: str, model_kwargs: Mapping[str, Any]
) -> Objective:
    def with_kl_point(engine: TrainEngine, mini: TensorDict, micro: MicroBatching) -> TensorDict:
        answers, others = _sequence(mini, 0), _sequence(mini, 1)
        log_probs = engine.forward(others, micro, **model_kwargs)["log_probs"]
        mask = others["response_mask"]
        point = kto_kl_point(
            masked_sum(log_probs, mask, dim=-1), others[REFERENCE], mask.bool().any(-1), sum_over_ranks=all_reduce_sum
        )
        answers["kl_point"] = point.expand(answers.batch_size)
        return answers

    def loss_fn(outputs: Outputs, batch: TensorDict) -> tuple[Tensor, Metrics]:
        mask = batch["response_mask"]
        answers = LabelledResponses(
            log_probs=masked_sum(outputs["log_probs"], mask, dim=-1),
            ref_log_probs=batch[REFERENCE],
            labels=batch["labels"],
            lengths=mask.bool().sum(-1),
            kl_point=batch["kl_point"][0],
        )
        loss, metrics = preference_loss(answers, **arguments)
        return loss, named(prefix, loss, answers.count(), metrics)

    return Objective(loss_fn, lambda mini: mini["response_mask"][:, 0].bool().any(-1).sum(), with_kl_point)


def _sequence(rows: TensorDict, number: int) -> TensorDict:
    """Rows [b, ...] of the sequence `number` in rows [b, 2, ...]; `labels` [b] belong to both."""
    picked = {key: value if key == "labels" else value[:, number] for key, value in rows.items()}
    return TensorDict(picked, batch_size=rows.batch_size)
