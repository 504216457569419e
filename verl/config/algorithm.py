"""The algorithm: advantages and KL."""

from dataclasses import dataclass
from typing import Literal

from verl.config.keys import key


@dataclass
class KLControlConfig:
    type: Literal["fixed", "adaptive"] = key("fixed", "a constant coefficient, or one that steers KL to target_kl")
    kl_coef: float = key(0.001, "the (initial) coefficient of KL in the reward")
    target_kl: float = key(0.1, "KL that the adaptive controller aims at, summed over a response")
    horizon: int = key(10000, "samples over which the adaptive controller acts")


@dataclass
class AlgorithmConfig:
    adv_estimator: str = key("gae", "an advantage estimator by name, or `package.module:function`")
    gamma: float = key(1.0, "discount per token")
    lam: float = key(1.0, "lambda of GAE")
    norm_adv_by_std_in_grpo: bool = key(True, "divide group advantages by their standard deviation")
    gdpo_reward_weights: dict[str, float] = key(dict, "weights of single rewards in gdpo; one not named weighs 1")
    use_kl_in_reward: bool = key(False, "subtract kl_coef * KL(actor, ref) from every token's reward")
    kl_penalty: str = key("kl", "estimator of KL in the reward: kl (k1), abs, mse (k2) or low_var_kl (k3)")
    kl_ctrl: KLControlConfig = key(KLControlConfig, "the coefficient of KL in the reward")
