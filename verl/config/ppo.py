"""The root of the configuration of a PPO run (and of its kin: the estimator decides)."""

from dataclasses import dataclass

from verl.config.actor_rollout_ref import ActorRolloutRefConfig
from verl.config.algorithm import AlgorithmConfig
from verl.config.critic import CriticConfig
from verl.config.data import DataConfig
from verl.config.keys import key
from verl.config.reward import RewardConfig
from verl.config.trainer import TrainerConfig


@dataclass
class PPOConfig:
    data: DataConfig = key(DataConfig, "prompts")
    actor_rollout_ref: ActorRolloutRefConfig = key(ActorRolloutRefConfig, "the policy")
    critic: CriticConfig = key(CriticConfig, "the critic")
    reward: RewardConfig = key(RewardConfig, "scores")
    algorithm: AlgorithmConfig = key(AlgorithmConfig, "advantages and KL")
    trainer: TrainerConfig = key(TrainerConfig, "the run")
