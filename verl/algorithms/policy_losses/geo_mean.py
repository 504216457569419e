"""Geometric-mean policy optimisation (GMPO)."""

import torch
from torch import Tensor

from verl.algorithms.masked import masked_mean
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
    "geo_mean",
    equation="-A exp(mean over the response of l), l = min(log r, high) where A >= 0 and max(log r, -low) where A < 0",
    paper="arXiv:2507.20673",
)
def geo_mean(inputs: PolicyLossInputs, config: ActorConfig) -> tuple[Tensor, Metrics]:
    """The geometric mean of the token ratios of a response, each clipped first, on the side that PPO clips:

        l_t = min(log r_t, high) if A_t >= 0, max(log r_t, -low) if A_t < 0;   L_i = -mean_t(A_t) exp(mean_t l_t)

    Y. Zhao et al., arXiv:2507.20673. `clip_ratio_low` and `clip_ratio_high` are ranges of
    log r here (the paper's is 0.4 on either side). L_i stands on each token of its response, so seq-mean-token-mean
    gives the paper's mean over responses.

    Returns:
        (sum, metrics): `pg_clipfrac` (tokens clipped), `ppo_kl`, `ratio_*` of the tokens.
    """
    low, high = clip_range(config)
    tokens = inputs.valid()
    clipped = torch.where(tokens.advantages >= 0, tokens.log_ratio.clamp(max=high), tokens.log_ratio.clamp(min=-low))
    advantage = masked_mean(tokens.advantages, tokens.mask, dim=-1)
    loss = -advantage * masked_mean(clipped, tokens.mask, dim=-1).exp()
    metrics = {
        "pg_clipfrac": mean_over((clipped != tokens.log_ratio).float(), tokens.mask),
        **ratio_metrics(tokens.log_ratio, tokens.mask),
    }
    return aggregate(loss[:, None].expand_as(tokens.mask), inputs, config), metrics
