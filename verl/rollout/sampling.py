"""From logits to tokens, as pure functions: temperature, top-k, top-p, and then one choice by an exponential race.

B is the number of rows, V the size of the vocabulary. The choice is made by random numbers of the row's own, so it
depends on that row's logits and numbers and on no other row.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from verl.rollout.base import Sampling

BLOCK = 256
"""Neighbouring tokens that first compete as one."""

TOP_P_CANDIDATES = 1024
"""Tokens looked at first for top-p. They hold nearly all mass, and finding them costs a tenth of sorting all."""

CPU_ELEMENTS = 2**19
"""Logits looked at together on a CPU: pieces that stay in its cache take less than half the time of the whole."""

_ROUNDING = 1e-6
"""What a sum of fp32 probabilities may miss by: a set that reaches top_p on paper must reach it here."""


class RowNoise:
    """A stream of random numbers for each row, fixed by the row's seed alone."""

    def __init__(self, seeds: Sequence[int]) -> None:
        self._streams = [noise_stream(seed) for seed in seeds]

    def draw(self, rows: Sequence[int], vocab: int) -> Tensor:
        """The next numbers of `rows`; see `draw_noise`."""
        return draw_noise([self._streams[row] for row in rows], vocab)


def noise_stream(seed: int) -> np.random.Generator:
    """The random numbers of one row. Philox takes all 64 bits of a seed; torch's CPU generator only the lower 32."""
    return np.random.Generator(np.random.Philox(key=int(seed) % 2**64))


def draw_noise(streams: Sequence[np.random.Generator], vocab: int) -> Tensor:
    """Each stream's next numbers for one choice among `vocab` tokens: exponential, float64 [streams, numbers]."""
    count = -(-vocab // BLOCK) + BLOCK
    uniform = torch.from_numpy(np.stack([stream.random(count) for stream in streams]))
    return -torch.log1p(-(uniform + 2**-54))  # the half step keeps 0 away


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


def race(weights: Tensor, noise: Tensor) -> Tensor:
    """One index per row of `weights` [B, V], drawn with probability weight / sum of weights.

    Exponential race (the Gumbel-max trick): with E_i exponential and independent, argmax_i w_i / E_i has that
    distribution. It is run among blocks of tokens first and then within the winning block, so that V / BLOCK + BLOCK
    numbers (`noise`, of `RowNoise.draw`) do instead of V. Weights are non-negative, not all 0, and of any scale.

    Unlike inverse-CDF sampling it withstands rounding. There, an error of 1e-6 in the running sum moves the choice
    whenever it falls among tokens less likely than that, which was seen at 1 token in 1000 for V = 49152 when the
    number of rows changed. Here a relative error e of the weights changes a choice with probability of order e.
    """
    blocks = nn.functional.pad(weights, (0, -weights.shape[-1] % BLOCK)).unflatten(-1, (-1, BLOCK))
    count = blocks.shape[1]
    block = (blocks.sum(-1, dtype=torch.float64) / noise[:, :count]).argmax(-1)
    inside = blocks[torch.arange(len(blocks), device=blocks.device), block]
    return block * BLOCK + (inside / noise[:, count:]).argmax(-1)


def choose(logits: Tensor, noise: Tensor | None, sampling: Sampling) -> tuple[Tensor, Tensor]:
    """One token per row of `logits` [B, V]: ids int64 [B] and log-probs fp32 [B] (before top-k and top-p).

    `noise` is that of `RowNoise.draw`; None takes the most likely token. Logits with a NaN or +inf give a log-prob
    of NaN.
    """
    rows = len(logits) if logits.is_cuda else max(1, CPU_ELEMENTS // logits.shape[-1])
    starts = range(0, len(logits), rows)
    parts = [_choose(logits[i : i + rows], None if noise is None else noise[i : i + rows], sampling) for i in starts]
    tokens, log_probs = zip(*parts, strict=True)
    return torch.cat(tokens), torch.cat(log_probs)


def _choose(logits: Tensor, noise: Tensor | None, sampling: Sampling) -> tuple[Tensor, Tensor]:
    log_probs = log_probs_of(logits, sampling.temperature)
    if noise is None:
        tokens = log_probs.argmax(-1)
    else:
        tokens = race(filtered_probs(log_probs, sampling.top_k, sampling.top_p), noise)
        # The race of a row of NaN may end in the last block's padding; the caller is to see the NaN.
        tokens = tokens.clamp_max(log_probs.shape[-1] - 1)
    return tokens, log_probs.gather(-1, tokens.unsqueeze(-1)).squeeze(-1)
