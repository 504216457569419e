"""Configuration as dataclasses. Every key has one meaning, and some code that reads it. Loads neither torch nor ray.

overrides, YAML -> loader.load_config -> validate.resolve -> validate.validate -> the run
"""

from verl.config.actor_rollout_ref import (
    ActorConfig,
    ActorRolloutRefConfig,
    PolicyLossConfig,
    RefConfig,
    RolloutConfig,
    SamplingConfig,
    ValSamplingConfig,
)
from verl.config.algorithm import AlgorithmConfig, KLControlConfig
from verl.config.critic import CriticConfig
from verl.config.data import DataConfig
from verl.config.errors import ConfigError
from verl.config.model import FSDPConfig, MixedPrecisionConfig, ModelConfig, OptimConfig
from verl.config.ppo import PPOConfig
from verl.config.reward import CustomRewardFunctionConfig, RewardConfig, RewardManagerConfig, RewardModelConfig
from verl.config.trainer import TrainerConfig

__all__ = [
    "ActorConfig",
    "ActorRolloutRefConfig",
    "AlgorithmConfig",
    "ConfigError",
    "CriticConfig",
    "CustomRewardFunctionConfig",
    "DataConfig",
    "FSDPConfig",
    "KLControlConfig",
    "MixedPrecisionConfig",
    "ModelConfig",
    "OptimConfig",
    "PPOConfig",
    "PolicyLossConfig",
    "RefConfig",
    "RewardConfig",
    "RewardManagerConfig",
    "RewardModelConfig",
    "RolloutConfig",
    "SamplingConfig",
    "TrainerConfig",
    "ValSamplingConfig",
]
