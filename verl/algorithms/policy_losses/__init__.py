"""Policy losses: one file each, one signature, found by name (`actor.policy_loss.loss_mode`) or import path."""

from verl.algorithms.policy_losses import (  # noqa: F401  (each registers itself)
    cispo,
    clip_cov,
    geo_mean,
    gspo,
    kl_cov,
    reinforce,
    sapo,
    vanilla,
)
from verl.algorithms.policy_losses.base import (
    POLICY_LOSSES,
    PolicyLoss,
    PolicyLossInputs,
    get_policy_loss,
    register_policy_loss,
)

__all__ = ["POLICY_LOSSES", "PolicyLoss", "PolicyLossInputs", "get_policy_loss", "register_policy_loss"]
