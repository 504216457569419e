"""GRPO for several rewards, each normalised by itself."""

import torch

from verl.algorithms.advantages.base import AdvantageInputs, Advantages, register_adv_est
from verl.algorithms.advantages.groups import Groups, outcome_advantages
from verl.algorithms.masked import masked_whiten
from verl.config.algorithm import AlgorithmConfig


@register_adv_est(
    "gdpo",
    needs_groups=True,
    needs_reward_components=True,
    equation="A = whitened over the responses of the batch (sum_k w_k (r_k - mean(r_k)) / (std(r_k) + 1e-6))",
    paper="arXiv:2601.05242",
)
def gdpo(batch: AdvantageInputs, config: AlgorithmConfig) -> Advantages:
    """A_i = whiten(sum_k w_k (r_ki - mean_g r_k) / (std_g r_k + 1e-6)), whitened over the responses of the batch.

    S.-Y. Liu et al., arXiv:2601.05242. Normalising the rewards one by one keeps apart combinations that
    have the same sum. A response alone in its group gets 0 and takes no part in the whitening.

    Args:
        batch: response_mask [B, R], group_ids [B], reward_components (name -> [B]); the sum in token_level_rewards
            does not count.
        config: gdpo_reward_weights, name -> w_k (1 for a reward that is not named).

    Raises:
        ValueError: no components; a weight without its component; a component that is NaN or infinite on a row with
            valid tokens; or `use_kl_in_reward`, which would be lost without a word.
    """
    components, weights = batch.reward_components, config.gdpo_reward_weights
    if config.use_kl_in_reward:
        raise ValueError("gdpo reads single rewards, so KL in the reward has no effect: use actor.use_kl_loss instead")
    if not components or not weights.keys() <= components.keys():
        raise ValueError(
            f"gdpo: rewards {sorted(components or ())} against algorithm.gdpo_reward_weights {sorted(weights)}: at "
            f"least one reward is needed, and every weight must belong to one"
        )
    groups = Groups.of(batch)
    total = torch.zeros_like(groups.size)
    metrics = {}
    for name, scores in components.items():
        if not scores[groups.member].isfinite().all():
            rows = torch.nonzero(groups.member & ~scores.isfinite()).flatten().tolist()
            raise ValueError(
                f"gdpo: reward {name!r} is no finite number in rows {rows[:10]}: a reward that is normalised by itself "
                "needs one in every row"
            )
        scores = torch.where(groups.member, scores.double(), 0.0)
        total += weights.get(name, 1.0) * (scores - groups.mean(scores)) / (groups.std(scores) + 1e-6)
        metrics[f"groups_all_equal/{name}"] = groups.metrics(scores)["groups_all_equal"]
    metrics["groups_of_one"] = float(groups.alone.sum())
    return outcome_advantages(masked_whiten(total, groups.member & ~groups.alone), batch, metrics)
