"""Generalised advantage estimation."""

from verl.algorithms.advantages.base import AdvantageInputs, Advantages, register_adv_est
from verl.algorithms.advantages.recursion import discounted_sum, next_valid
from verl.algorithms.masked import keep_valid, masked_whiten
from verl.config.algorithm import AlgorithmConfig


@register_adv_est(
    "gae",
    needs_critic=True,
    equation="A_t = sum_k (gamma lam)^k delta_(t+k), delta_t = r_t + gamma V_(t+1) - V_t; whitened",
    paper="arXiv:1506.02438",
)
def gae(batch: AdvantageInputs, config: AlgorithmConfig) -> Advantages:
    """delta_t = r_t + gamma V_{t+1} - V_t;  A_t = delta_t + gamma lam A_{t+1};  returns_t = A_t + V_t.

    J. Schulman et al., arXiv:1506.02438, equations 11 to 16. "t+1" is the next valid token, V after the last is 0.
    The advantages are then whitened over all valid tokens of the batch; the returns are not.

    Args:
        batch: token_level_rewards, response_mask, values [B, R].
        config: gamma, lam.
    """
    assert batch.values is not None
    mask = batch.response_mask
    values = keep_valid(batch.values, mask)
    rewards = keep_valid(batch.token_level_rewards, mask)
    deltas = rewards + config.gamma * next_valid(values, mask) - values
    advantages = discounted_sum(deltas, mask, config.gamma * config.lam)
    return Advantages(masked_whiten(advantages, mask), keep_valid(advantages + values, mask))
