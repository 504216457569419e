"""Which rule scores which data set."""

from typing import Any, Protocol

from verl.rewards import arithmetic, gsm8k, math_boxed

Score = float | dict[str, Any]
"""A score, or a dict with `score` and whatever else shall be logged of the row."""


class ComputeScore(Protocol):
    """The signature of a scoring function; it is called with keywords."""

    def __call__(self, data_source: str, solution_str: str, ground_truth: Any, extra_info: Any) -> Score: ...


class Scorer(Protocol):
    def __call__(self, solution_str: str, ground_truth: Any) -> Score: ...


SCORERS: dict[str, Scorer] = {
    "arithmetic": arithmetic.compute_score,
    "openai/gsm8k": gsm8k.compute_score,
    "math": math_boxed.compute_score,
    "lighteval/MATH": math_boxed.compute_score,
    "DigitalLearningGmbH/MATH-lighteval": math_boxed.compute_score,
    "HuggingFaceH4/MATH-500": math_boxed.compute_score,
}


def default_compute_score(data_source: str, solution_str: str, ground_truth: Any, extra_info: Any = None) -> Score:
    """Score by the rule of `data_source`. ValueError for a source without one."""
    if data_source not in SCORERS:
        raise ValueError(
            f"there is no built-in rule for data_source {data_source!r}, only for {', '.join(SCORERS)}: write a "
            "function of your own and set reward.custom_reward_function.path and .name"
        )
    return SCORERS[data_source](solution_str, ground_truth)
