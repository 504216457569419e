"""Clipped importance weights (CISPO)."""

from torch import Tensor

from verl.algorithms.policy_losses.base import (
    PolicyLossInputs,
    aggregate,
    clip_range,
    mean_over,
    ratio_metrics,
    register_policy_loss,
)
from verl.config.actor_rollout_ref import ActorConfig
from verl.utils.metrics import Metrics


@register_policy_loss(
    "cispo",
    equation="-stop(clip(r, 1 - low, 1 + high)) A log p",
    paper="arXiv:2506.13585",
)
def cispo(inputs: PolicyLossInputs, config: ActorConfig) -> tuple[Tensor, Metrics]:
    """L = -stop(clip(r, 1 - clip_ratio_low, 1 + clip_ratio_high)) A log p: weights are clipped, gradients are not.

    MiniMax, arXiv:2506.13585. The paper sets no lower bound: clip_ratio_low=1.

    Returns:
        (sum, metrics): `pg_clipfrac` (weights cut at the upper bound), `pg_clipfrac_lower` (raised to the lower one),
        `ppo_kl`, `ratio_*`.
    """
    low, high = clip_range(config)
    tokens = inputs.valid()
    ratio = tokens.log_ratio.detach().exp()
    loss = -ratio.clamp(1 - low, 1 + high) * tokens.advantages * tokens.log_probs
    metrics = {
        "pg_clipfrac": mean_over((ratio > 1 + high).float(), tokens.mask),
        "pg_clipfrac_lower": mean_over((ratio < 1 - low).float(), tokens.mask),
        **ratio_metrics(tokens.log_ratio, tokens.mask),
    }
    return aggregate(loss, inputs, config), metrics
