"""The algorithm: advantages and KL."""

from dataclasses import dataclass
from typing import Literal

from verl.config.keys import key
from verl.config.preference import PreferenceLossConfig


@dataclass
class KLControlConfig:
    type: Literal["fixed", "adaptive"] = key("fixed", "a constant coefficient, or one that steers KL to target_kl")
    kl_coef: float = key(0.001, "the (initial) coefficient of KL in the reward")
    target_kl: float = key(0.1, "KL that the adaptive controller aims at, summed over a response")
    horizon: int = key(10000, "samples over which the adaptive controller acts")


@dataclass
class FilterGroupsConfig:
    enable: bool = key(False, "train only on prompts whose samples differ in metric; generate until a batch is full")
    metric: str = key("score", "what must differ: score, or a further value that the reward function returns (as acc)")
    max_num_gen_batches: int = key(10, "batches of prompts tried for one step before that is an error; 0 is no limit")


@dataclass
class RolloutCorrectionConfig:
    rollout_is: str | None = key(None, "importance weights p_train / p_rollout: token, sequence, or null for none")
    rollout_is_threshold: float = key(2.0, "largest weight; what is above is cut to it")
    rollout_is_batch_normalize: bool = key(False, "divide the weights by their mean over the batch")
    rollout_rs: str | None = key(None, "what is left out when out of bounds: token_k1, seq_sum_k1, seq_mean_k1 or null")
    rollout_rs_threshold: str = key("2.0", "bounds of the ratio as lower_upper (0.5_2.0); one number u means 1/u to u")
    bypass_mode: bool = key(False, "take the rollout's log-probs as the old ones and do not compute the trainer's")


@dataclass
class OnlinePreferenceConfig(PreferenceLossConfig):
    loss: str | None = key(
        None, "learn from the ranking of each prompt's samples by this loss (dpo, ipo, simpo, kto), not from advantages"
    )


@dataclass
class AlgorithmConfig:
    name: str | None = key(None, "short name that sets estimator, loss and KL route together (docs/algorithms.md)")
    adv_estimator: str = key("gae", "an advantage estimator by name, or `package.module:function`")
    gamma: float = key(1.0, "discount per token")
    lam: float = key(1.0, "lambda of GAE")
    norm_adv_by_std_in_grpo: bool = key(True, "divide group advantages by their standard deviation")
    gdpo_reward_weights: dict[str, float] = key(dict, "weights of single rewards in gdpo; one not named weighs 1")
    use_kl_in_reward: bool = key(False, "subtract kl_coef * KL(actor, ref) from every token's reward")
    kl_penalty: str = key("kl", "estimator of KL in the reward: kl (k1), abs, mse (k2) or low_var_kl (k3)")
    kl_ctrl: KLControlConfig = key(KLControlConfig, "the coefficient of KL in the reward")
    filter_groups: FilterGroupsConfig = key(FilterGroupsConfig, "dynamic sampling, as in DAPO")
    preference: OnlinePreferenceConfig = key(OnlinePreferenceConfig, "preference learning from samples")
    rollout_correction: RolloutCorrectionConfig = key(
        RolloutCorrectionConfig, "correction for the difference between rollout and trainer"
    )
