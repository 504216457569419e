"""Symbolic equality of mathematical answers, by the package math-verify (`pip install math-verify`)."""

import logging
from typing import Any

from verl.rewards.optional import optional_package


def compute_score(solution_str: str, ground_truth: Any) -> float:
    r"""1 if an expression in the response equals `ground_truth`, as mathematics: `\frac{2}{4}` is `0.5`, `{1, 2}` is
    `{2, 1}`; else 0.

    Its own time limits are off, since they need the main thread: reward.timeout_s is the limit. Raises ValueError for a
    ground truth in which nothing is found, ImportError without the package.
    """
    math_verify = optional_package("math-verify", "symbolic equality (data_source math_verify)")
    logging.getLogger("math_verify").setLevel(logging.ERROR)  # it warns of the missing limit at every call
    text = str(ground_truth)
    truth = math_verify.parse(text, parsing_timeout=None) or math_verify.parse(f"${text}$", parsing_timeout=None)
    if not truth:
        raise ValueError(f"math-verify finds no expression in the ground truth {text!r:.100}")
    answer = math_verify.parse(solution_str, parsing_timeout=None)
    return float(math_verify.verify(truth, answer, timeout_seconds=None))
