"""The clipped loss of PPO."""

import torch
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
    "vanilla",
    equation="max(-A r, -A clip(r, 1 - low, 1 + high)), and for A < 0 at most -A c",
    paper="arXiv:1707.06347; dual clip arXiv:1912.09729; separate clip ranges arXiv:2503.14476",
)
def vanilla(inputs: PolicyLossInputs, config: ActorConfig) -> tuple[Tensor, Metrics]:
    """With r = p / p_old per token:

        L = max(-A r, -A clip(r, 1 - clip_ratio_low, 1 + clip_ratio_high));   for A < 0: L = min(L, -A clip_ratio_c)

    J. Schulman et al., arXiv:1707.06347, equation 7; dual clip: D. Ye et al., arXiv:1912.09729; separate lower and
    upper ranges: DAPO, arXiv:2503.14476.

    Args:
        inputs: all [b, R].
        config: clip_ratio, clip_ratio_low, clip_ratio_high, clip_ratio_c, loss_agg_mode.

    Returns:
        (sum, metrics): `pg_clipfrac` (tokens that the range clips), `pg_clipfrac_lower` (that dual clip bounds),
        `ppo_kl`, `ratio_mean`, `ratio_max`, `ratio_min`.

    Raises:
        ValueError: `clip_ratio_c` not above 1, or a negative range.
    """
    low, high = clip_range(config)
    if config.clip_ratio_c <= 1:
        raise ValueError(f"actor.clip_ratio_c must be above 1, got {config.clip_ratio_c}")
    tokens = inputs.valid()
    ratio = tokens.log_ratio.exp()
    unclipped = -tokens.advantages * ratio
    clipped = -tokens.advantages * ratio.clamp(1 - low, 1 + high)
    loss = torch.maximum(unclipped, clipped)
    bound = -tokens.advantages * config.clip_ratio_c
    bounded = (tokens.advantages < 0) & (loss > bound)
    metrics = {
        "pg_clipfrac": mean_over((clipped > unclipped).float(), tokens.mask),
        "pg_clipfrac_lower": mean_over(bounded.float(), tokens.mask),
        **ratio_metrics(tokens.log_ratio, tokens.mask),
    }
    return aggregate(torch.where(bounded, bound, loss), inputs, config), metrics
