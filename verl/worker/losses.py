"""What the actor and the critic minimise, as sums over a micro-batch.

A law of this file: nothing here divides by a count. The engine divides the sum by the denominator of the whole
mini-batch, which the worker fixed before the mini-batch was cut.
"""

from tensordict import TensorDict
from torch import Tensor

from verl.algorithms.aggregation import loss_denominator, loss_weights
from verl.algorithms.kl import kl_estimate
from verl.algorithms.masked import masked_sum
from verl.algorithms.policy_losses import PolicyLossInputs, get_policy_loss
from verl.algorithms.value_losses import value_loss
from verl.config import ActorConfig, CriticConfig
from verl.engine.base import LossFn, Outputs
from verl.utils.distributed import all_reduce_sum
from verl.utils.metrics import Mean, Metric, Metrics, Sum


def actor_loss(config: ActorConfig, max_length: float) -> LossFn:
    """policy loss - entropy_coeff * entropy + kl_loss_coef * KL(actor, ref), all aggregated by loss_agg_mode."""
    policy_loss = get_policy_loss(config.policy_loss.loss_mode)

    def loss_fn(outputs: Outputs, batch: TensorDict) -> tuple[Tensor, Metrics]:
        mask = batch["response_mask"]
        weights = loss_weights(mask, config.loss_agg_mode, max_length)
        tokens = mask.sum()
        inputs = PolicyLossInputs(
            log_probs=outputs["log_probs"],
            old_log_probs=batch["old_log_probs"],
            advantages=batch["advantages"],
            response_mask=mask,
            entropy=outputs.get("entropy"),
            weights=batch.get("rollout_weights", None),
            selected=batch.get("selected", None),
            max_length=max_length,
        )
        loss, metrics = policy_loss(inputs, config)
        metrics = {f"actor/{name}": metric for name, metric in metrics.items()}
        metrics["actor/pg_loss"] = _loss_metric(loss, mask, config.loss_agg_mode)
        if "entropy" in outputs:
            metrics["actor/entropy"] = Mean(masked_sum(outputs["entropy"].detach(), mask), tokens)
            if config.entropy_coeff:
                loss = loss - config.entropy_coeff * masked_sum(outputs["entropy"] * weights, mask)
        if config.use_kl_loss:
            kl = kl_estimate(outputs["log_probs"], batch["ref_log_probs"], config.kl_loss_type, mask)
            loss = loss + config.kl_loss_coef * masked_sum(kl * weights, mask)
            metrics["actor/kl_loss"] = Mean(masked_sum(kl.detach(), mask), tokens)
        metrics["actor/loss"] = _loss_metric(loss, mask, config.loss_agg_mode)
        return loss, metrics

    return loss_fn


def critic_loss(config: CriticConfig, max_length: float) -> LossFn:
    """The clipped value loss, aggregated by loss_agg_mode."""

    def loss_fn(outputs: Outputs, batch: TensorDict) -> tuple[Tensor, Metrics]:
        mask = batch["response_mask"]
        loss, metrics = value_loss(
            outputs["values"],
            batch["values"],
            batch["returns"],
            mask,
            cliprange=config.cliprange_value,
            agg_mode=config.loss_agg_mode,
            max_length=max_length,
        )
        metrics = {f"critic/{name}": metric for name, metric in metrics.items()}
        metrics["critic/vf_loss"] = _loss_metric(loss, mask, config.loss_agg_mode)
        return loss, metrics

    return loss_fn


def _loss_metric(loss: Tensor, mask: Tensor, agg_mode: str) -> Metric:
    """The aggregated loss of a micro-batch in a form that adds up: token-sum has no denominator to divide by."""
    if agg_mode == "token-sum":
        return Sum(loss.detach())
    return Mean(loss.detach(), loss_denominator(mask, agg_mode))


def over_all_ranks(count: Tensor) -> float:
    """The denominator of a mini-batch, from that of its local rows: summed over processes; 1 when nothing counts."""
    return all_reduce_sum(float(count)) or 1.0


def local_mini_batches(batch: TensorDict, sizes: list[int]) -> list[TensorDict]:
    """The mini-batches that the driver cut, in order. Their sizes must add up to the rows of `batch`."""
    assert sum(sizes) == batch.batch_size[0], (sizes, batch.batch_size)
    return list(batch.split(sizes))
