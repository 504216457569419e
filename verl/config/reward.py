"""Where scores come from: rules, and optionally a reward model."""

from dataclasses import dataclass
from typing import Any

from verl.config.keys import key
from verl.config.model import FSDPConfig, ModelConfig


@dataclass
class CustomRewardFunctionConfig:
    path: str | None = key(None, "Python file, or module, that holds the function")
    name: str = key("compute_score", "the function's name: fn(data_source, solution_str, ground_truth, extra_info)")
    reward_kwargs: dict[str, Any] = key(dict, "extra keyword arguments of the function")


@dataclass
class RewardManagerConfig:
    name: str = key("naive", "how scores are collected: naive (one score at the last response token)")


@dataclass
class RewardModelConfig:
    enable: bool = key(False, "score responses with a reward model as well")
    model: ModelConfig = key(ModelConfig, "the reward model: a sequence classifier or a value-headed model")
    fsdp: FSDPConfig = key(FSDPConfig, "how the reward model is sharded")
    micro_batch_size_per_gpu: int | None = key(None, "samples per forward pass of one process")
    max_length: int | None = key(None, "longest text in tokens, cut on the left; null means the model's own limit")
    weight: float = key(1.0, "weight of the reward model's score")


@dataclass
class RewardConfig:
    custom_reward_function: CustomRewardFunctionConfig = key(CustomRewardFunctionConfig, "the user's own rule")
    reward_manager: RewardManagerConfig = key(RewardManagerConfig, "how scores are collected")
    reward_model: RewardModelConfig = key(RewardModelConfig, "an optional learned scorer")
    rule_weight: float = key(1.0, "weight of the rule's score beside a reward model; 0 does not call the rule")
