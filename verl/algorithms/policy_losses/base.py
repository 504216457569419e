"""What every policy loss takes and gives, and the table of them."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from verl.algorithms.aggregation import loss_weights
from verl.algorithms.masked import keep_valid, promote
from verl.algorithms.registry import add_entry, check_keywords, find_entry, keywords
from verl.config.actor_rollout_ref import ActorConfig
from verl.utils.metrics import Max, Mean, Metrics, Min

# exp(20) is 5e8: further apart, two policies are as good as infinitely far and float32 is near its end.
MAX_LOG_RATIO = 20.0


@dataclass(frozen=True)
class PolicyLossInputs:
    """A micro-batch of b responses of width R, all [b, R].

    Attributes:
        log_probs: of the policy that is trained; gradients flow through it.
        old_log_probs: of the same policy before this step's updates.
        advantages: 0 under a mask of 0 or not, it does not matter.
        response_mask: 1 on tokens that count.
        max_length: the constant length of seq-mean-token-sum-norm, in tokens (actor.loss_scale_factor if that is
            set, else data.max_response_length).
        weights: importance weights of tokens, as rollout correction makes them; no gradient flows through them.
        entropy: of the policy's distribution at each token.
        selected: bool, what `PolicyLoss.select` chose on the whole batch; only losses with a choice read it.
    """

    log_probs: Tensor
    old_log_probs: Tensor
    advantages: Tensor
    response_mask: Tensor
    max_length: float
    weights: Tensor | None = None
    entropy: Tensor | None = None
    selected: Tensor | None = None

    def valid(self) -> "ValidTokens":
        """The same tensors with 0 under a mask of 0, in at least float32."""
        mask = self.response_mask
        log_probs = keep_valid(self.log_probs, mask)
        old = keep_valid(self.old_log_probs, mask).detach()
        log_ratio = (log_probs - old).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
        return ValidTokens(log_probs, old, keep_valid(self.advantages, mask).detach(), log_ratio, mask.bool())


@dataclass(frozen=True)
class ValidTokens:
    """Inputs that are safe to compute with, all [b, R]. `log_ratio` is log p - log p_old, bounded to +-20."""

    log_probs: Tensor
    old_log_probs: Tensor
    advantages: Tensor
    log_ratio: Tensor
    mask: Tensor


PolicyLossFn = Callable[..., tuple[Tensor, Metrics]]
"""(PolicyLossInputs, ActorConfig, *, its own keyword arguments) -> (loss SUM, metrics)."""

SelectFn = Callable[..., Tensor]
"""(PolicyLossInputs of the whole batch, seed, *, the loss's own keyword arguments) -> chosen tokens, bool [B, R]."""


@dataclass(frozen=True)
class PolicyLoss:
    """A policy loss with what is known about it. Calling it passes `actor.policy_loss.loss_kwargs` on to `fn`."""

    fn: PolicyLossFn
    equation: str = ""
    paper: str = ""
    select_fn: SelectFn | None = None

    def __call__(self, inputs: PolicyLossInputs, config: ActorConfig) -> tuple[Tensor, Metrics]:
        """The loss SUM (a scalar; divide by `loss_denominator` of the mini-batch) and metrics over valid tokens."""
        self.check_kwargs(config.policy_loss.loss_kwargs)
        return self.fn(inputs, config, **config.policy_loss.loss_kwargs)

    def check_kwargs(self, given: dict[str, Any]) -> None:
        """Raise ValueError for a keyword argument that the loss does not know (call it before any model loads)."""
        check_keywords(self.fn, given, "actor.policy_loss.loss_kwargs")

    def select(self, inputs: PolicyLossInputs, config: ActorConfig, seed: int) -> Tensor | None:
        """The tokens that the loss treats in its own way, bool [B, R], or None for a loss without such tokens.

        Called once on the whole batch, before it is cut, so that the choice depends on no micro-batch; the result
        goes in as `inputs.selected`.

        Args:
            inputs: the whole batch; `log_probs` may be the old ones.
            seed: of the choice, for losses that draw; another one each step.
        """
        if self.select_fn is None:
            return None
        self.check_kwargs(config.policy_loss.loss_kwargs)
        with torch.no_grad():
            return self.select_fn(inputs, seed, **{**keywords(self.fn), **config.policy_loss.loss_kwargs})


POLICY_LOSSES: dict[str, PolicyLoss] = {}


def register_policy_loss(
    name: str, *, equation: str = "", paper: str = "", select: SelectFn | None = None
) -> Callable[[PolicyLossFn], PolicyLossFn]:
    """Decorator: make a function known as `actor.policy_loss.loss_mode=name`. A name taken is a ValueError.

    Args:
        equation, paper: for the table in docs/algorithms.md.
        select: what chooses tokens on the whole batch, see `PolicyLoss.select`.
    """

    def decorate(fn: PolicyLossFn) -> PolicyLossFn:
        add_entry(POLICY_LOSSES, "policy loss", name, PolicyLoss(fn, equation, paper, select))
        return fn

    return decorate


def get_policy_loss(name: str) -> PolicyLoss:
    """The policy loss of that name, or at that import path (a PolicyLoss or a plain function).

    Raises:
        ValueError: unknown name or path. TypeError: what is there cannot be called.
    """
    return find_entry(POLICY_LOSSES, "policy loss", name, PolicyLoss)


def clip_range(config: ActorConfig) -> tuple[float, float]:
    """(low, high): how far the ratio may go below and above 1.

    Raises:
        ValueError: a range below 0.
    """
    low = config.clip_ratio if config.clip_ratio_low is None else config.clip_ratio_low
    high = config.clip_ratio if config.clip_ratio_high is None else config.clip_ratio_high
    if low < 0 or high < 0:
        raise ValueError(f"actor.clip_ratio, clip_ratio_low, clip_ratio_high must not be negative, got {low}, {high}")
    return low, high


def aggregate(token_loss: Tensor, inputs: PolicyLossInputs, config: ActorConfig) -> Tensor:
    """The weighted sum of token losses [b, R] under `actor.loss_agg_mode`, importance weights included."""
    weights = loss_weights(inputs.response_mask, config.loss_agg_mode, inputs.max_length)
    if inputs.weights is not None:
        weights = weights * keep_valid(inputs.weights, inputs.response_mask).detach()
    return (keep_valid(token_loss, inputs.response_mask) * weights).sum()


def mean_over(values: Tensor, mask: Tensor) -> Mean:
    """The mean of `values` over the valid cells, as a metric that merges."""
    return Mean(keep_valid(values, mask).detach().sum(), mask.bool().sum())


def ratio_metrics(log_ratio: Tensor, mask: Tensor) -> Metrics:
    """`ppo_kl` (mean of log p_old - log p) and the mean, largest and smallest ratio, over valid cells."""
    log_ratio = log_ratio.detach()
    ratio = promote(log_ratio).exp()
    valid = mask.bool()
    return {
        "ppo_kl": mean_over(-log_ratio, mask),
        "ratio_mean": mean_over(ratio, mask),
        "ratio_max": Max(torch.where(valid, ratio, -torch.inf).max()),
        "ratio_min": Min(torch.where(valid, ratio, torch.inf).min()),
    }
