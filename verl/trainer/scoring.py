"""Step 2 of the loop: the scores of a batch, by rules and by a reward model."""

from typing import Any

import torch

from verl.config import RewardConfig
from verl.protocol import DataProto
from verl.rewards import RewardResult
from verl.trainer.steps import MODEL_COLUMNS, REWARD_COLUMN, SCORE_COLUMN, with_tensors


def scored(
    batch: DataProto,
    config: RewardConfig,
    reward_fn: Any,
    rm_wg: Any = None,
    single_rewards: bool = False,
) -> tuple[DataProto, dict[str, float]]:
    """Add `token_level_scores` [B, R]: the rule's scores and the reward model's, by their weights.

    What the rule returned besides its score becomes the columns `score/<name>`. Rows that it excludes lose their
    `response_mask`, so that they train nothing.

    Args:
        reward_fn: DataProto -> RewardResult.
        rm_wg: the group of the reward model, if there is one.
        single_rewards: also add the columns `reward/<name>` [B] that estimators read which normalise them one by one.

    Returns:
        (batch, metrics).
    """
    scores = torch.zeros(batch.batch["responses"].shape, dtype=torch.float32)
    extras: dict[str, Any] = {}
    single: dict[str, torch.Tensor] = {}
    metrics: dict[str, float] = {}
    if config.rule_weight:
        result: RewardResult = reward_fn(batch)
        scores = scores + config.rule_weight * result.token_level_scores
        extras = {f"{SCORE_COLUMN}{name}": column for name, column in result.extras.items()}
        single = dict(result.components)
        metrics |= result.metrics
        valid = torch.ones(len(batch), dtype=torch.bool) if result.excluded is None else ~result.excluded
        if valid.any():
            metrics["reward/rule_mean"] = float(result.token_level_scores[valid].sum(-1).mean())
        if result.excluded is not None:
            batch = with_tensors(batch, response_mask=batch.batch["response_mask"] * valid[:, None])
            metrics["reward/excluded"] = float(result.excluded.sum())
    if rm_wg is not None:
        raw = ["raw_prompt"] if "raw_prompt" in batch.non_tensor_batch else []
        rm_scores = rm_wg.compute_rm_score(batch.select(list(MODEL_COLUMNS), raw, [])).batch["rm_scores"]
        scores = scores + config.reward_model.weight * rm_scores
        single["reward_model"] = rm_scores.sum(-1)
        counted = batch.batch["response_mask"].bool().any(-1)  # the model gives excluded rows 0
        if counted.any():
            metrics["reward/rm_mean"] = float(single["reward_model"][counted].mean())
    tensors = {"token_level_scores": scores}
    if single_rewards:
        tensors |= {f"{REWARD_COLUMN}{name}": column for name, column in single.items()}
    return batch.union(DataProto.from_dict(tensors, extras)), metrics
