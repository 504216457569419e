"""Group relative policy optimisation, with and without division by the standard deviation."""

import torch

from verl.algorithms.advantages.base import AdvantageInputs, Advantages, register_adv_est
from verl.algorithms.advantages.groups import Groups, outcome_advantages, outcome_scores
from verl.config.algorithm import AlgorithmConfig


@register_adv_est(
    "grpo",
    needs_groups=True,
    equation="A_i = (R_i - mean(R)) / (std(R) + 1e-6) over the samples of a prompt; Dr.GRPO: no division",
    paper="arXiv:2402.03300; Dr.GRPO (norm_adv_by_std_in_grpo=False) arXiv:2503.20783",
)
def grpo(batch: AdvantageInputs, config: AlgorithmConfig) -> Advantages:
    """A_i = (R_i - mean_g R) / (std_g R + 1e-6), the same on all tokens of response i of group g.

    Z. Shao et al., arXiv:2402.03300, section 4.1.2, with the sample standard deviation (ddof 1). Without
    `norm_adv_by_std_in_grpo` it is Dr.GRPO (Z. Liu et al., arXiv:2503.20783): A_i = R_i - mean_g R. A response alone in
    its group has no baseline: its advantage is 0, and `groups_of_one` counts it.

    Args:
        batch: token_level_rewards, response_mask [B, R], group_ids [B].
        config: norm_adv_by_std_in_grpo.
    """
    groups, scores = Groups.of(batch), outcome_scores(batch)
    advantages = scores - groups.mean(scores)
    if config.norm_adv_by_std_in_grpo:
        advantages = advantages / (groups.std(scores) + 1e-6)
    return outcome_advantages(torch.where(groups.alone, 0.0, advantages), batch, groups.metrics(scores))
