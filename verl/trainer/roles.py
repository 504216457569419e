"""The roles of a run and the worker that plays each."""

from collections.abc import Mapping
from enum import Enum

from verl.algorithms.preference_losses import get_preference_loss
from verl.config import PPOConfig
from verl.config.device_map import places_of, rollout_is_apart
from verl.worker.actor import ActorWorker
from verl.worker.actor_rollout import ActorRolloutWorker
from verl.worker.base import Worker
from verl.worker.critic import CriticWorker
from verl.worker.reference import ReferencePolicyWorker
from verl.worker.reward_model import RewardModelWorker
from verl.worker.rollout import RolloutWorker


class Role(str, Enum):  # noqa: UP042  (a str that prints as its value, on every Python that we support)
    """Names of the roles that the trainer knows. Any other string names a role of the user's own.

    Actor and rollout are one role, unless `trainer.device_map` puts them on different devices.
    """

    ActorRollout = "actor_rollout"
    Actor = "actor"
    Rollout = "rollout"
    Critic = "critic"
    RefPolicy = "ref"
    RewardModel = "rm"

    def __str__(self) -> str:
        return self.value


def needs_reference(config: PPOConfig) -> bool:
    """Whether the reward or the loss compares the policy with a reference."""
    algorithm = config.algorithm
    if algorithm.preference.loss is not None:
        return get_preference_loss(algorithm.preference.loss).needs_reference
    return algorithm.use_kl_in_reward or config.actor_rollout_ref.actor.use_kl_loss


def default_roles(config: PPOConfig) -> dict[str, type[Worker]]:
    """The roles that `config` (resolved) needs, each with its standard worker."""
    roles: dict[str, type[Worker]] = {Role.ActorRollout: ActorRolloutWorker}
    if rollout_is_apart(places_of(config.trainer)):
        roles = {Role.Actor: ActorWorker, Role.Rollout: RolloutWorker}
    if config.critic.enable:
        roles[Role.Critic] = CriticWorker
    if needs_reference(config):
        roles[Role.RefPolicy] = ReferencePolicyWorker
    if config.reward.reward_model.enable:
        roles[Role.RewardModel] = RewardModelWorker
    return roles


def check_roles(config: PPOConfig, role_worker_mapping: Mapping[str, object]) -> None:
    """ValueError when a role that `config` (resolved) needs has no worker."""
    missing = [str(role) for role in default_roles(config) if str(role) not in role_worker_mapping]
    if missing:
        raise ValueError(
            f"the config needs the roles {missing}, but role_worker_mapping has {sorted(role_worker_mapping)}"
        )
