"""The driver's own part of a step: pure functions from a batch to a batch."""

import numpy as np
import torch

from verl.algorithms.advantages import AdvantageInputs, get_adv_estimator
from verl.algorithms.kl import apply_kl_penalty
from verl.algorithms.masked import masked_sum
from verl.config import AlgorithmConfig
from verl.protocol import DataProto
from verl.utils.seeding import row_seeds

MODEL_COLUMNS = ("input_ids", "attention_mask", "position_ids", "responses", "response_mask")
"""What a model needs to look at responses."""


def label_prompts(batch: DataProto, step: int, n: int, seed: int) -> DataProto:
    """Repeat each prompt `n` times, side by side; rows get the prompt's `uid` and a `seed` of their own.

    The seeds depend on (seed, step, row) only, so samples are the same for any number of replicas.
    """
    uid = np.array([f"{step}-{row}" for row in range(len(batch))], dtype=object)
    labelled = DataProto(batch.batch, {**batch.non_tensor_batch, "uid": uid}, batch.meta_info)
    repeated = labelled.repeat(n, interleave=True)
    return repeated.union(DataProto.from_dict({"seed": row_seeds(seed, step, len(repeated))}))


def for_workers(batch: DataProto, *extra: str, columns: tuple[str, ...] = MODEL_COLUMNS, **meta: object) -> DataProto:
    """Only the tensors a worker needs, with the call's own `meta_info`: what is not sent costs nothing."""
    picked = batch.select(batch_keys=[*columns, *extra], non_tensor_batch_keys=[], meta_info_keys=[])
    return DataProto(picked.batch, {}, dict(meta))


def penalize_kl(batch: DataProto, coef: float, kind: str) -> tuple[DataProto, float]:
    """Add `token_level_rewards` = scores - coef * KL(old policy, reference).

    Returns the batch and the KL per response (summed over its tokens, mean over responses), which the adaptive
    controller steers.
    """
    tensors = batch.batch
    mask = tensors["response_mask"]
    rewards, kl = apply_kl_penalty(
        tensors["token_level_scores"], tensors["old_log_probs"], tensors["ref_log_probs"], mask, coef, kind
    )
    responses = int((mask.sum(-1) > 0).sum())
    kl_per_response = float(masked_sum(kl, mask)) / max(responses, 1)
    return batch.union(DataProto.from_dict({"token_level_rewards": rewards})), kl_per_response


def compute_advantage(batch: DataProto, config: AlgorithmConfig) -> tuple[DataProto, dict[str, float]]:
    """Add `advantages` and `returns` [B, R] by the estimator that `config.adv_estimator` names."""
    estimator = get_adv_estimator(config.adv_estimator)
    tensors = batch.batch
    _, groups = np.unique(batch.non_tensor_batch["uid"].astype(str), return_inverse=True)
    inputs = AdvantageInputs(
        token_level_rewards=tensors["token_level_rewards"],
        response_mask=tensors["response_mask"],
        values=tensors["values"] if "values" in tensors.keys() else None,  # noqa: SIM118
        group_ids=torch.from_numpy(groups),
    )
    result = estimator.fn(inputs, config)
    columns = DataProto.from_dict({"advantages": result.advantages, "returns": result.returns})
    return batch.union(columns), result.metrics


def shuffled(batch: DataProto, seed: int) -> DataProto:
    """The rows in a seeded random order."""
    order = torch.randperm(len(batch), generator=torch.Generator().manual_seed(seed))
    return batch.reorder(order)
