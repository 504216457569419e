"""Figures of a step that the driver computes from the batch. All means are over valid tokens or over rows."""

import logging
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from verl.algorithms.kl import kl_estimate
from verl.config import AlgorithmConfig
from verl.protocol import DataProto
from verl.rewards import validation_metrics
from verl.trainer.steps import SCORE_COLUMN

logger = logging.getLogger("verl.trainer")


def batch_metrics(batch: DataProto, max_response_length: int) -> dict[str, float]:
    """reward/*, response_length/*, prompt_length/*, kl/*, critic/* and the advantages' spread of one batch [B, P + R].

    A batch without any valid token has none of them.

    `kl/ref_k1` and `kl/ref_k3` estimate KL(policy, reference) per token, whichever way it enters the training.
    """
    tensors = batch.batch
    mask = tensors["response_mask"].bool()
    rows = mask.any(-1)  # a row without tokens was excluded by the reward
    if not rows.any():
        return {}
    lengths = mask.sum(-1).float()[rows]
    prompt_lengths = tensors["attention_mask"][:, : -mask.shape[1]].sum(-1).float()[rows]
    scores = _row_sums(tensors["token_level_scores"], mask)[rows]
    metrics = {
        **_spread("reward/score", scores),
        **_spread("response_length", lengths, sep="/"),
        "response_length/clip_ratio": float((lengths >= max_response_length).float().mean()),
        **_spread("prompt_length", prompt_lengths, sep="/"),
    }
    if "advantages" in tensors.keys():  # noqa: SIM118
        metrics |= _spread("reward/total", _row_sums(tensors["token_level_rewards"], mask)[rows])
        metrics |= _spread("actor/advantages", tensors["advantages"][mask])
    if "entropy" in tensors.keys():  # noqa: SIM118
        metrics["actor/entropy"] = float(tensors["entropy"][mask].mean())
    if "ref_log_probs" in tensors.keys():  # noqa: SIM118
        log_probs, reference = tensors["old_log_probs"][mask], tensors["ref_log_probs"][mask]
        metrics["kl/ref_k1"] = float(kl_estimate(log_probs, reference, "k1").mean())
        metrics["kl/ref_k3"] = float(kl_estimate(log_probs, reference, "k3").mean())
    if "values" in tensors.keys():  # noqa: SIM118
        values, returns = tensors["values"][mask], tensors["returns"][mask]
        metrics |= _spread("critic/values", values) | _spread("critic/returns", returns)
        metrics["critic/vf_explained_var"] = explained_variance(values, returns)
    return metrics


def merge_reward_metrics(parts: Sequence[dict[str, float]]) -> dict[str, float]:
    """Those of several scored batches of one size: means are averaged, counts (all else) are added."""
    names = dict.fromkeys(name for part in parts for name in part)
    found = {name: [part[name] for part in parts if name in part] for name in names}
    return {name: sum(values) / (len(values) if name.endswith("_mean") else 1) for name, values in found.items()}


def explained_variance(values: Tensor, returns: Tensor) -> float:
    """1 - Var(returns - values) / Var(returns): 1 is a perfect critic, 0 is no better than a constant."""
    spread = returns.var(unbiased=False)
    return float(1 - (returns - values).var(unbiased=False) / spread) if spread > 0 else 0.0


def rollout_agreement(batch: DataProto, max_logprob_diff: float | None = None) -> dict[str, float]:
    """How far the generation engine's log-probs are from the trainer's, over the sampled tokens.

    `rollout/kl` is the k1 estimate of KL(rollout, trainer): the mean of log p_rollout - log p_trainer.
    `rollout/prob_corr` is Pearson's correlation of the probabilities; it is left out where one of them never varies.
    RuntimeError when a log-prob differs by more than `max_logprob_diff`.
    """
    tensors = batch.batch
    mask = tensors["response_mask"].bool()
    difference = (tensors["rollout_log_probs"] - tensors["old_log_probs"])[mask]
    if difference.numel() == 0:
        return {}
    metrics = {
        "rollout/logprob_abs_diff_mean": float(difference.abs().mean()),
        "rollout/logprob_abs_diff_max": float(difference.abs().max()),
        "rollout/kl": float(difference.mean()),
    }
    probs = torch.stack([tensors[name][mask].double().exp() for name in ("rollout_log_probs", "old_log_probs")])
    if difference.numel() > 1 and bool((probs.std(dim=1) > 0).all()):
        metrics["rollout/prob_corr"] = float(probs.corrcoef()[0, 1])
    # Turned around, so that a NaN stops the run too.
    if max_logprob_diff is not None and not metrics["rollout/logprob_abs_diff_max"] <= max_logprob_diff:
        raise RuntimeError(
            f"a sampled token's log-prob differs by {metrics['rollout/logprob_abs_diff_max']:g} between rollout and "
            f"trainer (on average {metrics['rollout/logprob_abs_diff_mean']:g}), above "
            f"actor_rollout_ref.rollout.max_logprob_diff={max_logprob_diff:g}: the two engines do not hold the same "
            "policy, or compute it in too different precisions (rollout.check_weight_sync=True compares their weights)"
        )
    return metrics


def score_metrics(batches: Sequence[DataProto]) -> dict[str, float]:
    """val/<data_source>/... of scored batches; a column that a batch lacks is None in its rows.

    Prompts without a `data_source`, which a data set of one's own may have, count as source `all`.
    """
    sources: list[Any] = []
    uids: list[Any] = []
    scores: list[float] = []
    names = sorted({key for batch in batches for key in batch.non_tensor_batch if key.startswith(SCORE_COLUMN)})
    extras: dict[str, list[Any]] = {name: [] for name in names}
    for number, batch in enumerate(batches):
        scored = batch.select_idxs(batch.batch["response_mask"].bool().any(-1))  # a row without tokens was excluded
        columns = scored.non_tensor_batch
        sources += columns["data_source"].tolist() if "data_source" in columns else ["all"] * len(scored)
        # Labels count within a batch; two batches may use the same.
        uids += [f"{number}/{uid}" for uid in columns["uid"]]
        scores += scored.batch["token_level_scores"].sum(-1).tolist()
        for name, values in extras.items():
            values += columns[name].tolist() if name in columns else [None] * len(scored)
    return validation_metrics(sources, uids, scores, {name.removeprefix(SCORE_COLUMN): v for name, v in extras.items()})


def log_step(
    step: int, batch: DataProto, algorithm: AlgorithmConfig, timings: dict[str, float], metrics: dict[str, float]
) -> None:
    """A step in four lines, for people who watch (logger `verl.trainer`, INFO). `step` counts from 0."""
    prompts, responses = len(set(batch.non_tensor_batch["uid"])), len(batch)
    latency = round(1000 * timings["gen"])
    logger.info("[Step %d] Rollout: %d prompts -> %d responses (latency: %dms)", step, prompts, responses, latency)
    logger.info("[Step %d] Reward: computed for %d samples", step, responses)
    if algorithm.preference.loss is None:
        name = f"GAE(lambda={algorithm.lam:g})" if algorithm.adv_estimator == "gae" else algorithm.adv_estimator
        logger.info("[Step %d] Advantage: %s done", step, name)
    if "actor/loss" in metrics:
        kl = next((metrics[name] for name in ("kl/ref_k1", "actor/ppo_kl") if name in metrics), math.nan)
        reward = metrics["reward/score_mean"]
        logger.info("[Step %d] Actor update: loss=%.4f, kl=%.4f, reward=%.4f", step, metrics["actor/loss"], kl, reward)


def throughput_metrics(batch: DataProto, seconds: float, processes: int) -> dict[str, float]:
    """perf/*: all tokens of the batch, prompts and responses, over the seconds of the step."""
    tokens = int(batch.batch["attention_mask"].sum())
    return {
        "perf/total_num_tokens": float(tokens),
        "perf/time_per_step": seconds,
        "perf/tokens_per_second": tokens / seconds,
        "perf/tokens_per_second_per_process": tokens / seconds / processes,
    }


def _row_sums(values: Tensor, mask: Tensor) -> Tensor:
    return torch.where(mask, values, 0).sum(-1)


def _spread(name: str, values: Tensor, sep: str = "_") -> dict[str, float]:
    if values.numel() == 0:
        return {}
    return {
        f"{name}{sep}mean": float(values.float().mean()),
        f"{name}{sep}max": float(values.max()),
        f"{name}{sep}min": float(values.min()),
    }
