"""GRPO that trains the best of k samples."""

import torch

from verl.algorithms.advantages.base import AdvantageInputs, Advantages, register_adv_est
from verl.algorithms.advantages.groups import Groups, outcome_advantages, outcome_scores
from verl.config.algorithm import AlgorithmConfig


@register_adv_est(
    "grpo_passk",
    needs_groups=True,
    equation="A = (R_best - R_second) / (std(R) + 1e-6) for the best sample of a prompt, 0 for the others",
    paper="arXiv:2503.19595",
)
def grpo_passk(batch: AdvantageInputs, config: AlgorithmConfig) -> Advantages:
    """The best response of a group gets what it adds to the group's maximum, R_best - R_second, all others 0.

    Y. Tang et al., arXiv:2503.19595 (k samples, leave-one-out baseline of the maximum). Divided by
    (std_g R + 1e-6) unless `norm_adv_by_std_in_grpo` is off. Two equally good best ones add nothing: 0. So does a
    response alone in its group, which has no second; `groups_of_one` counts it.

    Args:
        batch: token_level_rewards, response_mask [B, R], group_ids [B].
        config: norm_adv_by_std_in_grpo.
    """
    groups, scores = Groups.of(batch), outcome_scores(batch)
    best = groups.member & (scores == groups.max(scores))
    only_best = best & (groups.sum(best) == 1) & ~groups.alone
    second = groups.max(torch.where(best, -torch.inf, scores))
    gap = torch.where(only_best, scores - second, 0.0)
    if config.norm_adv_by_std_in_grpo:
        gap = gap / (groups.std(scores) + 1e-6)
    return outcome_advantages(gap, batch, groups.metrics(scores))
