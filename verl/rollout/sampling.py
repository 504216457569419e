"""From logits to tokens, as pure functions: temperature, then top-k, then top-p, then one choice by inverse CDF.

B is the number of rows, V the size of the vocabulary. A token is chosen by a uniform number of the row's own, so it
depends on that row's logits and number and on no other row.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from verl.rollout.base import Sampling

TOP_P_CANDIDATES = 1024
"""Tokens looked at first for top-p. They hold nearly all mass, and finding them costs a tenth of sorting all."""

CPU_ELEMENTS = 2**19
"""Logits looked at together on a CPU: pieces that stay in its cache take less than half the time of the whole."""

_ROUNDING = 1e-6
"""What a sum of fp32 probabilities may miss by: a set that reaches top_p on paper must reach it here."""


def uniforms(seeds: Sequence[int], length: int) -> Tensor:
    """`length` numbers in [0, 1) for each seed: float64 [B, length]. A longer row starts with the shorter one.

    Philox takes all 64 bits of a seed; torch's CPU generator takes only the lower 32.
    """
    rows = [np.random.Generator(np.random.Philox(key=int(seed) % 2**64)).random(length) for seed in seeds]
    return torch.from_numpy(np.stack(rows))


def log_probs_of(logits: Tensor, temperature: float) -> Tensor:
    """log softmax(logits / temperature) [B, V] in fp32; temperature 0 (greedy) takes 1."""
    scores = logits.float()
    if temperature not in (0.0, 1.0):
        # The largest becomes 0 before the division, so that no temperature, however small, overflows.
        scores = (scores - scores.amax(-1, keepdim=True)) / temperature
    return scores.log_softmax(-1)


def filtered_probs(log_probs: Tensor, top_k: int = -1, top_p: float = 1.0) -> Tensor:
    """Probabilities [B, V] with tokens outside top-k and top-p set to 0; the rest is not rescaled.

    Top-k keeps the k most likely tokens. Top-p then keeps the fewest most likely tokens of those whose share of their
    mass reaches `top_p` (Holtzman et al. 2020), at least one. Of equally likely tokens the lower ids stay.
    """
    probs = log_probs.exp()
    by_k = 0 < top_k < probs.shape[-1]
    if not by_k and top_p == 1:
        return probs
    largest = probs.topk(top_k, dim=-1).values if by_k else _largest_with_mass(probs, top_p)
    count = torch.full((len(probs), 1), largest.shape[-1], device=probs.device)
    if top_p < 1:
        cumulative = largest.cumsum(-1, dtype=torch.float64)
        mass = cumulative[:, -1:] if by_k else 1.0
        before = cumulative - largest
        count = (before < (top_p - _ROUNDING) * mass).sum(-1, keepdim=True).clamp_min(1)
    return torch.where(_most_likely(probs, largest.gather(-1, count - 1), count), probs, 0.0)


def _largest_with_mass(probs: Tensor, mass: float) -> Tensor:
    """The largest probabilities of each row in falling order, as many as every row needs to reach `mass`."""
    largest = probs.topk(min(TOP_P_CANDIDATES, probs.shape[-1]), dim=-1).values
    if bool((largest.sum(-1, dtype=torch.float64) >= mass).all()):
        return largest
    return probs.sort(dim=-1, descending=True).values


def _most_likely(probs: Tensor, smallest: Tensor, count: Tensor) -> Tensor:
    """The mask [B, V] of each row's `count` [B, 1] most likely tokens, of which the last has probability `smallest`."""
    kept = probs >= smallest
    if torch.equal(kept.sum(-1, keepdim=True), count):
        return kept
    above = probs > smallest
    room = count - above.sum(-1, keepdim=True)
    ties = kept & ~above
    return above | (ties & (ties.cumsum(-1) <= room))


def inverse_cdf(weights: Tensor, u: Tensor) -> Tensor:
    """The first index at which the running share of `weights` [B, V] exceeds `u` [B], a number in [0, 1).

    Weights are non-negative and need not sum to 1; an index of weight 0 is never chosen.
    """
    cumulative = weights.cumsum(-1, dtype=torch.float64)
    # Below the total for every u < 1, also after rounding: a float64 below 1 is at most 1 - 2**-53.
    target = u.unsqueeze(-1) * cumulative[:, -1:]
    return torch.searchsorted(cumulative, target, right=True).squeeze(-1)


def choose(logits: Tensor, u: Tensor, sampling: Sampling) -> tuple[Tensor, Tensor]:
    """One token per row of `logits` [B, V]: ids int64 [B] and log-probs fp32 [B] (before top-k and top-p).

    `u` float64 [B] decides; temperature 0 takes the most likely token instead. Logits with a NaN or +inf give a
    log-prob of NaN.
    """
    rows = len(logits) if logits.is_cuda else max(1, CPU_ELEMENTS // logits.shape[-1])
    parts = [_choose(*part, sampling) for part in zip(logits.split(rows), u.split(rows), strict=True)]
    tokens, log_probs = zip(*parts, strict=True)
    return torch.cat(tokens), torch.cat(log_probs)


def _choose(logits: Tensor, u: Tensor, sampling: Sampling) -> tuple[Tensor, Tensor]:
    log_probs = log_probs_of(logits, sampling.temperature)
    if sampling.temperature == 0:
        tokens = log_probs.argmax(-1)
    else:
        # Where the row is NaN no running sum exceeds anything; the caller sees the NaN, not an index out of range.
        tokens = inverse_cdf(filtered_probs(log_probs, sampling.top_k, sampling.top_p), u)
        tokens = tokens.clamp_max(log_probs.shape[-1] - 1)
    return tokens, log_probs.gather(-1, tokens.unsqueeze(-1)).squeeze(-1)
