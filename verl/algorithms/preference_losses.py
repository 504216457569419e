"""Losses that learn from preferences: pairs of responses (DPO and kin), labelled responses (KTO), pairs of scores.

All work on the log-probs of whole responses, return a SUM over pairs (or responses) and metrics; divide the sum by
`inputs.count()` of the whole mini-batch. A pair in which a response has no valid token (a pad row) does not count.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from verl.algorithms.masked import keep_valid, masked_sum, promote
from verl.algorithms.registry import add_entry, check_keywords, find_entry
from verl.config import PreferenceLossConfig
from verl.utils.metrics import Difference, Mean, Metrics


@dataclass(frozen=True)
class PreferencePairs:
    """N pairs of responses to the same prompts.

    Attributes:
        chosen, rejected: [N], log-probs of the better and the worse response, summed over its tokens; gradients flow.
        chosen_lengths, rejected_lengths: int64 [N], valid tokens.
        ref_chosen, ref_rejected: [N], the same sums under the reference policy.
    """

    chosen: Tensor
    rejected: Tensor
    chosen_lengths: Tensor
    rejected_lengths: Tensor
    ref_chosen: Tensor | None = None
    ref_rejected: Tensor | None = None

    @classmethod
    def from_rows(
        cls, log_probs: Tensor, response_mask: Tensor, ref_log_probs: Tensor | None = None
    ) -> "PreferencePairs":
        """Pairs from token log-probs [2N, R] whose rows alternate: chosen, rejected, chosen, rejected, ...

        Raises:
            ValueError: an odd number of rows.
        """
        if log_probs.shape[0] % 2:
            raise ValueError(f"pairs stand in two rows each, got {log_probs.shape[0]} rows: keep both in one batch")
        sums = masked_sum(log_probs, response_mask, dim=-1)
        lengths = response_mask.bool().sum(-1)
        if ref_log_probs is None:
            return cls(sums[0::2], sums[1::2], lengths[0::2], lengths[1::2])
        ref = masked_sum(ref_log_probs, response_mask, dim=-1).detach()
        return cls(sums[0::2], sums[1::2], lengths[0::2], lengths[1::2], ref[0::2], ref[1::2])

    def valid(self) -> Tensor:
        """bool [N]: both responses have tokens."""
        return (self.chosen_lengths > 0) & (self.rejected_lengths > 0)

    def count(self) -> Tensor:
        """The denominator, a float32 scalar; those of parts add up."""
        return self.valid().sum().float()

    def log_ratios(self) -> tuple[Tensor, Tensor]:
        """(chosen, rejected) [N] each: log p - log p_ref, 0 for pairs that do not count.

        Raises:
            ValueError: the pairs carry no log-probs of a reference policy.
        """
        if self.ref_chosen is None or self.ref_rejected is None:
            raise ValueError("this loss compares with a reference policy: ref_chosen and ref_rejected are missing")
        return self._log_ratio(self.chosen, self.ref_chosen), self._log_ratio(self.rejected, self.ref_rejected)

    def _log_ratio(self, log_probs: Tensor, ref_log_probs: Tensor) -> Tensor:
        return keep_valid(promote(log_probs) - promote(ref_log_probs).detach(), self.valid())

    def mean_log_probs(self) -> tuple[Tensor, Tensor]:
        """(chosen, rejected) [N] each: log p per token, 0 for pairs that do not count."""
        chosen = promote(self.chosen) / self.chosen_lengths.clamp(min=1)
        rejected = promote(self.rejected) / self.rejected_lengths.clamp(min=1)
        return keep_valid(chosen, self.valid()), keep_valid(rejected, self.valid())


@dataclass(frozen=True)
class LabelledResponses:
    """N responses, each judged good or bad by itself.

    Attributes:
        log_probs: [N], summed over the tokens; gradients flow.
        ref_log_probs: [N], the same under the reference policy.
        labels: bool [N], True for a desirable response.
        lengths: int64 [N], valid tokens.
        kl_point: scalar without gradient, `kto_kl_point` of the whole mini-batch.
    """

    log_probs: Tensor
    ref_log_probs: Tensor
    labels: Tensor
    lengths: Tensor
    kl_point: Tensor

    def valid(self) -> Tensor:
        """bool [N]: the response has tokens."""
        return self.lengths > 0

    def count(self) -> Tensor:
        """The denominator, a float32 scalar; those of parts add up."""
        return self.valid().sum().float()


PreferenceLossFn = Callable[..., tuple[Tensor, Metrics]]
"""(PreferencePairs or LabelledResponses, *, its own keyword arguments) -> (loss SUM, metrics)."""


@dataclass(frozen=True)
class PreferenceLoss:
    """A preference loss with what it needs. Calling it checks inputs and arguments, then runs `fn`."""

    fn: PreferenceLossFn
    takes: type = PreferencePairs
    needs_reference: bool = True
    equation: str = ""
    paper: str = ""

    def __call__(self, inputs: PreferencePairs | LabelledResponses, **kwargs: Any) -> tuple[Tensor, Metrics]:
        """The loss SUM and metrics.

        Raises:
            TypeError: pairs for a loss of labelled responses, or the other way round.
            ValueError: an argument the loss does not know, or no reference log-probs where it needs them.
        """
        check_keywords(self.fn, kwargs, "loss_kwargs")
        if not isinstance(inputs, self.takes):
            raise TypeError(f"{self.fn.__name__!r} takes {self.takes.__name__}, got {type(inputs).__name__}")
        return self.fn(inputs, **kwargs)


PREFERENCE_LOSSES: dict[str, PreferenceLoss] = {}


def register_preference_loss(
    name: str, *, takes: type = PreferencePairs, needs_reference: bool = True, equation: str = "", paper: str = ""
) -> Callable[[PreferenceLossFn], PreferenceLossFn]:
    """Decorator: make a preference loss known by name. A name taken is a ValueError."""

    def decorate(fn: PreferenceLossFn) -> PreferenceLossFn:
        entry = PreferenceLoss(fn, takes, needs_reference, equation, paper)
        add_entry(PREFERENCE_LOSSES, "preference loss", name, entry)
        return fn

    return decorate


def get_preference_loss(name: str) -> PreferenceLoss:
    """The preference loss of that name, or at that import path (a PreferenceLoss, or a plain function on pairs that
    needs no reference).

    Raises:
        ValueError: unknown name or path. TypeError: what is there cannot be called.
    """
    return find_entry(PREFERENCE_LOSSES, "preference loss", name, PreferenceLoss, needs_reference=False)


def loss_arguments(config: PreferenceLossConfig) -> dict[str, Any]:
    """The keyword arguments that `config` sets; what is null there stays at the loss's own default."""
    named = {
        "beta": config.beta,
        "label_smoothing": config.label_smoothing,
        "gamma": config.simpo_gamma,
        "desirable_weight": config.desirable_weight,
        "undesirable_weight": config.undesirable_weight,
    }
    return {name: value for name, value in named.items() if value is not None} | config.loss_kwargs


@register_preference_loss(
    "dpo",
    equation="-(1 - e) log sigmoid(beta h) - e log sigmoid(-beta h), h = log-ratio(chosen) - log-ratio(rejected)",
    paper="arXiv:2305.18290; e > 0 is cDPO (E. Mitchell, 2023)",
)
def dpo(pairs: PreferencePairs, *, beta: float = 0.1, label_smoothing: float = 0.0) -> tuple[Tensor, Metrics]:
    """With h = (log p - log p_ref)(chosen) - (log p - log p_ref)(rejected) of whole responses:

        L = -(1 - e) log sigmoid(beta h) - e log sigmoid(-beta h)

    R. Rafailov et al., arXiv:2305.18290, equation 7; label smoothing e (cDPO): E. Mitchell, "A note on DPO with noisy
    preferences and relationship to IPO" (2023).

    Args:
        beta: above 0; how strongly the policy is held to the reference.
        label_smoothing: e, the probability that a label is wrong, in [0, 0.5).

    Returns:
        (sum, metrics): `rewards/chosen`, `rewards/rejected` (beta times log-ratio), `rewards/margins`,
        `rewards/accuracies`.
    """
    _check_beta(beta)
    if not 0 <= label_smoothing < 0.5:
        raise ValueError(f"label_smoothing must be from 0 to below 0.5, got {label_smoothing}")
    chosen, rejected = pairs.log_ratios()
    logits = beta * (chosen - rejected)
    loss = -(1 - label_smoothing) * logsigmoid(logits) - label_smoothing * logsigmoid(-logits)
    return masked_sum(loss, pairs.valid()), _pair_metrics(beta * chosen, beta * rejected, pairs.valid())


@register_preference_loss("ipo", equation="(h - 1 / (2 beta))^2", paper="arXiv:2310.12036")
def ipo(pairs: PreferencePairs, *, beta: float = 0.1) -> tuple[Tensor, Metrics]:
    """L = (h - 1 / (2 beta))^2 with h as in `dpo`: the margin is driven to a finite value, not to infinity.

    M. Azar et al., arXiv:2310.12036, equation 17 (its tau is beta), on sums over tokens as in the paper.

    Returns:
        (sum, metrics) as `dpo`.
    """
    _check_beta(beta)
    chosen, rejected = pairs.log_ratios()
    loss = (chosen - rejected - 1 / (2 * beta)) ** 2
    return masked_sum(loss, pairs.valid()), _pair_metrics(beta * chosen, beta * rejected, pairs.valid())


@register_preference_loss(
    "simpo",
    needs_reference=False,
    equation="-log sigmoid(beta (mean log p(chosen) - mean log p(rejected)) - gamma)",
    paper="arXiv:2405.14734",
)
def simpo(pairs: PreferencePairs, *, beta: float = 2.0, gamma: float = 1.0) -> tuple[Tensor, Metrics]:
    """L = -log sigmoid(beta (log p(chosen) / length - log p(rejected) / length) - gamma): no reference policy.

    Y. Meng et al., arXiv:2405.14734, equation 6.

    Args:
        beta: scale of the mean log-prob of a token.
        gamma: the margin aimed at, in units of the reward (the paper speaks of gamma / beta, 0.3 to 1.6).

    Returns:
        (sum, metrics) as `dpo`, the rewards being beta times the mean log-prob.
    """
    _check_beta(beta)
    valid = pairs.valid()
    chosen, rejected = (beta * mean for mean in pairs.mean_log_probs())
    return masked_sum(-logsigmoid(chosen - rejected - gamma), valid), _pair_metrics(chosen, rejected, valid)


def kto_kl_point(
    log_probs: Tensor, ref_log_probs: Tensor, valid: Tensor, sum_over_ranks: Callable[[float], float] = float
) -> Tensor:
    """KTO's reference point: max(0, mean of log p - log p_ref) over responses put after prompts of others.

    K. Ethayarajh et al., arXiv:2402.01306. It is one number for a whole mini-batch, taken before the cut
    into micro-batches, and carries no gradient. 0 if nothing is valid.

    Args:
        log_probs, ref_log_probs: [N], summed over the tokens of mismatched responses. valid: bool [N].
        sum_over_ranks: adds a number up over the processes that share the mini-batch, such as `all_reduce_sum`.
    """
    log_ratios = keep_valid(promote(log_probs) - promote(ref_log_probs), valid).detach()
    total, count = sum_over_ranks(float(log_ratios.sum())), sum_over_ranks(float(valid.sum()))
    return log_ratios.new_tensor(total / count if count else 0.0).clamp(min=0)


@register_preference_loss(
    "kto",
    takes=LabelledResponses,
    equation="w_d (1 - sigmoid(beta (h - z))) if desirable, w_u (1 - sigmoid(beta (z - h))) if not; z = KL point",
    paper="arXiv:2402.01306",
)
def kto(
    responses: LabelledResponses, *, beta: float = 0.1, desirable_weight: float = 1.0, undesirable_weight: float = 1.0
) -> tuple[Tensor, Metrics]:
    """With h = log p - log p_ref of a response and z the KL point:

        desirable: w_d (1 - sigmoid(beta (h - z)));   undesirable: w_u (1 - sigmoid(beta (z - h)))

    K. Ethayarajh et al., arXiv:2402.01306. A batch of one class only is fine.

    Args:
        beta: above 0; how soon a gain saturates.
        desirable_weight, undesirable_weight: the paper advises a ratio of (weight x number of examples) of 1 to 4/3.

    Returns:
        (sum, metrics): `rewards/chosen` and `rewards/rejected` (beta h of desirable and undesirable responses),
        `rewards/margins` (of these two means), `rewards/accuracies` (h above z if and only if desirable), `kl_point`.
    """
    _check_beta(beta)
    valid, desirable = responses.valid(), responses.labels.bool()
    log_ratio = keep_valid(promote(responses.log_probs) - promote(responses.ref_log_probs).detach(), valid)
    gain = log_ratio - responses.kl_point.detach()
    signed = torch.where(desirable, gain, -gain)
    weight = torch.full_like(gain, undesirable_weight).masked_fill(desirable, desirable_weight)
    # 1 - sigmoid(x) loses all digits for large x, sigmoid(-x) none.
    loss = masked_sum(weight * torch.sigmoid(-beta * signed), valid)
    reward = beta * log_ratio.detach()
    chosen, rejected = _mean(reward, valid & desirable), _mean(reward, valid & ~desirable)
    return loss, {
        "rewards/chosen": chosen,
        "rewards/rejected": rejected,
        "rewards/margins": Difference(chosen, rejected),
        "rewards/accuracies": _mean((signed.detach() > 0).float(), valid),
        "kl_point": Mean(responses.kl_point.detach() * responses.count(), responses.count()),
    }


def bradley_terry(
    chosen_scores: Tensor, rejected_scores: Tensor, valid: Tensor, margin: Tensor | float = 0.0
) -> tuple[Tensor, Metrics]:
    """The loss of reward models: -log sigmoid(score(chosen) - score(rejected) - margin), summed over valid pairs.

    R. Bradley and M. Terry, Biometrika 39 (1952); L. Ouyang et al., arXiv:2203.02155, equation 1; the margin:
    H. Touvron et al., arXiv:2307.09288, equation 2. Divide the sum by the number of valid pairs.

    Args:
        chosen_scores, rejected_scores: [N]; gradients flow. valid: bool [N]. margin: one for all, or [N].

    Returns:
        (sum, metrics): as `dpo`, the rewards being the scores.
    """
    chosen, rejected = keep_valid(chosen_scores, valid), keep_valid(rejected_scores, valid)
    return masked_sum(-logsigmoid(chosen - rejected - margin), valid), _pair_metrics(chosen, rejected, valid)


def _check_beta(beta: float) -> None:
    if beta <= 0:
        raise ValueError(f"beta must be above 0, got {beta}")


def _mean(values: Tensor, valid: Tensor) -> Mean:
    return Mean(masked_sum(values, valid), valid.sum())


def _pair_metrics(chosen: Tensor, rejected: Tensor, valid: Tensor) -> Metrics:
    chosen, rejected = chosen.detach(), rejected.detach()
    return {
        "rewards/chosen": _mean(chosen, valid),
        "rewards/rejected": _mean(rejected, valid),
        "rewards/margins": _mean(chosen - rejected, valid),
        "rewards/accuracies": _mean((chosen > rejected).float(), valid),
    }
