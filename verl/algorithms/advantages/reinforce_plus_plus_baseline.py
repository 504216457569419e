"""REINFORCE++ with the group's mean as a baseline."""

from verl.algorithms.advantages.base import AdvantageInputs, Advantages, register_adv_est
from verl.algorithms.advantages.groups import Groups, outcome_scores, spread
from verl.algorithms.masked import masked_whiten
from verl.config.algorithm import AlgorithmConfig


@register_adv_est(
    "reinforce_plus_plus_baseline",
    needs_groups=True,
    equation="A = whitened over the batch (R_i - mean(R) over the samples of a prompt)",
    paper="arXiv:2501.03262",
)
def reinforce_plus_plus_baseline(batch: AdvantageInputs, config: AlgorithmConfig) -> Advantages:
    """A_i = R_i - mean_g R, then whitened over all valid tokens of the batch.

    J. Hu et al., arXiv:2501.03262, the variant for several samples a prompt. A response alone in its group has no
    baseline: it gets 0, takes no part in the whitening, and `groups_of_one` counts it.

    Args:
        batch: token_level_rewards, response_mask [B, R], group_ids [B].
    """
    groups, scores = Groups.of(batch), outcome_scores(batch)
    compared = batch.response_mask.bool() & ~groups.alone[:, None]
    advantages = masked_whiten(spread(scores - groups.mean(scores), batch), compared)
    return Advantages(advantages, advantages, groups.metrics(scores))
