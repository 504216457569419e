"""ReMax: the score of the greedy response is the baseline."""

from verl.algorithms.advantages.base import AdvantageInputs, Advantages, register_adv_est
from verl.algorithms.advantages.groups import spread
from verl.algorithms.advantages.recursion import discounted_sum
from verl.algorithms.masked import promote
from verl.config.algorithm import AlgorithmConfig


@register_adv_est(
    "remax",
    needs_greedy_baseline=True,
    equation="A_t = sum_(k >= t) r_k - R(greedy response)",
    paper="arXiv:2310.10505",
)
def remax(batch: AdvantageInputs, config: AlgorithmConfig) -> Advantages:
    """A_t = (r_t + r_{t+1} + ...) - b with b the score of the prompt's greedy response; the returns are the sums.

    Z. Li et al., arXiv:2310.10505, algorithm 1. Not discounted, not whitened.

    Args:
        batch: token_level_rewards, response_mask [B, R], baseline_scores [B].

    Raises:
        ValueError: a baseline of a row with valid tokens is NaN or infinite.
    """
    assert batch.baseline_scores is not None
    returns = discounted_sum(promote(batch.token_level_rewards), batch.response_mask, 1.0)
    baseline = spread(batch.baseline_scores, batch)
    if not baseline.isfinite().all():
        raise ValueError("baseline_scores hold NaN or inf: a greedy response was not scored")
    return Advantages(returns - baseline, returns)
