"""The critic's loss."""

import torch
from torch import Tensor

from verl.algorithms.aggregation import loss_weights
from verl.algorithms.masked import keep_valid
from verl.utils.metrics import Mean, Metrics


def value_loss(
    values: Tensor,
    old_values: Tensor,
    returns: Tensor,
    response_mask: Tensor,
    cliprange: float,
    agg_mode: str,
    max_length: float | None = None,
) -> tuple[Tensor, Metrics]:
    """Clipped squared error of the values, as a sum to be divided by `loss_denominator`:

        0.5 * max((V - R)^2, (clip(V, V_old - c, V_old + c) - R)^2)

    The clipping of PPO's implementation (arXiv:2005.12729, section 3); c = 0 turns it off.

    Args:
        values: [B, R], what the critic says now; gradients flow through it.
        old_values: [B, R], what it said before this step's updates.
        returns: [B, R], the targets.
        response_mask: [B, R], 1 on tokens that count.
        cliprange: c, not negative.
        agg_mode, max_length: see `loss_weights`.

    Returns:
        (sum, metrics `vf_clipfrac`, `vpred_mean`, both over valid tokens).

    Raises:
        ValueError: negative `cliprange`, unknown `agg_mode`.
    """
    if cliprange < 0:
        raise ValueError(f"critic.cliprange_value must not be negative, got {cliprange}; 0 turns clipping off")
    values = keep_valid(values, response_mask)
    old_values = keep_valid(old_values, response_mask).detach()
    returns = keep_valid(returns, response_mask).detach()
    squares = (values - returns) ** 2
    clipped = torch.zeros_like(response_mask, dtype=torch.bool)
    if cliprange > 0:
        held = torch.minimum(torch.maximum(values, old_values - cliprange), old_values + cliprange)
        held_squares = (held - returns) ** 2
        clipped = held_squares > squares
        squares = torch.maximum(squares, held_squares)
    loss = (0.5 * squares * loss_weights(response_mask, agg_mode, max_length)).sum()
    count = response_mask.bool().sum()
    return loss, {"vf_clipfrac": Mean(clipped.sum(), count), "vpred_mean": Mean(values.detach().sum(), count)}
