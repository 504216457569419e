"""On-policy RL with the optimal reward baseline."""

from verl.algorithms.advantages.base import AdvantageInputs, Advantages, register_adv_est
from verl.algorithms.advantages.groups import Groups, outcome_advantages, outcome_scores
from verl.config.algorithm import AlgorithmConfig


@register_adv_est(
    "opo",
    needs_groups=True,
    equation="A_i = R_i - sum(l R) / sum(l) over the samples of a prompt, l the length",
    paper="arXiv:2505.23585",
)
def opo(batch: AdvantageInputs, config: AlgorithmConfig) -> Advantages:
    """A_i = R_i - sum_j l_j R_j / sum_j l_j with l the number of valid tokens: the baseline of least variance when the
    squared gradient of a response grows with its length.

    Y. Hao et al., arXiv:2505.23585. A response alone in its group is its own baseline: advantage 0.

    Args:
        batch: token_level_rewards, response_mask [B, R], group_ids [B].
    """
    groups, scores = Groups.of(batch), outcome_scores(batch)
    lengths = batch.response_mask.bool().sum(-1)
    baseline = groups.sum(lengths * scores) / groups.sum(lengths).clamp(min=1)
    return outcome_advantages(scores - baseline, batch, groups.metrics(scores))
