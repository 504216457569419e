"""KL-Cov: a policy gradient with a KL penalty on the few tokens that would cost most entropy."""

import torch
from torch import Tensor

from verl.algorithms.policy_losses.base import (
    PolicyLossInputs,
    aggregate,
    mean_over,
    ratio_metrics,
    register_policy_loss,
)
from verl.algorithms.policy_losses.covariance import chosen, how_many, pick, token_covariance
from verl.config.actor_rollout_ref import ActorConfig
from verl.utils.metrics import Metrics


def select(inputs: PolicyLossInputs, seed: int, *, kl_cov_ratio: float, ppo_kl_coef: float) -> Tensor:
    """bool [B, R]: the `kl_cov_ratio` of the valid tokens (at least one) with the largest covariance."""
    return pick(token_covariance(inputs), inputs.response_mask.bool(), how_many(kl_cov_ratio, inputs, "kl_cov_ratio"))


@register_policy_loss(
    "kl_cov",
    equation="-A r, plus coef |log r| for the tokens with the largest (log p - mean)(A - mean)",
    paper="arXiv:2505.22617",
    select=select,
)
def kl_cov(
    inputs: PolicyLossInputs, config: ActorConfig, *, kl_cov_ratio: float = 2e-4, ppo_kl_coef: float = 1.0
) -> tuple[Tensor, Metrics]:
    """L = -A r + ppo_kl_coef |log r| [token in `inputs.selected`].

    G. Cui et al., arXiv:2505.22617. The covariance is that of the policy before the updates of
    the step, over the whole batch. `clip_ratio` is not read.

    Args:
        inputs: with `selected`, as `select` gives it.
        kl_cov_ratio: fraction of the tokens to hold back (read by `select`).
        ppo_kl_coef: weight of the penalty.

    Returns:
        (sum, metrics): `kl_cov_frac` (fraction of tokens held back), `ppo_kl`, `ratio_*`.
    """
    held_back = chosen(inputs, "kl_cov")
    tokens = inputs.valid()
    penalty = torch.where(held_back, ppo_kl_coef * tokens.log_ratio.abs(), 0.0)
    metrics = {
        "kl_cov_frac": mean_over(held_back.float(), tokens.mask),
        **ratio_metrics(tokens.log_ratio, tokens.mask),
    }
    return aggregate(-tokens.advantages * tokens.log_ratio.exp() + penalty, inputs, config), metrics
