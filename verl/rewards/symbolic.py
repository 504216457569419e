"""Symbolic equality of mathematical answers, by the package math-verify (`pip install 'verl[math]'`)."""

import logging
from typing import Any


def compute_score(solution_str: str, ground_truth: Any) -> float:
    r"""1 if an expression in the response equals `ground_truth`, as mathematics: `\frac{2}{4}` is `0.5`, `{1, 2}` is
    `{2, 1}`; else 0.

    Its own time limits are off, since they need the main thread: reward.timeout_s is the limit. Raises ValueError for a
    ground truth in which nothing is found, ImportError without the package.
    """
    from math_verify import parse, verify

    logging.getLogger("math_verify").setLevel(logging.ERROR)  # it warns of the missing limit at every call
    text = str(ground_truth)
    truth = parse(text, parsing_timeout=None) or parse(f"${text}$", parsing_timeout=None)
    if not truth:
        raise ValueError(f"math-verify finds no expression in the ground truth {text!r:.100}")
    answer = parse(solution_str, parsing_timeout=None)
    return float(verify(truth, answer, timeout_seconds=None))
