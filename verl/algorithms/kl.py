"""KL divergence to a reference policy: estimators per token, controllers of its coefficient, KL in the reward."""

import math
from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor

from verl.algorithms.masked import keep_valid, promote
from verl.config.algorithm import KLControlConfig

# exp(20) is 5e8: beyond it k3 goes on along its tangent, so that value and gradient stay finite and keep their sign.
_K3_TANGENT_FROM = 20.0


def _k1(difference: Tensor) -> Tensor:
    return difference


def _k2(difference: Tensor) -> Tensor:
    return 0.5 * difference**2


def _k3(difference: Tensor) -> Tensor:
    log_ratio = -difference
    bent = log_ratio.clamp(max=_K3_TANGENT_FROM)
    tangent = torch.expm1(bent).detach() * (log_ratio - bent)
    return torch.expm1(bent) - bent + tangent


_ESTIMATORS: dict[str, Callable[[Tensor], Tensor]] = {
    "kl": _k1,
    "k1": _k1,
    "abs": torch.abs,
    "mse": _k2,
    "k2": _k2,
    "low_var_kl": _k3,
    "k3": _k3,
}
KL_KINDS = tuple(_ESTIMATORS) + tuple(f"{kind}+" for kind in _ESTIMATORS)


def kl_estimate(log_probs: Tensor, ref_log_probs: Tensor, kind: str, mask: Tensor | None = None) -> Tensor:
    """KL(policy || ref) per token, estimated from tokens that the policy sampled. With d = log p - log p_ref:

        kl, k1           d                     unbiased; its gradient as a loss carries no information
        abs              |d|
        mse, k2          d^2 / 2               its gradient is an unbiased one of KL
        low_var_kl, k3   exp(-d) - 1 + d       unbiased, never negative, low variance

    A kind ending in "+" has the value of that kind and the gradient of k2 (straight-through), so that the figure is
    unbiased and so is the gradient. Sources: J. Schulman, "Approximating KL divergence" (2020); the gradients,
    arXiv:2506.09477. Differences however large give a finite value and gradient.

    Args:
        log_probs: [B, R], gradients flow through it.
        ref_log_probs: [B, R].
        kind: one of KL_KINDS.
        mask: [B, R], 1 where the log-probs mean something; the estimate and its gradient are 0 elsewhere. Masking the
            result instead would come too late for the gradient: 0 times NaN is NaN.

    Returns:
        [B, R] in at least float32.

    Raises:
        ValueError: unknown kind.
    """
    if kind not in KL_KINDS:
        raise ValueError(f"unknown KL estimator {kind!r}; known: {', '.join(KL_KINDS)}")
    difference = promote(log_probs) - promote(ref_log_probs).detach()
    if mask is not None:
        difference = keep_valid(difference, mask)
    value = _ESTIMATORS[kind.removesuffix("+")](difference)
    if not kind.endswith("+"):
        return value
    surrogate = _k2(difference)
    return value.detach() + (surrogate - surrogate.detach())


def apply_kl_penalty(
    token_level_scores: Tensor,
    log_probs: Tensor,
    ref_log_probs: Tensor,
    response_mask: Tensor,
    coef: float,
    kind: str,
) -> tuple[Tensor, Tensor]:
    """KL in the reward: r_t = score_t - coef * KL_t on valid tokens (arXiv:1909.08593, equation 2).

    Args:
        token_level_scores, log_probs, ref_log_probs, response_mask: [B, R].
        coef: the coefficient of the moment (`controller.value`).
        kind: one of KL_KINDS.

    Returns:
        (token_level_rewards [B, R], kl [B, R]), both without gradient and 0 under a mask of 0.
    """
    with torch.no_grad():
        kl = kl_estimate(log_probs, ref_log_probs, kind, response_mask)
        return keep_valid(token_level_scores, response_mask) - coef * kl, kl


class KLController(Protocol):
    """The coefficient of KL in the reward, over the steps of a run."""

    value: float

    def update(self, current_kl: float, n_steps: int) -> None:
        """Take in the KL just seen (summed over a response, averaged over responses) on `n_steps` samples."""
        ...

    def state_dict(self) -> dict[str, float]: ...

    def load_state_dict(self, state: dict[str, float]) -> None: ...


class FixedKLController:
    """A constant coefficient."""

    def __init__(self, kl_coef: float) -> None:
        self.value = kl_coef

    def update(self, current_kl: float, n_steps: int) -> None:
        """Nothing changes."""

    def state_dict(self) -> dict[str, float]:
        return {"value": self.value}

    def load_state_dict(self, state: dict[str, float]) -> None:
        self.value = state["value"]


class AdaptiveKLController(FixedKLController):
    """A coefficient that steers KL to `target_kl` (arXiv:1909.08593, section 2.2):

        error = clip(KL / target - 1, -0.2, 0.2);   coef <- coef * (1 + error * n_steps / horizon)

    Raises:
        ValueError: `target_kl` or `horizon` is not above 0.
    """

    def __init__(self, kl_coef: float, target_kl: float, horizon: int) -> None:
        super().__init__(kl_coef)
        for name, number in (("target_kl", target_kl), ("horizon", horizon)):
            if not number > 0:
                raise ValueError(f"algorithm.kl_ctrl.{name} must be above 0, got {number}")
        self.target_kl = target_kl
        self.horizon = horizon

    def update(self, current_kl: float, n_steps: int) -> None:
        """Move the coefficient by one step of the controller. A KL that is not finite is a ValueError."""
        if not math.isfinite(current_kl):
            raise ValueError(f"the adaptive KL controller was given a KL of {current_kl}: check the log-probs")
        error = min(max(current_kl / self.target_kl - 1, -0.2), 0.2)
        self.value *= 1 + error * n_steps / self.horizon


def make_kl_controller(config: KLControlConfig) -> KLController:
    """The controller that `algorithm.kl_ctrl` asks for."""
    if config.type == "fixed":
        return FixedKLController(config.kl_coef)
    return AdaptiveKLController(config.kl_coef, config.target_kl, config.horizon)
