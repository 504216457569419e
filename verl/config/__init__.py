"""Configuration as dataclasses. Every key has one meaning, and some code that reads it. Loads neither torch nor ray.

overrides, YAML -> loader.load_config -> validate.resolve -> validate.validate -> the run
"""

from verl.config.actor_rollout_ref import (
    ActorConfig,
    ActorRolloutRefConfig,
    PolicyLossConfig,
    PolicyTrainingConfig,
    RefConfig,
    RolloutConfig,
    SamplingConfig,
    ValSamplingConfig,
)
from verl.config.algorithm import AlgorithmConfig, FilterGroupsConfig, KLControlConfig, RolloutCorrectionConfig
from verl.config.critic import CriticConfig
from verl.config.data import DataConfig
from verl.config.errors import ConfigError
from verl.config.model import FSDPConfig, MixedPrecisionConfig, ModelConfig, OptimConfig
from verl.config.offline import (
    OfflineDataConfig,
    PairDataConfig,
    PreferenceDataConfig,
    RewardDataConfig,
    RewardModelTrainingConfig,
    SFTConfig,
    SFTDataConfig,
)
from verl.config.ppo import PPOConfig
from verl.config.preference import (
    PreferenceAlgorithmConfig,
    PreferenceConfig,
    PreferenceLossConfig,
    PreferencePolicyConfig,
)
from verl.config.reward import CustomRewardFunctionConfig, RewardConfig, RewardManagerConfig, RewardModelConfig
from verl.config.trainer import BaseTrainerConfig, RunConfig, TrainerConfig

__all__ = [
    "ActorConfig",
    "ActorRolloutRefConfig",
    "AlgorithmConfig",
    "BaseTrainerConfig",
    "ConfigError",
    "CriticConfig",
    "CustomRewardFunctionConfig",
    "DataConfig",
    "FSDPConfig",
    "FilterGroupsConfig",
    "KLControlConfig",
    "MixedPrecisionConfig",
    "ModelConfig",
    "OfflineDataConfig",
    "OptimConfig",
    "PPOConfig",
    "PairDataConfig",
    "PolicyLossConfig",
    "PolicyTrainingConfig",
    "PreferenceAlgorithmConfig",
    "PreferenceConfig",
    "PreferenceDataConfig",
    "PreferenceLossConfig",
    "PreferencePolicyConfig",
    "RefConfig",
    "RewardConfig",
    "RewardDataConfig",
    "RewardManagerConfig",
    "RewardModelConfig",
    "RewardModelTrainingConfig",
    "RolloutConfig",
    "RolloutCorrectionConfig",
    "RunConfig",
    "SFTConfig",
    "SFTDataConfig",
    "SamplingConfig",
    "TrainerConfig",
    "ValSamplingConfig",
]
