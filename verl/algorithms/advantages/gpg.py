"""Group policy gradient."""

from verl.algorithms.advantages.base import AdvantageInputs, Advantages, register_adv_est
from verl.algorithms.advantages.groups import Groups, outcome_advantages, outcome_scores
from verl.config.algorithm import AlgorithmConfig


@register_adv_est(
    "gpg",
    needs_groups=True,
    equation="A_i = B / (B - M) (R_i - mean(R)), M of B responses in groups whose scores are all equal",
    paper="arXiv:2504.02546",
)
def gpg(batch: AdvantageInputs, config: AlgorithmConfig) -> Advantages:
    """A_i = alpha (R_i - mean_g R) with alpha = B / (B - M): B responses in the batch, of which M stand in groups with
    all scores equal and so give no gradient; alpha makes up for them in the mean.

    X. Chu et al., arXiv:2504.02546, without division by a standard deviation. A response alone in its
    group counts among the M. If none teaches anything, all advantages are 0. The metric `gpg_alpha` is alpha.

    Args:
        batch: token_level_rewards, response_mask [B, R], group_ids [B].
    """
    groups, scores = Groups.of(batch), outcome_scores(batch)
    teaching = groups.member & (groups.std(scores) > 0)
    alpha = groups.member.sum() / teaching.sum().clamp(min=1)
    metrics = {**groups.metrics(scores), "gpg_alpha": float(alpha)}
    return outcome_advantages(alpha * (scores - groups.mean(scores)), batch, metrics)
