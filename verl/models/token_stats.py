"""Log-probabilities and entropies of tokens without ever holding logits for all of them."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.utils.checkpoint import checkpoint

LOGITS_PER_CHUNK = 2**26
"""Logits held at once (256 MiB in fp32): about 1300 tokens of a vocabulary of 50 000."""


class _TokenStatistics(torch.autograd.Function):
    """(log p(label), entropy) of softmax(logits / temperature), in fp32.

    With p = softmax(x):  d log p_y / dx_j = [j = y] - p_j  and  dH / dx_j = -p_j (log p_j + H).
    Written by hand because autograd would hold several [n, V] matrices where this holds one.
    """

    @staticmethod
    def forward(
        ctx: Any, logits: Tensor, labels: Tensor, temperature: float, with_entropy: bool
    ) -> tuple[Tensor, Tensor | None]:
        scaled = logits.float() if temperature == 1 else logits.float() / temperature
        log_total = scaled.logsumexp(-1)
        log_probs = scaled.gather(-1, labels[:, None]).squeeze(-1) - log_total
        entropy = None
        if with_entropy:
            entropy = torch.special.entr(_softmax(scaled, log_total)).sum(-1)
        ctx.save_for_backward(scaled, log_total, labels, entropy)
        ctx.temperature, ctx.dtype = temperature, logits.dtype
        ctx.set_materialize_grads(False)
        return log_probs, entropy

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, grad_log_probs: Tensor | None, grad_entropy: Tensor | None
    ) -> tuple[Tensor | None, None, None, None]:
        scaled, log_total, labels, entropy = ctx.saved_tensors
        if grad_log_probs is None and grad_entropy is None:
            return None, None, None, None
        if grad_log_probs is None:
            grad_log_probs = torch.zeros_like(log_total)
        probs = _softmax(scaled, log_total)
        if grad_entropy is None:
            grad = probs.mul_(-grad_log_probs[:, None])
        else:
            surprise = torch.special.entr(probs).mul_(grad_entropy[:, None])
            grad = probs.mul_(-(grad_log_probs + grad_entropy * entropy)[:, None]).add_(surprise)
        grad.scatter_add_(-1, labels[:, None], grad_log_probs[:, None])
        if ctx.temperature != 1:
            grad.div_(ctx.temperature)
        return grad.to(ctx.dtype), None, None, None


def _softmax(scaled: Tensor, log_total: Tensor) -> Tensor:
    return (scaled - log_total[:, None]).exp_()


def token_statistics(
    logits: Tensor, labels: Tensor, temperature: float = 1.0, with_entropy: bool = False
) -> tuple[Tensor, Tensor | None]:
    """log p(label) and entropy (None unless asked for), both [n] fp32, of softmax(logits / temperature).

    `logits` is [n, V] in any float dtype and `labels` [n]. Logits of -inf count as impossible tokens.
    """
    if temperature <= 0:
        raise ValueError(f"temperature must be above 0 to give log-probabilities, not {temperature}")
    return _TokenStatistics.apply(logits, labels, temperature, with_entropy)


def chunked_token_statistics(
    hidden: Tensor,
    head: Callable[[Tensor], Tensor],
    vocabulary: int,
    labels: Tensor,
    temperature: float = 1.0,
    with_entropy: bool = False,
    chunk_size: int | None = None,
) -> tuple[Tensor, Tensor | None]:
    """`token_statistics(head(hidden), ...)` with the logits of at most `chunk_size` tokens held at a time.

    `hidden` is [n, H]. With gradients, the logits of a chunk are computed again in the backward pass; only those of the
    last chunk, which the backward pass needs first, are kept. So a batch of one chunk pays for nothing.
    """
    size = chunk_size or max(1, LOGITS_PER_CHUNK // vocabulary)

    def statistics(part: Tensor, part_labels: Tensor) -> tuple[Tensor, Tensor | None]:
        return token_statistics(head(part), part_labels, temperature, with_entropy)

    chunks = list(zip(hidden.split(size), labels.split(size), strict=True))
    recompute = torch.is_grad_enabled()
    parts = [
        checkpoint(statistics, *chunk, use_reentrant=False, preserve_rng_state=False)
        if recompute and i < len(chunks) - 1
        else statistics(*chunk)
        for i, chunk in enumerate(chunks)
    ]
    log_probs, entropies = zip(*parts, strict=True)
    return torch.cat(log_probs), torch.cat(entropies) if with_entropy else None
