"""Preference learning without rollouts. The policy's keys are those of a PPO run, as far as there is a use for them."""

from dataclasses import dataclass
from typing import Any

from verl.config.actor_rollout_ref import PolicyTrainingConfig, RefConfig
from verl.config.keys import key
from verl.config.model import ModelConfig
from verl.config.offline import PreferenceDataConfig
from verl.config.trainer import BaseTrainerConfig


@dataclass
class PreferenceLossConfig:
    """Arguments of preference losses. One that is set must be known to the chosen loss."""

    beta: float | None = key(None, "how strongly the policy is held to the reference; null means the loss's default")
    label_smoothing: float | None = key(None, "probability that a label is wrong: cDPO (dpo)")
    simpo_gamma: float | None = key(None, "the margin aimed at (simpo)")
    desirable_weight: float | None = key(None, "weight of desirable answers (kto)")
    undesirable_weight: float | None = key(None, "weight of undesirable answers (kto)")
    loss_kwargs: dict[str, Any] = key(dict, "further keyword arguments, for a loss of one's own")


@dataclass
class PreferenceAlgorithmConfig(PreferenceLossConfig):
    name: str = key("dpo", "a preference loss: dpo, ipo, simpo, kto (see docs/algorithms.md), or `package.module:name`")
    precompute_ref_log_probs: bool = key(
        False, "ask the reference about all rows before the first step, and then let go of it (pairs only)"
    )


@dataclass
class PreferencePolicyConfig:
    model: ModelConfig = key(ModelConfig, "the policy's model, and the reference's")
    actor: PolicyTrainingConfig = key(PolicyTrainingConfig, "training of the policy")
    ref: RefConfig = key(RefConfig, "the frozen reference policy")


def _trainer() -> BaseTrainerConfig:
    return BaseTrainerConfig(experiment_name="preference")


@dataclass
class PreferenceConfig:
    data: PreferenceDataConfig = key(PreferenceDataConfig, "pairs of answers, or answers with a label")
    actor_rollout_ref: PreferencePolicyConfig = key(PreferencePolicyConfig, "the policy")
    algorithm: PreferenceAlgorithmConfig = key(PreferenceAlgorithmConfig, "the loss")
    trainer: BaseTrainerConfig = key(_trainer, "the run")
