"""REINFORCE leave-one-out."""

import torch

from verl.algorithms.advantages.base import AdvantageInputs, Advantages, register_adv_est
from verl.algorithms.advantages.groups import Groups, outcome_advantages, outcome_scores
from verl.config.algorithm import AlgorithmConfig


@register_adv_est(
    "rloo",
    needs_groups=True,
    equation="A_i = R_i - mean of the other samples' R",
    paper="arXiv:2402.14740",
)
def rloo(batch: AdvantageInputs, config: AlgorithmConfig) -> Advantages:
    """A_i = R_i - sum_(j != i) R_j / (n - 1), the same on all tokens of response i.

    A. Ahmadian et al., arXiv:2402.14740. A response alone in its group has no baseline: its advantage is
    0, and `groups_of_one` counts it.

    Args:
        batch: token_level_rewards, response_mask [B, R], group_ids [B].
    """
    groups, scores = Groups.of(batch), outcome_scores(batch)
    others = (groups.sum(scores) - scores) / (groups.size - 1).clamp(min=1)
    return outcome_advantages(torch.where(groups.alone, 0.0, scores - others), batch, groups.metrics(scores))
