"""The driver's own part of a step: pure functions from a batch to a batch."""

import numpy as np
import torch
from tensordict import TensorDict

from verl.algorithms.advantages import AdvantageInputs, get_adv_estimator
from verl.algorithms.kl import apply_kl_penalty
from verl.algorithms.masked import masked_sum
from verl.algorithms.policy_losses import PolicyLossInputs, get_policy_loss
from verl.algorithms.rollout_correction import rollout_correction
from verl.config import ActorConfig, AlgorithmConfig, RolloutCorrectionConfig
from verl.protocol import DataProto
from verl.utils.seeding import row_seeds

SCORE_COLUMN = "score/"
"""Prefix of the columns that hold what a scoring rule returned besides its score."""

REWARD_COLUMN = "reward/"
"""Prefix of the columns that hold single rewards [B], for estimators that normalise them one by one."""

MODEL_COLUMNS = ("input_ids", "attention_mask", "position_ids", "responses", "response_mask")
"""What a model needs to look at responses."""


def label_prompts(batch: DataProto, draw: int, n: int, seed: int) -> DataProto:
    """Repeat each prompt `n` times, side by side; rows get the prompt's `uid` and a `seed` of their own.

    `draw` counts the batches of prompts. The seeds depend on (seed, draw, row) only, so samples are the same for any
    number of replicas.
    """
    uid = np.array([f"{draw}-{row}" for row in range(len(batch))], dtype=object)
    labelled = DataProto(batch.batch, {**batch.non_tensor_batch, "uid": uid}, batch.meta_info)
    repeated = labelled.repeat(n, interleave=True)
    return repeated.union(DataProto.from_dict({"seed": row_seeds(seed, draw, len(repeated))}))


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


def informative_groups(batch: DataProto, metric: str) -> DataProto:
    """The rows of those prompts (`uid`) whose samples differ in `metric`: the others have no advantage to learn from.

    `metric` is "score" (the sum of token_level_scores), or a value that the reward function returned.
    """
    if metric == "score":
        values = batch.batch["token_level_scores"].sum(-1).double()
    else:
        name = f"{SCORE_COLUMN}{metric}"
        if name not in batch.non_tensor_batch:
            known = sorted(key.removeprefix(SCORE_COLUMN) for key in batch.non_tensor_batch if SCORE_COLUMN in key)
            raise ValueError(
                f"algorithm.filter_groups.metric={metric}: the reward function returned no such value; "
                f"expected score{''.join(f', {key}' for key in known)}"
            )
        values = torch.tensor(batch.non_tensor_batch[name].astype(float))
    groups = torch.from_numpy(group_numbers(batch))
    count = int(groups.max()) + 1
    present = batch.batch["response_mask"].bool().any(-1)  # a row that the reward excluded is compared with none
    smallest, largest = (torch.where(present, values, bound) for bound in (torch.inf, -torch.inf))
    low = torch.full((count,), torch.inf, dtype=values.dtype).scatter_reduce(0, groups, smallest, "amin")
    high = torch.full((count,), -torch.inf, dtype=values.dtype).scatter_reduce(0, groups, largest, "amax")
    return batch.select_idxs((high > low)[groups])


def group_numbers(batch: DataProto) -> np.ndarray:
    """int64 [B]: the same number for the samples of one prompt, by `uid`."""
    return np.unique(batch.non_tensor_batch["uid"].astype(str), return_inverse=True)[1]


def correct_rollout(batch: DataProto, config: RolloutCorrectionConfig) -> tuple[DataProto, dict[str, float]]:
    """What the actor trains on: rejected tokens leave `response_mask`, and `rollout_weights` [B, R] weigh the rest.

    Advantages stand by then: rejection decides what is learnt from, not what the rewards were.
    """
    if config.bypass_mode or (config.rollout_is is None and config.rollout_rs is None):
        return batch, {}
    tensors = batch.batch
    correction = rollout_correction(
        tensors["old_log_probs"],
        tensors["rollout_log_probs"],
        tensors["response_mask"],
        rollout_is=config.rollout_is,
        rollout_is_threshold=config.rollout_is_threshold,
        rollout_is_batch_normalize=config.rollout_is_batch_normalize,
        rollout_rs=config.rollout_rs,
        rollout_rs_threshold=config.rollout_rs_threshold,
    )
    changed = {"response_mask": correction.response_mask}
    if correction.weights is not None:
        changed["rollout_weights"] = correction.weights
    metrics = {f"rollout_correction/{name}": value for name, value in correction.metrics.items()}
    return with_tensors(batch, **changed), metrics


def choose_tokens(batch: DataProto, config: ActorConfig, seed: int) -> DataProto:
    """Add `selected` [B, R] for policy losses that treat some tokens in their own way (clip_cov, kl_cov).

    The choice is made on the whole batch, so that it depends on no micro-batch.
    """
    tensors = batch.batch
    inputs = PolicyLossInputs(
        log_probs=tensors["old_log_probs"],
        old_log_probs=tensors["old_log_probs"],
        advantages=tensors["advantages"],
        response_mask=tensors["response_mask"],
        max_length=tensors["response_mask"].shape[1],
    )
    selected = get_policy_loss(config.policy_loss.loss_mode).select(inputs, config, seed)
    return batch if selected is None else with_tensors(batch, selected=selected)


def with_tensors(batch: DataProto, **tensors: torch.Tensor) -> DataProto:
    """A batch in which these columns are new or replaced."""
    columns = {**dict(batch.batch.items()), **tensors}
    return DataProto(TensorDict(columns, batch_size=[len(batch)]), dict(batch.non_tensor_batch), dict(batch.meta_info))


def compute_advantage(batch: DataProto, config: AlgorithmConfig) -> tuple[DataProto, dict[str, float]]:
    """Add `advantages` and `returns` [B, R] by the estimator that `config.adv_estimator` names."""
    estimator = get_adv_estimator(config.adv_estimator)
    tensors = batch.batch
    inputs = AdvantageInputs(
        token_level_rewards=tensors["token_level_rewards"],
        response_mask=tensors["response_mask"],
        values=tensors.get("values", None),
        group_ids=torch.from_numpy(group_numbers(batch)),
        baseline_scores=tensors.get("baseline_scores", None),
        reward_components=_single_rewards(batch) if estimator.needs_reward_components else None,
    )
    result = estimator(inputs, config)
    columns = DataProto.from_dict({"advantages": result.advantages, "returns": result.returns})
    return batch.union(columns), result.metrics


def _single_rewards(batch: DataProto) -> dict[str, torch.Tensor]:
    """What `REWARD_COLUMN` columns hold, by name. ValueError when there are not several."""
    names = [name for name in map(str, batch.batch.keys()) if name.startswith(REWARD_COLUMN)]
    if len(names) < 2:
        found = ", ".join(name.removeprefix(REWARD_COLUMN) for name in names) or "none"
        raise ValueError(
            f"this advantage estimator normalises several rewards one by one, but there is only one ({found}): let the "
            "reward function return a dict with `score` and a number for each reward, or give several functions "
            "(reward.functions)"
        )
    return {name.removeprefix(REWARD_COLUMN): batch.batch[name] for name in names}


def shuffled(batch: DataProto, seed: int) -> DataProto:
    """The rows in a seeded random order."""
    order = torch.randperm(len(batch), generator=torch.Generator().manual_seed(seed))
    return batch.reorder(order)
