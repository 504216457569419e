"""The built-in rules as functions of the field's signature, for `reward.functions.<name>.path=verl.rewards.rules`.

Each takes `(data_source, solution_str, ground_truth, extra_info)` and keywords of its own (reward_kwargs).
"""

from collections.abc import Callable
from typing import Any

from verl.rewards import answers, arithmetic, code, gsm8k, math_boxed, math_dapo, symbolic
from verl.rewards.length import length_penalty

__all__ = [
    "answer_line",
    "boxed",
    "code_tests",
    "exact",
    "format_tags",
    "gsm8k_number",
    "json_schema",
    "length_penalty",
    "letter",
    "math_verify",
    "number",
    "sum_of_numbers",
]


def _rule(scorer: Callable[..., Any]) -> Callable[..., Any]:
    def score(data_source: str, solution_str: str, ground_truth: Any, extra_info: Any, **options: Any) -> Any:
        return scorer(solution_str, ground_truth, **options)

    score.__doc__ = scorer.__doc__
    return score


answer_line = _rule(math_dapo.compute_score)
boxed = _rule(math_boxed.compute_score)
code_tests = _rule(code.compute_score)
exact = _rule(answers.exact_match)
gsm8k_number = _rule(gsm8k.compute_score)
json_schema = _rule(answers.json_valid)
letter = _rule(answers.multiple_choice)
math_verify = _rule(symbolic.compute_score)
number = _rule(answers.numeric_match)
sum_of_numbers = _rule(arithmetic.compute_score)


def format_tags(data_source: str, solution_str: str, ground_truth: Any, extra_info: Any, **options: Any) -> float:
    """See `verl.rewards.answers.format_tags`."""
    return answers.format_tags(solution_str, **options)
