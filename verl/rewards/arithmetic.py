"""Sums: the response must begin with the right integer."""

import re
from typing import Any

# An integer that no further digit or decimal part makes another number; commas may group thousands.
_LEADING_INTEGER = re.compile(r"\s*([+-]?)([0-9]{1,3}(?:,[0-9]{3})+|[0-9]+)(?![0-9]|[.,][0-9])")


def compute_score(solution_str: str, ground_truth: Any) -> float:
    """1 if the first thing in the response, after white space, is the integer `ground_truth`; else 0.

    What follows does not count, since a short completion of "12+7=" may run on: "19", "19." and "19 apples" are right,
    "190", "19.5" and "It is 19" are not. Raises ValueError for a ground truth that is no integer.
    """
    expected = _integer(str(ground_truth).strip())
    if expected is None:
        raise ValueError(f"the ground truth of an arithmetic row must be an integer, not {ground_truth!r}")
    return float(_integer(solution_str) == expected)


def _integer(text: str) -> str | None:
    """The leading integer in its shortest spelling, as text: a long response may hold more digits than int() takes."""
    found = _LEADING_INTEGER.match(text)
    if found is None:
        return None
    digits = found[2].replace(",", "").lstrip("0") or "0"
    return f"-{digits}" if found[1] == "-" and digits != "0" else digits
