"""How the losses of tokens become one number.

A loss is a SUM of weighted token losses; whoever owns the whole mini-batch divides by its denominator once. With m the
mask, T_i the valid tokens of sequence i, N the number of sequences with at least one and L a constant length:

| mode                    | weight of a token | denominator | what it is                                      |
|-------------------------|-------------------|-------------|-------------------------------------------------|
| token-mean              | m                 | sum of m    | mean over tokens (DAPO, arXiv:2503.14476)       |
| token-sum               | m                 | 1           | plain sum                                       |
| seq-mean-token-sum      | m                 | N           | mean over sequences of their sums               |
| seq-mean-token-mean     | m / T_i           | N           | mean over sequences of means (arXiv:2402.03300) |
| seq-mean-token-sum-norm | m / L             | N           | sum / (N L) (Dr.GRPO, arXiv:2503.20783)         |

Weights depend on a row alone and denominators of parts add up to that of the whole, so neither the cut into
micro-batches nor the number of processes changes the result.
"""

import torch
from torch import Tensor

AGGREGATION_MODES = (
    "token-mean",
    "token-sum",
    "seq-mean-token-sum",
    "seq-mean-token-mean",
    "seq-mean-token-sum-norm",
)


def loss_weights(mask: Tensor, mode: str, max_length: float | None = None) -> Tensor:
    """Weight [B, R] (float32) of each token's loss.

    Args:
        mask: [B, R], 1 on valid tokens.
        mode: one of AGGREGATION_MODES.
        max_length: the constant L in tokens; only seq-mean-token-sum-norm reads it.

    Raises:
        ValueError: unknown mode, or seq-mean-token-sum-norm without a positive `max_length`.
    """
    _check_mode(mode)
    weights = mask.bool().float()
    if mode == "seq-mean-token-mean":
        return weights / weights.sum(-1, keepdim=True).clamp(min=1)
    if mode == "seq-mean-token-sum-norm":
        if max_length is None or max_length <= 0:
            raise ValueError(f"seq-mean-token-sum-norm divides by a constant length above 0, got {max_length}")
        return weights / max_length
    return weights


def loss_denominator(mask: Tensor, mode: str, *, parts: int = 1) -> Tensor:
    """What the loss sum over `mask` [B, R] is divided by (a float32 scalar). Denominators of parts add up.

    Args:
        parts: how many denominators will be added (the number of processes). Only token-sum reads it: its
            denominator is 1 for the whole, so 1 / parts for each part.

    Raises:
        ValueError: unknown mode.
    """
    _check_mode(mode)
    valid = mask.bool()
    if mode == "token-sum":
        return torch.tensor(1.0 / parts, device=mask.device)
    return (valid if mode == "token-mean" else valid.any(-1)).sum().float()


def _check_mode(mode: str) -> None:
    if mode not in AGGREGATION_MODES:
        raise ValueError(f"unknown loss_agg_mode {mode!r}; known: {', '.join(AGGREGATION_MODES)}")
