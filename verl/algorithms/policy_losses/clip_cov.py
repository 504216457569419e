"""Clip-Cov: PPO without the gradient of a few tokens that would cost most entropy."""

from dataclasses import replace

import torch
from torch import Tensor

from verl.algorithms.policy_losses.base import PolicyLossInputs, mean_over, register_policy_loss
from verl.algorithms.policy_losses.covariance import chosen, how_many, pick, token_covariance
from verl.algorithms.policy_losses.vanilla import vanilla
from verl.config.actor_rollout_ref import ActorConfig
from verl.utils.metrics import Metrics


def select(
    inputs: PolicyLossInputs, seed: int, *, clip_cov_ratio: float, clip_cov_lb: float, clip_cov_ub: float
) -> Tensor:
    """bool [B, R]: `clip_cov_ratio` of the valid tokens (at least one), drawn from those whose covariance is between
    the bounds; fewer if there are not so many.
    """
    covariance = token_covariance(inputs)
    candidates = inputs.response_mask.bool() & (covariance > clip_cov_lb) & (covariance < clip_cov_ub)
    draw = torch.rand(candidates.shape, generator=torch.Generator().manual_seed(seed)).to(candidates.device)
    return pick(draw, candidates, how_many(clip_cov_ratio, inputs, "clip_cov_ratio"))


@register_policy_loss(
    "clip_cov",
    equation="vanilla, but 0 for a few tokens drawn from those with lb < (log p - mean)(A - mean) < ub",
    paper="arXiv:2505.22617",
    select=select,
)
def clip_cov(
    inputs: PolicyLossInputs,
    config: ActorConfig,
    *,
    clip_cov_ratio: float = 2e-4,
    clip_cov_lb: float = 1.0,
    clip_cov_ub: float = 5.0,
) -> tuple[Tensor, Metrics]:
    """The loss of `vanilla`, with 0 on the tokens in `inputs.selected`.

    G. Cui et al., arXiv:2505.22617. The covariance is that of the policy before the updates of
    the step, over the whole batch: the same tokens whatever the cut into micro-batches.

    Args:
        inputs: with `selected`, as `select` gives it.
        clip_cov_ratio: fraction of the tokens to leave out.
        clip_cov_lb, clip_cov_ub: bounds of the covariance they are drawn from. (All three are read by `select`.)

    Returns:
        (sum, metrics): those of vanilla and `clip_cov_frac`, the fraction of tokens left out.
    """
    left_out = chosen(inputs, "clip_cov")
    kept = torch.where(left_out, 0.0, inputs.valid().advantages)
    loss, metrics = vanilla(replace(inputs, advantages=kept), config)
    return loss, {**metrics, "clip_cov_frac": mean_over(left_out.float(), inputs.response_mask)}
