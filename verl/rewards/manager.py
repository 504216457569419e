"""From a batch of responses to scores at their tokens."""

import logging
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from numbers import Real
from threading import Event
from typing import Any, Literal, Protocol

import numpy as np
import torch
from torch import Tensor

from verl.protocol import DataProto
from verl.protocol.columns import object_column
from verl.rewards.calls import Call, Outcome
from verl.rewards.default import default_compute_score, scorer_for
from verl.rewards.driver import run_in_driver
from verl.rewards.functions import OPTIONAL_ROW_ARGUMENT, TEXT_ARGUMENTS, RewardFunction, reward_functions
from verl.rewards.judge import Judge
from verl.rewards.length import OverlongBuffer
from verl.rewards.pool import ScoringPool
from verl.rewards.scores import RewardResult, RowScore, batch_scores, row_score

logger = logging.getLogger(__name__)

OnInvalid = Literal["raise", "default", "exclude"]
_WARN_ABOUT = 3
# What is counted of rows without a score -> the metric's name.
_COUNTED = {"invalid": "invalid", "error": "errors", "timeout": "timeouts", "crash": "crashes", "value": "no_score"}


class Decoder(Protocol):
    """What is needed of a tokenizer."""

    def batch_decode(self, sequences: Any, skip_special_tokens: bool = ..., **kwargs: Any) -> list[str]: ...


@dataclass(frozen=True)
class Limits:
    """How long scoring may take and what becomes of a row without a score.

    Attributes:
        num_workers: processes that score; 0 scores in the driver, where nothing can be stopped.
        timeout_s: of one row; batch_timeout_s: of a function that takes the whole batch at once.
        on_invalid: of a row whose function raises, hangs, dies or returns no finite number: `raise` an error that names
            the row, give it `default_score`, or `exclude` it from training.
    """

    num_workers: int = 0
    timeout_s: float = 30.0
    batch_timeout_s: float = 600.0
    on_invalid: OnInvalid = "raise"
    default_score: float = 0.0


@dataclass(frozen=True)
class _Texts:
    """What functions of text see of a batch; `place(row)` is how messages name a row."""

    prompts: list[str]
    responses: list[str]
    columns: Mapping[str, np.ndarray]

    def place(self, row: int) -> str:
        text = self.responses[row]
        shown = repr(text if len(text) <= 60 else text[:60] + "...")
        source = f"data_source {self.columns['data_source'][row]!r}, " if "data_source" in self.columns else ""
        return f"row {row} ({source}response {shown})"


class RewardManager:
    """Scores every response, by one function or by the weighted sum of several.

    Args:
        tokenizer: decodes prompts and responses; special tokens are left out of the text.
        compute_score: a function, a RewardFunction, a list of them, or a mapping name -> function (see RewardFunction
            for the kinds). With several, each one's score is the extra `<name>`, and its extras are `<name>/<key>`.
        limits: processes, time limits, and what becomes of a row without a score.
        overlong: a penalty that is added to every score.

    With another rule than `raise`, `extras` has `invalid` (bool) and `invalid_reason` (text or None).
    """

    def __init__(
        self,
        tokenizer: Decoder,
        compute_score: Any = default_compute_score,
        limits: Limits | None = None,
        overlong: OverlongBuffer | None = None,
    ) -> None:
        self.tokenizer = tokenizer
        self.functions = reward_functions(compute_score)
        self.limits = limits or Limits()
        self.overlong = overlong
        self._pooled = [f for f in self.functions if f.kind != "batch" and not f.in_driver and self.limits.num_workers]
        self._pool = ScoringPool(self._pooled, self.limits.num_workers) if self._pooled else None

    @property
    def required_columns(self) -> tuple[str, ...]:
        """Non-tensor columns without which nothing can be scored."""
        return ("data_source", "reward_model") if any(f.kind == "row" for f in self.functions) else ()

    def check_row(self, columns: Mapping[str, Any], place: str) -> None:
        """What can be said of a row of the data before anything is generated; `place` names it in messages.

        Raises ValueError, where a row without a score ends the run (on_invalid=raise), for a row that row functions
        cannot score: one without the columns or the ground truth that they read, or, with the built-in rules, one whose
        data_source has none.
        """
        if self.limits.on_invalid != "raise" or not self.required_columns:
            return
        self._check_columns(columns, place)
        _ground_truth(columns["reward_model"], place)
        if any(function.fn is default_compute_score for function in self.functions):
            try:
                scorer_for(columns["data_source"])
            except ValueError as error:
                raise ValueError(f"{place}: {error}") from error

    def close(self) -> None:
        """End the scoring processes and the judge's threads; they also end with the manager."""
        if self._pool is not None:
            self._pool.close()
        for function in self.functions:
            if isinstance(function.fn, Judge):
                function.fn.close()

    def __call__(self, batch: DataProto) -> RewardResult:
        """Needs `prompts` [B, P] (for functions that read them), `responses` and `response_mask` [B, R],
        `attention_mask` [B, P+R], and for row functions the non-tensor columns `data_source`, `reward_model` (dicts
        with `ground_truth`) and optionally `extra_info` ({} without it).

        Raises ValueError for a missing column, a row without ground truth or sampled token, a function that returns
        another number of scores than there are rows, and, with `raise`, for the first row without a score.
        """
        self._check_columns(batch.non_tensor_batch, "the batch")
        mask = batch.batch["response_mask"].bool()
        last = _last_tokens(mask)
        texts = self._decode(batch)
        scored = self._score(batch, texts, mask.sum(-1).tolist())
        rows = range(len(mask))
        if self.limits.on_invalid == "raise":
            self._raise_first(scored, texts)

        token_level_scores = torch.zeros(mask.shape, dtype=torch.float32)
        for function, scores in zip(self.functions, scored, strict=True):
            for row in rows:
                self._place(token_level_scores[row], mask[row], int(last[row]), function.weight, scores[row])
        extras, metrics = self._report(scored, texts)
        components = self._components(scored)
        if self.overlong is not None:
            penalties = [self.overlong(int(length)) for length in mask.sum(-1)]
            token_level_scores[list(rows), last] += torch.tensor(penalties)
            components["overlong"] = torch.tensor(penalties, dtype=torch.float32)
            metrics["reward/overlong_mean"] = float(np.mean(penalties))
            if self.overlong.log:
                extras["overlong_reward"] = object_column(penalties)
                extras["overlong"] = object_column(penalty < 0 for penalty in penalties)
        excluded = None
        if self.limits.on_invalid == "exclude":
            excluded = torch.tensor([any(scores[row].problem for scores in scored) for row in rows])
            token_level_scores[excluded] = 0
        return RewardResult(token_level_scores, extras, excluded, components, metrics)

    # ---- calling the functions ----

    def _score(self, batch: DataProto, texts: _Texts, tokens: list[int]) -> list[list[RowScore]]:
        """Each function's scores of all rows."""
        rows = len(tokens)
        calls = [call for function in self.functions for call in self._calls(function, batch, texts)]
        outcomes = iter(self._run(calls))
        scored = []
        for function in self.functions:
            if function.kind == "row":
                scored.append([row_score(next(outcomes), tokens[row]) for row in range(rows)])
            else:
                scored.append(batch_scores(function.name, next(outcomes), batch.batch["response_mask"].bool()))
        return scored

    def _calls(self, function: RewardFunction, batch: DataProto, texts: _Texts) -> list[Call]:
        number, limits = self.functions.index(function), self.limits
        if function.kind == "batch":
            return [Call(number, (batch,), timeout_s=limits.batch_timeout_s)]
        if function.kind == "texts":
            both = (texts.prompts, texts.responses)
            if function.by_keyword:
                named = dict(zip(TEXT_ARGUMENTS, both, strict=True))
                return [Call(number, kwargs=named, timeout_s=limits.batch_timeout_s)]
            return [Call(number, both, timeout_s=limits.batch_timeout_s)]
        columns, timeout_s = texts.columns, math.inf if function.in_driver else limits.timeout_s
        calls = []
        for row, text in enumerate(texts.responses):
            arguments = {
                "data_source": columns["data_source"][row],
                "solution_str": text,
                "ground_truth": _ground_truth(columns["reward_model"][row], texts.place(row)),
                "extra_info": columns["extra_info"][row] if "extra_info" in columns else {},
            }
            if function.wants_prompt:
                arguments[OPTIONAL_ROW_ARGUMENT] = texts.prompts[row]
            calls.append(Call(number, kwargs=arguments, timeout_s=timeout_s))
        return calls

    def _run(self, calls: list[Call]) -> list[Outcome | None]:
        """The outcomes, by position. What the processes do and what the driver does goes on at the same time."""
        pooled = {self.functions.index(function): place for place, function in enumerate(self._pooled)}
        there = [number for number, call in enumerate(calls) if call.function in pooled]
        here = [number for number, call in enumerate(calls) if call.function not in pooled]
        outcomes: list[Outcome | None] = [None] * len(calls)
        raising, stop = self.limits.on_invalid == "raise", Event()

        def run_here() -> None:
            found = run_in_driver(self.functions, [calls[number] for number in here], stop, raising)
            for number, outcome in zip(here, found, strict=True):
                outcomes[number] = outcome

        with ThreadPoolExecutor(1) as beside:
            driver = beside.submit(run_here) if here else None
            if self._pool is not None:
                moved = [replace(calls[number], function=pooled[calls[number].function]) for number in there]
                try:
                    found = self._pool.run(moved, stop_at_failure=raising)
                except BaseException:
                    stop.set()
                    raise
                if raising and any(outcome is None or outcome.failure for outcome in found):
                    stop.set()
                for number, outcome in zip(there, found, strict=True):
                    outcomes[number] = outcome
            if driver is not None:
                driver.result()
        return outcomes

    # ---- reading a batch ----

    def _check_columns(self, columns: Mapping[str, Any], place: str) -> None:
        for column in self.required_columns:
            if column not in columns:
                there = ", ".join(sorted(columns)) or "tensors"
                raise ValueError(f"{place} has no column {column!r}, which rewards need, only {there}")

    def _decode(self, batch: DataProto) -> _Texts:
        """The text of each row: all that is no padding, so also what the policy read and did not sample."""
        tensors = batch.batch
        responses, attention = tensors["responses"], tensors["attention_mask"].bool()
        width = responses.shape[1]
        prompts = [""] * len(responses)
        if any(function.kind == "texts" or function.wants_prompt for function in self.functions):
            prompts = self._texts(tensors["prompts"], attention[:, :-width])
        return _Texts(prompts, self._texts(responses, attention[:, -width:]), batch.non_tensor_batch)

    def _texts(self, ids: Tensor, valid: Tensor) -> list[str]:
        rows = [row[keep].tolist() for row, keep in zip(ids, valid, strict=True)]
        return self.tokenizer.batch_decode(rows, skip_special_tokens=True, clean_up_tokenization_spaces=False)

    # ---- putting it together ----

    def _raise_first(self, scored: list[list[RowScore]], texts: _Texts) -> None:
        for row in range(len(texts.responses)):
            for function, scores in zip(self.functions, scored, strict=True):
                if scores[row].problem and scores[row].kind != "given up":
                    whole = function.kind != "row" and scores[row].kind != "value"
                    place = "the batch" if whole else texts.place(row)
                    name = f"{function.name}: " if len(self.functions) > 1 else ""
                    raise ValueError(f"{place}: {name}{scores[row].problem}") from scores[row].cause

    def _place(self, target: Tensor, mask: Tensor, last: int, weight: float, scored: RowScore) -> None:
        score = self.limits.default_score if scored.problem else scored.score
        if isinstance(score, list):
            target[mask] += weight * torch.tensor(score)
        else:
            target[last] += weight * score

    def _report(self, scored: list[list[RowScore]], texts: _Texts) -> tuple[dict[str, np.ndarray], dict[str, float]]:
        """Extras and metrics."""
        rows = range(len(texts.responses))
        extra_rows: list[dict[str, Any]] = [{} for _ in rows]
        metrics: dict[str, float] = {}
        several = len(self.functions) > 1
        for function, scores in zip(self.functions, scored, strict=True):
            prefix = f"{function.name}/" if several else ""
            for row, score in zip(extra_rows, scores, strict=True):
                row |= {f"{prefix}{key}": value for key, value in score.extras.items()}
                if several:
                    row[function.name] = None if score.problem else score.total
            if several:
                valid = [score.total for score in scores if not score.problem]
                if valid:
                    metrics[f"reward/{function.name}_mean"] = float(np.mean(valid))
        if self.limits.on_invalid != "raise":
            metrics |= self._report_invalid(scored, texts, extra_rows)
        return _columns(extra_rows), metrics

    def _components(self, scored: list[list[RowScore]]) -> dict[str, Tensor]:
        """The single rewards [B]; see RewardResult."""
        default = self.limits.default_score
        if len(scored) == 1:
            (rows,) = scored
            names = dict.fromkeys(key for row in rows for key, value in row.extras.items() if _is_number(value))
            if names:
                return {
                    name: torch.tensor([default if row.problem else _number(row.extras.get(name)) for row in rows])
                    for name in names
                }
        totals = [[default if row.problem else row.total for row in rows] for rows in scored]
        return {function.name: torch.tensor(total) for function, total in zip(self.functions, totals, strict=True)}

    def _report_invalid(
        self, scored: list[list[RowScore]], texts: _Texts, extra_rows: list[dict[str, Any]]
    ) -> dict[str, float]:
        counts: Counter[str] = Counter()
        for number, row in enumerate(extra_rows):
            problems = [scores[number] for scores in scored if scores[number].problem]
            row["invalid"] = bool(problems)
            row["invalid_reason"] = "; ".join(score.problem for score in problems) or None
            if problems:
                counts["invalid"] += 1
                counts.update({score.kind for score in problems})
                if counts["invalid"] <= _WARN_ABOUT:
                    logger.warning("no valid score: %s: %s", texts.place(number), row["invalid_reason"])
        if counts["invalid"] > _WARN_ABOUT:
            logger.warning("%d of %d rows have no valid score", counts["invalid"], len(extra_rows))
        return {f"reward/{label}": float(counts[kind]) for kind, label in _COUNTED.items()}


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


def _is_number(value: Any) -> bool:
    return isinstance(value, Real | np.bool_)


def _number(value: Any) -> float:
    return float(value) if _is_number(value) else math.nan


def _columns(rows: Sequence[dict[str, Any]]) -> dict[str, np.ndarray]:
    keys = dict.fromkeys(key for row in rows for key in row)
    return {key: object_column(row.get(key) for row in rows) for key in keys}
