"""Grade-school math (Cobbe et al. 2021, arXiv:2110.14168): a number after `####`."""

import re
from typing import Any, Literal

# A sign after a digit is an operator: the last number of "10-8" is 8.
_NUMBER = r"(?:(?<![0-9])[-+])?\$?(?:[0-9][0-9,]*(?:\.[0-9]+)?|\.[0-9]+)"
_MARKED = re.compile(rf"####\s*({_NUMBER})")
_ANY = re.compile(_NUMBER)


def compute_score(solution_str: str, ground_truth: Any, method: Literal["strict", "flexible"] = "strict") -> float:
    """1 if the response's answer equals `ground_truth` as a number, else 0.

    `strict` takes the number after the last `####`, `flexible` the last number anywhere. "$1,000", "1000" and
    "1000.0" are one number. Raises ValueError for a ground truth without a number or another method.
    """
    if method not in ("strict", "flexible"):
        raise ValueError(f"unknown method {method!r}: expected strict or flexible")
    truth = str(ground_truth)
    expected = _last_number(truth, _MARKED) or _last_number(truth, _ANY)
    if expected is None:
        raise ValueError(f"the ground truth of a gsm8k row must hold a number, unlike {ground_truth!r}")
    return float(_last_number(solution_str, _MARKED if method == "strict" else _ANY) == expected)


def _last_number(text: str, pattern: re.Pattern[str]) -> str | None:
    """The last match in one spelling: no `$`, no grouping commas, no zeros that say nothing, no plus."""
    found = pattern.findall(text)
    if not found:
        return None
    number = re.sub("[$,+]", "", found[-1])
    whole, _, decimals = number.removeprefix("-").partition(".")
    decimals = decimals.rstrip("0")
    plain = (whole.lstrip("0") or "0") + (f".{decimals}" if decimals else "")
    return f"-{plain}" if number.startswith("-") and plain != "0" else plain
