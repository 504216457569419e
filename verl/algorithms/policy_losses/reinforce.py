"""REINFORCE, the plain policy gradient; GPG's loss is the same."""

from torch import Tensor

from verl.algorithms.policy_losses.base import PolicyLossInputs, aggregate, ratio_metrics, register_policy_loss
from verl.config.actor_rollout_ref import ActorConfig
from verl.utils.metrics import Metrics


@register_policy_loss("gpg", equation="-A log p, with the advantages of the estimator gpg", paper="arXiv:2504.02546")
@register_policy_loss("reinforce", equation="-A log p", paper="R. J. Williams, Machine Learning 8 (1992)")
def reinforce(inputs: PolicyLossInputs, config: ActorConfig) -> tuple[Tensor, Metrics]:
    """L = -A log p. Nothing holds the policy near the old one: meant for one update per batch.

    R. J. Williams, "Simple statistical gradient-following algorithms for connectionist reinforcement learning",
    Machine Learning 8 (1992). GPG (X. Chu et al., arXiv:2504.02546) is this loss with its own advantages.

    Returns:
        (sum, metrics): `ppo_kl`, `ratio_*`.
    """
    tokens = inputs.valid()
    loss = -tokens.advantages * tokens.log_probs
    return aggregate(loss, inputs, config), ratio_metrics(tokens.log_ratio, tokens.mask)
