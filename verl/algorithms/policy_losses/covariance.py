"""Which tokens change the policy's entropy most: the choice that clip_cov and kl_cov share."""

import torch
from torch import Tensor

from verl.algorithms.masked import keep_valid, masked_mean
from verl.algorithms.policy_losses.base import PolicyLossInputs


def token_covariance(inputs: PolicyLossInputs) -> Tensor:
    """(log p - mean log p) (A - mean A) [B, R] with means over the valid tokens of the whole batch.

    G. Cui et al., arXiv:2505.22617. Tokens that are likely and good (or unlikely and bad) cost entropy.
    """
    tokens = inputs.valid()
    log_probs = tokens.log_probs - masked_mean(tokens.log_probs, tokens.mask)
    advantages = tokens.advantages - masked_mean(tokens.advantages, tokens.mask)
    return keep_valid(log_probs * advantages, tokens.mask)


def pick(scores: Tensor, candidates: Tensor, count: int) -> Tensor:
    """bool [B, R]: the `count` candidates with the largest scores, or all of them if they are fewer."""
    ranked = torch.where(candidates, scores, -torch.inf).flatten()
    best = ranked.topk(min(count, int(candidates.sum()))).indices
    return torch.zeros_like(ranked, dtype=torch.bool).index_fill(0, best, True).view(scores.shape)


def how_many(fraction: float, inputs: PolicyLossInputs, argument: str) -> int:
    """`fraction` of the valid tokens, at least one.

    Raises:
        ValueError: `fraction` is not in [0, 1].
    """
    if not 0 <= fraction <= 1:
        raise ValueError(f"{argument} is a fraction of tokens, from 0 to 1, got {fraction}")
    return max(int(fraction * int(inputs.response_mask.bool().sum())), 1)


def chosen(inputs: PolicyLossInputs, loss: str) -> Tensor:
    """`inputs.selected`, bool [b, R].

    Raises:
        ValueError: there is none. A choice made here would depend on the cut into micro-batches.
    """
    if inputs.selected is None:
        raise ValueError(
            f"policy loss {loss!r} needs `selected`: get it once, for the whole batch, from "
            f"`get_policy_loss({loss!r}).select(...)`"
        )
    return inputs.selected.bool() & inputs.response_mask.bool()
