"""Soft adaptive policy optimisation."""

import torch
from torch import Tensor

from verl.algorithms.policy_losses.base import PolicyLossInputs, aggregate, ratio_metrics, register_policy_loss
from verl.config.actor_rollout_ref import ActorConfig
from verl.utils.metrics import Metrics


@register_policy_loss(
    "sapo",
    equation="-A (4 / tau) sigmoid(tau (r - 1)), tau = tau_pos where A > 0, else tau_neg",
    paper="arXiv:2511.20347",
)
def sapo(
    inputs: PolicyLossInputs, config: ActorConfig, *, tau_pos: float = 1.0, tau_neg: float = 1.05
) -> tuple[Tensor, Metrics]:
    """L = -A (4 / tau) sigmoid(tau (r - 1)): a soft gate in the place of clipping; its slope at r = 1 is A.

    C. Gao et al., arXiv:2511.20347. `clip_ratio` is not read.

    Args:
        tau_pos, tau_neg: temperatures for positive and other advantages; a larger one lets go sooner.

    Returns:
        (sum, metrics): `ppo_kl`, `ratio_*`.

    Raises:
        ValueError: a temperature is not above 0.
    """
    if tau_pos <= 0 or tau_neg <= 0:
        raise ValueError(f"sapo: tau_pos and tau_neg must be above 0, got {tau_pos} and {tau_neg}")
    tokens = inputs.valid()
    tau = torch.full_like(tokens.advantages, tau_neg).masked_fill(tokens.advantages > 0, tau_pos)
    gate = torch.sigmoid(tau * (tokens.log_ratio.exp() - 1)) * 4 / tau
    return aggregate(-tokens.advantages * gate, inputs, config), ratio_metrics(tokens.log_ratio, tokens.mask)
