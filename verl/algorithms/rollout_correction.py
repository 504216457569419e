"""Correction for the gap between the policy that sampled (the rollout engine) and the one that is trained.

The two have the same weights but other kernels and precision, so their probabilities of one token differ. With
r_t = p_train / p_rollout of token t, a response can be reweighted by r (importance sampling) and tokens or responses
far off can be left out (rejection).

Sources: truncated importance sampling: E. Ionides, J. Comp. Graph. Stat. 17 (2008), for this gap F. Yao et al., "Your
efficient RL framework secretly brings you off-policy RL training" (2025); masking of tokens outside two bounds: IcePop,
Ling Team, arXiv:2510.18855.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from verl.algorithms.kl import kl_estimate
from verl.algorithms.masked import keep_valid, masked_mean, masked_sum

# Beyond exp(20) a weight is as good as infinite; truncation and rejection see it well before.
_MAX_LOG_RATIO = 20.0

WEIGHT_LEVELS = ("token", "sequence")
REJECTION_LEVELS = ("token_k1", "seq_sum_k1", "seq_mean_k1")


@dataclass(frozen=True)
class RolloutCorrection:
    """What the trainer does with a batch.

    Attributes:
        response_mask: [B, R], the mask without rejected tokens, in its own dtype. Losses and their denominators use
            this one, so that a rejected token counts in neither.
        weights: [B, R] float32 without gradient, 0 under `response_mask` 0; None when nothing is reweighted.
        metrics: figures over the valid tokens before rejection, see `rollout_correction`.
    """

    response_mask: Tensor
    weights: Tensor | None
    metrics: dict[str, float]


@torch.no_grad()
def rollout_correction(
    log_probs: Tensor,
    rollout_log_probs: Tensor,
    response_mask: Tensor,
    *,
    rollout_is: str | None = None,
    rollout_is_threshold: float = 2.0,
    rollout_is_batch_normalize: bool = False,
    rollout_rs: str | None = None,
    rollout_rs_threshold: float | str = 2.0,
) -> RolloutCorrection:
    """Compare two policies on the tokens that one of them sampled, and correct for the difference.

    Args:
        log_probs: [B, R], the trainer's, before this step's updates.
        rollout_log_probs: [B, R], the rollout engine's, of the same tokens at the same temperature.
        response_mask: [B, R].
        rollout_is: importance weights min(w, threshold): "token", w = r_t; "sequence", w = product of r_t over the
            response, the same on all its tokens; None, no weights.
        rollout_is_threshold: the bound of the weights (truncated importance sampling).
        rollout_is_batch_normalize: divide the weights by their mean over the tokens that are kept.
        rollout_rs: what is left out when outside the bounds: "token_k1", tokens by r_t (masked importance sampling);
            "seq_sum_k1", responses by the product of r_t; "seq_mean_k1", responses by the geometric mean of r_t;
            None, nothing.
        rollout_rs_threshold: the bounds as "lower_upper", for example "0.5_2"; one number u means 1/u to u.

    Returns:
        Mask, weights and metrics. Always: `rollout_kl` (k1 of KL(rollout || trainer), per token), `rollout_k3_kl`,
        `log_prob_diff_mean` and `log_prob_diff_max` (absolute), `ratio_mean`, `ratio_max`, `ratio_min`,
        `rejected_tokens_frac` and `rejected_responses_frac` (left out whole). With weights: `is_clipped_frac` and
        `is_ess`, the effective sample size (sum w)^2 / (n sum w^2) of the n tokens or responses kept, 1 at best.

    Raises:
        ValueError: unknown level, thresholds that make no sense, or log-probs that are not finite on valid tokens.
    """
    check_levels(rollout_is, rollout_rs, rollout_rs_threshold)
    if rollout_is_threshold <= 0:
        raise ValueError(f"rollout_is_threshold must be above 0, got {rollout_is_threshold}")
    mask = response_mask.bool()
    log_ratio = _log_ratio(log_probs, rollout_log_probs, mask)
    metrics = _differences(log_ratio, mask)
    kept = mask if rollout_rs is None else mask & _within(log_ratio, mask, rollout_rs, rollout_rs_threshold)
    metrics["rejected_tokens_frac"] = float(masked_mean((~kept).float(), mask))
    metrics["rejected_responses_frac"] = float(masked_mean((~kept.any(-1)).float(), mask.any(-1)))
    weights = None
    if rollout_is is not None:
        raw = _bounded_exp(log_ratio if rollout_is == "token" else log_ratio.sum(-1, keepdim=True).expand_as(mask))
        weights = keep_valid(raw.clamp(max=rollout_is_threshold), kept)
        metrics["is_clipped_frac"] = float(masked_mean((raw > rollout_is_threshold).float(), kept))
        metrics["is_ess"] = _effective_sample_size(weights, kept, rollout_is)
        if rollout_is_batch_normalize:
            weights = weights / masked_mean(weights, kept).clamp(min=torch.finfo(weights.dtype).tiny)
        weights = weights.float()
    return RolloutCorrection(kept.to(response_mask.dtype), weights, metrics)


def check_levels(rollout_is: str | None, rollout_rs: str | None, rollout_rs_threshold: float | str) -> None:
    """ValueError for an unknown level, or for bounds of `rollout_rs` that are none."""
    for name, level, known in (("rollout_is", rollout_is, WEIGHT_LEVELS), ("rollout_rs", rollout_rs, REJECTION_LEVELS)):
        if level is not None and level not in known:
            raise ValueError(f"unknown {name} {level!r}; known: {', '.join(known)}, or null for none")
    if rollout_rs is not None:
        parse_bounds(rollout_rs_threshold)


def parse_bounds(threshold: float | str) -> tuple[float, float]:
    """(lower, upper) of "lower_upper", or (1/u, u) of a number u.

    Raises:
        ValueError: not such a thing, or not 0 <= lower < upper.
    """
    parts = str(threshold).split("_")
    try:
        numbers = [float(part) for part in parts]
        lower, upper = numbers if len(numbers) == 2 else (1 / numbers[0], *numbers)
    except (ValueError, ZeroDivisionError) as error:
        raise ValueError(f'{threshold!r} are no bounds: write "lower_upper" or one number above 1') from error
    if not 0 <= lower < upper:
        raise ValueError(f"bounds {threshold!r} mean {lower} to {upper}: the lower must be below the upper, from 0 up")
    return lower, upper


def _log_ratio(log_probs: Tensor, rollout_log_probs: Tensor, mask: Tensor) -> Tensor:
    """log p_train - log p_rollout in float64 (long responses are summed), 0 under a mask of 0."""
    log_ratio = keep_valid(log_probs.double(), mask) - keep_valid(rollout_log_probs.double(), mask)
    finite = log_ratio.isfinite().all(-1)
    if not finite.all():
        rows = torch.nonzero(~finite).flatten().tolist()
        raise ValueError(f"log_probs or rollout_log_probs are not finite on valid tokens of rows {rows}")
    return log_ratio


def _bounded_exp(log_ratio: Tensor) -> Tensor:
    return log_ratio.clamp(-_MAX_LOG_RATIO, _MAX_LOG_RATIO).exp()


def _within(log_ratio: Tensor, mask: Tensor, level: str, threshold: float | str) -> Tensor:
    """bool [B, R]: which tokens are inside the bounds (by themselves or with their response)."""
    lower, upper = parse_bounds(threshold)
    judged = {
        "token_k1": lambda: log_ratio,
        "seq_sum_k1": lambda: masked_sum(log_ratio, mask, -1)[:, None],
        "seq_mean_k1": lambda: masked_mean(log_ratio, mask, -1)[:, None],
    }[level]()
    ratio = _bounded_exp(judged)
    return ((ratio >= lower) & (ratio <= upper)).expand_as(mask)


def _differences(log_ratio: Tensor, mask: Tensor) -> dict[str, float]:
    """How far apart the two policies are, over valid tokens."""
    ratio, count = _bounded_exp(log_ratio), mask.sum()
    extreme = {"ratio_max": float("nan"), "ratio_min": float("nan"), "log_prob_diff_max": float("nan")}
    if count:
        valid = ratio[mask]
        extreme = {
            "ratio_max": float(valid.max()),
            "ratio_min": float(valid.min()),
            "log_prob_diff_max": float(log_ratio.abs().max()),
        }
    # KL(rollout || trainer), since the rollout sampled: its log-ratio is the negative of ours.
    k3 = kl_estimate(-log_ratio, torch.zeros_like(log_ratio), "k3")
    return {
        "rollout_kl": float(masked_mean(-log_ratio, mask)),
        "rollout_k3_kl": float(masked_mean(k3, mask)),
        "log_prob_diff_mean": float(masked_mean(log_ratio.abs(), mask)),
        "ratio_mean": float(masked_mean(ratio, mask)),
        **extreme,
    }


def _effective_sample_size(weights: Tensor, kept: Tensor, level: str) -> float:
    """(sum w)^2 / (n sum w^2) over the kept tokens, or over the responses with one; 0 when there is none."""
    samples = weights[kept] if level == "token" else weights.amax(-1)[kept.any(-1)]
    if not samples.numel():
        return 0.0
    return float(samples.sum() ** 2 / (samples.numel() * (samples**2).sum()))
