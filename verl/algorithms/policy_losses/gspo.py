"""Group sequence policy optimisation."""

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
    "gspo",
    equation="max(-A s, -A clip(s, 1 - low, 1 + high)), s = exp(mean over the response of log r), per-token gradient",
    paper="arXiv:2507.18071",
)
def gspo(inputs: PolicyLossInputs, config: ActorConfig) -> tuple[Tensor, Metrics]:
    """With s_i = exp(mean_t log r_it) the ratio of response i, in the token form (GSPO-token):

        s_it = stop(s_i) r_it / stop(r_it);   L = max(-A s_it, -A clip(s_it, 1 - clip_ratio_low, 1 + clip_ratio_high))

    C. Zheng et al., arXiv:2507.18071, equations 7 and 13. If all tokens of a response have one advantage and one
    weight, value and gradient are those of the sequence form (equation 5). The paper's ranges are small (3e-4, 4e-4)
    and its aggregation is seq-mean-token-mean.

    Returns:
        (sum, metrics): `pg_clipfrac`, `ppo_kl`, and the mean, largest and smallest s.
    """
    low, high = clip_range(config)
    tokens = inputs.valid()
    sequence = masked_mean(tokens.log_ratio, tokens.mask, dim=-1).detach()[:, None]
    # The value is the sequence's, the gradient goes to each token by itself.
    log_ratio = sequence + (tokens.log_ratio - tokens.log_ratio.detach())
    ratio = log_ratio.exp()
    unclipped = -tokens.advantages * ratio
    clipped = -tokens.advantages * ratio.clamp(1 - low, 1 + high)
    metrics = {
        "pg_clipfrac": mean_over((clipped > unclipped).float(), tokens.mask),
        **ratio_metrics(log_ratio, tokens.mask),
    }
    return aggregate(torch.maximum(unclipped, clipped), inputs, config), metrics
