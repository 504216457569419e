"""Which rule scores which data set."""

from collections.abc import Callable
from typing import Any, Protocol

from verl.rewards import answers, arithmetic, code, gsm8k, math_boxed, reasoning_gym, symbolic

Score = float | dict[str, Any]
"""A score, or a dict with `score` and whatever else shall be logged of the row."""


class ComputeScore(Protocol):
    """The signature of a scoring function; it is called with keywords."""

    def __call__(self, data_source: str, solution_str: str, ground_truth: Any, extra_info: Any) -> Score: ...


Scorer = Callable[[str, Any], Score]
"""`fn(solution_str, ground_truth)`."""

SCORERS: dict[str, Scorer] = {
    "arithmetic": arithmetic.compute_score,
    # numbers after ####
    "gsm8k": gsm8k.compute_score,
    "openai/gsm8k": gsm8k.compute_score,
    # answers in a box
    "math": math_boxed.compute_score,
    "lighteval/MATH": math_boxed.compute_score,
    "DigitalLearningGmbH/MATH-lighteval": math_boxed.compute_score,
    "HuggingFaceH4/MATH-500": math_boxed.compute_score,
    "math_dapo": math_boxed.compute_score,
    "aime": math_boxed.compute_score,
    # symbolic equality
    "math_verify": symbolic.compute_score,
    # plain answers
    "exact_match": answers.exact_match,
    "numeric": answers.numeric_match,
    "multiple_choice": answers.multiple_choice,
    "json_schema": answers.json_valid,
    "cais/mmlu": answers.multiple_choice,
    "TIGER-Lab/MMLU-Pro": answers.multiple_choice,
    "allenai/ai2_arc": answers.multiple_choice,
    # programs
    "code": code.compute_score,
    "codecontests": code.compute_score,
    "apps": code.compute_score,
    "codeforces": code.compute_score,
    "taco": code.compute_score,
}


def default_compute_score(data_source: str, solution_str: str, ground_truth: Any, extra_info: Any = None) -> Score:
    """Score by the rule of `data_source`. ValueError for a source without one."""
    if str(data_source).startswith(reasoning_gym.SOURCE):
        return reasoning_gym.compute_score(data_source, solution_str, ground_truth, extra_info)
    if data_source not in SCORERS:
        raise ValueError(
            f"there is no built-in rule for data_source {data_source!r}, only for {', '.join(SCORERS)}: write a "
            "function of your own and set reward.custom_reward_function.path and .name"
        )
    return SCORERS[data_source](solution_str, ground_truth)
