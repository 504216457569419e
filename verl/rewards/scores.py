"""From what reward functions returned to checked scores."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from verl.rewards.calls import Outcome

_LARGEST = 1e15
"""The largest score in size: the sum of the squares of a batch of them is within fp32's 3e38."""


@dataclass(frozen=True)
class RewardResult:
    """Scores of a batch.

    Attributes:
        token_level_scores: float32 [B, R]; a row's one score is at its last sampled token, all else is 0.
        extras: what else the functions returned: key -> object array [B], None in rows that lack it.
        excluded: bool [B]: rows that must train nothing, since they have no valid score; None is none.
        components: the single rewards that make up the score, unweighted, float32 [B], by name; NaN where a row has
            none. Of several functions the score of each; of one function the numbers that it returned beside its
            score, or else its score; and the overlong penalty, if there is one.
        metrics: figures of the step, by their full names.
    """

    token_level_scores: Tensor
    extras: dict[str, np.ndarray]
    excluded: Tensor | None = None
    components: dict[str, Tensor] = field(default_factory=dict)
    metrics: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class RowScore:
    """One function's score of one row: a number, or one for each sampled token; `problem` instead when there is none.

    `kind` of a problem is error, timeout, crash or value (the function returned no score).
    """

    score: float | list[float] = 0.0
    extras: dict[str, Any] = field(default_factory=dict)
    problem: str = ""
    kind: str = ""
    cause: BaseException | None = None

    @property
    def total(self) -> float:
        return math.fsum(self.score) if isinstance(self.score, list) else self.score


def read_score(result: Any, tokens: int) -> RowScore:
    """The score in `result`: a finite number, a sequence of `tokens` finite numbers, or a dict with either as `score`
    and whatever else as extras. Anything else is a problem; never a silent 0."""
    extras: dict[str, Any] = {}
    score = result
    if isinstance(result, Mapping):
        if "score" not in result:
            keys = list(result)
            return RowScore(problem=f"the scoring function returned a dict without `score`: {keys}", kind="value")
        score = result["score"]
        extras = {str(key): value for key, value in result.items() if key != "score"}
    if isinstance(score, Tensor | np.generic | np.ndarray):
        score = score.item() if math.prod(score.shape) == 1 else score.tolist() if len(score.shape) == 1 else score
    if _is_finite(score):
        return RowScore(float(score), extras)
    if isinstance(score, list | tuple) and len(score) == tokens and all(map(_is_finite, score)):
        return RowScore([float(value) for value in score], extras)
    shown = result["score"] if isinstance(result, Mapping) else result
    problem = (
        f"the scoring function returned {shown!r:.100} where a finite number is needed, or one for each of the "
        f"{tokens} sampled tokens; numbers beyond {_LARGEST:g} are none, since fp32 cannot hold their squares"
    )
    return RowScore(extras=extras, problem=problem, kind="value")


def row_score(outcome: Outcome | None, tokens: int) -> RowScore:
    """The score of a row with so many sampled tokens, from the call that was made for it alone."""
    if outcome is None:  # given up, since another row failed
        return RowScore(problem="not scored", kind="given up")
    if outcome.failure is not None:
        return RowScore(problem=outcome.message, kind=outcome.failure, cause=_cause(outcome))
    return read_score(outcome.value, tokens)


def batch_scores(name: str, outcome: Outcome | None, mask: Tensor) -> list[RowScore]:
    """The rows' scores from what the function `name` returned for the whole batch with response mask [B, R].

    Raises ValueError when it returned another number of scores, or scores of another shape.
    """
    tokens = mask.sum(-1).tolist()
    rows = len(tokens)
    if outcome is None or outcome.failure is not None:
        return [row_score(outcome, count) for count in tokens]
    value: Any = outcome.value
    extras: Mapping[str, Any] = {}
    if isinstance(value, RewardResult):
        value, extras = value.token_level_scores, value.extras
    elif isinstance(value, Mapping) and "reward_tensor" in value:
        value, extras = value["reward_tensor"], value.get("reward_extra_info", {})
    for what, column in {"scores": value, **extras}.items():
        length = _length(column)
        if length != rows:
            found = f"{column!r:.100}" if length is None else f"{length} {what}"
            raise ValueError(
                f"the reward function {name!r} returned {found} for {rows} rows: expected {rows}, one for each row of "
                "the batch that it is called with"
            )
    if isinstance(value, Tensor | np.ndarray) and len(value.shape) == 2:
        if tuple(value.shape) != tuple(mask.shape):
            raise ValueError(
                f"the reward function {name!r} returned scores of shape {list(value.shape)}: expected one per "
                f"row [{rows}] or one per response token {list(mask.shape)}"
            )
        value = [torch.as_tensor(row)[keep].float().tolist() for row, keep in zip(value, mask.cpu(), strict=True)]
    scores = [read_score(item, count) for item, count in zip(value, tokens, strict=True)]
    for key, column in extras.items():
        for score, item in zip(scores, column, strict=True):
            score.extras[key] = item
    return scores


def _length(column: Any) -> int | None:
    """How many values `column` holds; None for what is no list of values."""
    listed = isinstance(column, Sequence) and not isinstance(column, str)
    return len(column) if listed or isinstance(column, Tensor | np.ndarray) and column.ndim else None


def _cause(outcome: Outcome) -> BaseException | None:
    if outcome.cause is not None or not outcome.details:
        return outcome.cause
    return RuntimeError(f"in a scoring process:\n{outcome.details}")


def _is_finite(value: Any) -> bool:
    """Whether `value` is a number that fp32, in which scores are kept, can compute with."""
    return isinstance(value, int | float) and abs(value) <= _LARGEST
