"""From a batch of responses to scores at their tokens."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from verl.protocol import DataProto
from verl.protocol.columns import object_column
from verl.rewards.default import ComputeScore, default_compute_score


class Decoder(Protocol):
    """What is needed of a tokenizer."""

    def batch_decode(self, sequences: Any, skip_special_tokens: bool = ..., **kwargs: Any) -> list[str]: ...


@dataclass(frozen=True)
class RewardResult:
    """Scores of a batch.

    Attributes:
        token_level_scores: float32 [B, R]; the score of a row is at its last sampled token, all else is 0.
        extras: what else the scoring function returned: key -> object array [B], None in rows that lack it.
    """

    token_level_scores: Tensor
    extras: dict[str, np.ndarray]


class RewardManager:
    """Scores every response by a function of its text.

    Args:
        tokenizer: decodes the responses; special tokens are left out of the text.
        compute_score: `fn(data_source, solution_str, ground_truth, extra_info)` -> a finite number, or a dict with it
            as `score`. `extra_info` is {} when the batch has no such column.
    """

    required_columns = ("data_source", "reward_model")
    """Non-tensor columns without which nothing can be scored."""

    def __init__(self, tokenizer: Decoder, compute_score: ComputeScore = default_compute_score) -> None:
        self.tokenizer = tokenizer
        self.compute_score = compute_score

    def __call__(self, batch: DataProto) -> RewardResult:
        """Needs `responses` and `response_mask` [B, R], `attention_mask` [B, P+R], and of the non-tensor columns
        `data_source`, `reward_model` (dicts with `ground_truth`) and optionally `extra_info`.

        Raises ValueError for a missing column, and for the row at fault: no ground truth, no sampled token, or a
        function that raises or returns anything but a finite score.
        """
        self._check_columns(batch)
        mask = batch.batch["response_mask"].bool()
        last = _last_tokens(mask)
        texts = self._decode(batch)
        results = [self._score_row(batch, row, text) for row, text in enumerate(texts)]

        token_level_scores = torch.zeros(mask.shape, dtype=torch.float32)
        token_level_scores[torch.arange(len(last)), last] = torch.tensor([score for score, _ in results])
        return RewardResult(token_level_scores, _columns([extras for _, extras in results]))

    def _check_columns(self, batch: DataProto) -> None:
        for column in self.required_columns:
            if column not in batch.non_tensor_batch:
                raise ValueError(
                    f"the batch has no column {column!r}, which rewards need, only "
                    f"{', '.join(sorted(batch.non_tensor_batch)) or 'tensors'}"
                )

    def _decode(self, batch: DataProto) -> list[str]:
        """The text of each response: all that is no padding, so also what the policy read and did not sample."""
        responses = batch.batch["responses"]
        valid = batch.batch["attention_mask"][:, -responses.shape[1] :].bool()
        ids = [row[keep].tolist() for row, keep in zip(responses, valid, strict=True)]
        return self.tokenizer.batch_decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)

    def _score_row(self, batch: DataProto, row: int, text: str) -> tuple[float, dict[str, Any]]:
        columns = batch.non_tensor_batch
        source = columns["data_source"][row]
        place = f"row {row} (data_source {source!r}, response {_start(text)})"
        ground_truth = _ground_truth(columns["reward_model"][row], place)
        extra_info = columns["extra_info"][row] if "extra_info" in columns else {}
        try:
            result = self.compute_score(
                data_source=source, solution_str=text, ground_truth=ground_truth, extra_info=extra_info
            )
        except Exception as error:
            raise ValueError(f"{place}: the scoring function raised {type(error).__name__}: {error}") from error
        return _checked(result, place)


def _last_tokens(mask: Tensor) -> Tensor:
    """Column of the last 1 in each row of `mask` [B, R]."""
    empty = torch.nonzero(~mask.any(-1)).flatten().tolist()
    if empty:
        raise ValueError(f"rows {empty[:10]} have no sampled token that could hold a score: response_mask is all 0")
    return mask.shape[1] - 1 - mask.flip(-1).int().argmax(-1)


def _ground_truth(reward_model: Any, place: str) -> Any:
    if not isinstance(reward_model, Mapping) or "ground_truth" not in reward_model:
        keys = f"a dict with {list(reward_model)}" if isinstance(reward_model, Mapping) else repr(reward_model)
        raise ValueError(f"{place}: reward_model must be a dict with `ground_truth`, but is {keys:.200}")
    return reward_model["ground_truth"]


def _checked(result: Any, place: str) -> tuple[float, dict[str, Any]]:
    """The score as a finite float, and the other entries of a dict."""
    extras: dict[str, Any] = {}
    score = result
    if isinstance(result, Mapping):
        if "score" not in result:
            raise ValueError(f"{place}: the scoring function returned a dict without `score`: {list(result)}")
        score = result["score"]
        extras = {key: value for key, value in result.items() if key != "score"}
    if isinstance(score, Tensor | np.generic | np.ndarray) and math.prod(score.shape) == 1:
        score = score.item()
    if not isinstance(score, int | float) or not math.isfinite(score):
        raise ValueError(f"{place}: the scoring function returned {score!r:.100} where a finite number is needed")
    return float(score), extras


def _columns(rows: Sequence[dict[str, Any]]) -> dict[str, np.ndarray]:
    keys = dict.fromkeys(key for row in rows for key in row)
    return {key: object_column(row.get(key) for row in rows) for key in keys}


def _start(text: str) -> str:
    return repr(text if len(text) <= 60 else text[:60] + "...")
