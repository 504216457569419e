"""Sums that run backwards over the tokens of a response."""

import torch
from torch import Tensor

from verl.algorithms.masked import keep_valid


def reverse_scan(terms: Tensor, factors: Tensor) -> Tensor:
    """y_t = terms_t + factors_t * y_{t+1} with y_R = 0, along the last dimension, in log2(R) vectorised passes.

    After the pass of stride s, `terms[t]` holds the sum over [t, t + 2s) and `factors[t]` the product over it. What
    is added to what depends on distances only, so padding on the right changes no bit of the result.
    """
    width = terms.shape[-1]
    stride = 1
    while stride < width:
        reach = factors[..., :-stride]
        terms = torch.cat([terms[..., :-stride] + reach * terms[..., stride:], terms[..., -stride:]], -1)
        factors = torch.cat([reach * factors[..., stride:], torch.zeros_like(factors[..., -stride:])], -1)
        stride *= 2
    return terms


def discounted_sum(terms: Tensor, mask: Tensor, discount: float) -> Tensor:
    """G_t = terms_t + discount * G_(next valid token), 0 under a mask of 0. Tokens in between do not discount.

    Args:
        terms: [B, R]. mask: [B, R]. discount: per valid token.
    """
    terms = keep_valid(terms, mask)
    factors = torch.ones_like(terms).masked_fill(mask.bool(), discount)
    return keep_valid(reverse_scan(terms, factors), mask)


def next_valid(values: Tensor, mask: Tensor) -> Tensor:
    """[B, R]: for each token the value at the next valid token to its right, 0 where there is none."""
    values = keep_valid(values, mask)
    here_or_next = reverse_scan(values, torch.ones_like(values).masked_fill(mask.bool(), 0.0))
    return torch.nn.functional.pad(here_or_next[..., 1:], (0, 1))
