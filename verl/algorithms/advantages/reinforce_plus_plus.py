"""REINFORCE++: discounted returns, whitened over the batch."""

from verl.algorithms.advantages.base import AdvantageInputs, Advantages, register_adv_est
from verl.algorithms.advantages.recursion import discounted_sum
from verl.algorithms.masked import masked_whiten, promote
from verl.config.algorithm import AlgorithmConfig


@register_adv_est(
    "reinforce_plus_plus",
    equation="G_t = r_t + gamma G_(t+1); A = whitened G",
    paper="arXiv:2501.03262",
)
def reinforce_plus_plus(batch: AdvantageInputs, config: AlgorithmConfig) -> Advantages:
    """G_t = r_t + gamma G_{t+1};  A_t = (G_t - mean G) / std G over all valid tokens of the batch.

    J. Hu et al., arXiv:2501.03262. "t+1" is the next valid token. The paper puts KL into the rewards
    (`algorithm.use_kl_in_reward`).

    Args:
        batch: token_level_rewards, response_mask [B, R].
        config: gamma.
    """
    returns = discounted_sum(promote(batch.token_level_rewards), batch.response_mask, config.gamma)
    return Advantages(masked_whiten(returns, batch.response_mask), returns)
