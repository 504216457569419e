r"""Competition math whose prompt asks for a last line "Answer: $Answer" (DAPO, Yu et al. 2025, arXiv:2503.14476)."""

import re
from typing import Any

from verl.rewards import math_boxed

_ANSWER = re.compile(r"answer[ \t*_]*:", re.IGNORECASE)
_DELIMITERS = re.compile(r"\\[()\[\]]")
_EMPHASIS = "*_ \t\r\n"


def compute_score(solution_str: str, ground_truth: Any) -> float:
    r"""1 if what follows the last `Answer:` (in any case) on its line is `ground_truth`, else 0.

    Emphasis, `$...$` or `\(...\)` around it and a full stop after it do not count, and it may be boxed. A response
    without such a line is scored by its last `\boxed{...}`. What counts as equal says `math_boxed.same_answer`.
    """
    answer = _last_answer(solution_str)
    if answer is None:
        return math_boxed.compute_score(solution_str, ground_truth)
    return float(math_boxed.same_answer(answer, ground_truth))


def _last_answer(text: str) -> str | None:
    for found in reversed(list(_ANSWER.finditer(text))):
        lines = text[found.end() :].lstrip(_EMPHASIS).splitlines()
        if lines:
            boxed = math_boxed.last_boxed(lines[0])
            return _DELIMITERS.sub("", lines[0]).rstrip(_EMPHASIS + ".") if boxed is None else boxed
    return None
