"""Preference learning without rollouts. The policy's keys are those of a PPO run, as far as there is a use for them."""

from dataclasses import dataclass
from typing import Any

from verl.config.actor_rollout_ref import RefConfig
from verl.config.keys import key
from verl.config.model import FSDPConfig, ModelConfig, OptimConfig
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
class PreferenceActorConfig:
    ppo_mini_batch_size: int | None = key(None, "rows per optimizer step; null means data.train_batch_size")
    ppo_micro_batch_size_per_gpu: int | None = key(
        None, "rows (pairs count once) per forward and backward pass of one process; null takes all at once"
    )
    use_dynamic_bsz: bool = key(False, "cut micro-batches by tokens (of both answers) instead of by rows")
    ppo_max_token_len_per_gpu: int = key(16384, "tokens per micro-batch of one process, with use_dynamic_bsz")
    ppo_epochs: int = key(1, "passes over the rows of a step")
    optim: OptimConfig = key(OptimConfig, "the policy's optimizer")
    fsdp_config: FSDPConfig = key(FSDPConfig, "how the policy is sharded")


@dataclass
class PreferencePolicyConfig:
    model: ModelConfig = key(ModelConfig, "the policy's model, and the reference's")
    actor: PreferenceActorConfig = key(PreferenceActorConfig, "training of the policy")
    ref: RefConfig = key(RefConfig, "the frozen reference policy")


def _trainer() -> BaseTrainerConfig:
    return BaseTrainerConfig(experiment_name="preference")


@dataclass
class PreferenceConfig:
    data: PreferenceDataConfig = key(PreferenceDataConfig, "pairs of answers, or answers with a label")
    actor_rollout_ref: PreferencePolicyConfig = key(PreferencePolicyConfig, "the policy")
    algorithm: PreferenceAlgorithmConfig = key(PreferenceAlgorithmConfig, "the loss")
    trainer: BaseTrainerConfig = key(_trainer, "the run")
