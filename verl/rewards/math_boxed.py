r"""Competition math (Hendrycks et al. 2021, arXiv:2103.03874): the answer is in the last `\boxed{...}`."""

import re
from fractions import Fraction
from typing import Any

_BRACE = re.compile(r"\\[{}]|\\(?:boxed|fbox)\s*\{|[{}]")
_WRAPPER = re.compile(r"\\(?:text|mathrm|textbf|mathbf|mbox|operatorname)\s*\{([^{}]*)\}")
_LAYOUT = re.compile(r"\\(?:left|right|displaystyle|limits|quad|qquad)(?![a-zA-Z])|\\[!,;: ]|\\?\$|[\s~]")
_DEGREES = re.compile(r"\^\{?\\circ\}?|\\degree|°")
_SHORT_FRACTION = re.compile(r"\\frac([0-9])([0-9])")
_ASSIGNMENT = re.compile(r"[a-zA-Z]=(?=[^=])")
_FRACTION = re.compile(r"([-+]?)\\frac\{([0-9]+)\}\{([0-9]+)\}")
_RATIO = re.compile(r"([-+]?[0-9]+)/([0-9]+)")
_DECIMAL = re.compile(r"[-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)")
_GROUPED = re.compile(r"[-+]?[0-9]{1,3}(?:,[0-9]{3})+(?:\.[0-9]+)?")
_LONGEST_NUMBER = 100


def compute_score(solution_str: str, ground_truth: Any) -> float:
    r"""1 if the last `\boxed{...}` of the response is `ground_truth` (see `same_answer`), else 0."""
    answer = last_boxed(solution_str)
    return float(answer is not None and same_answer(answer, ground_truth))


def same_answer(answer: str, ground_truth: Any) -> bool:
    r"""Whether the two are one as numbers if both are (0.5, 1/2 and \frac{1}{2} are one), else as LaTeX without layout,
    units in `\text{}`, degrees and per cent signs, and an `x=` in front. The ground truth may itself be boxed."""
    truth = last_boxed(str(ground_truth))
    left, right = _normal(answer), _normal(str(ground_truth) if truth is None else truth)
    numbers = _number(left), _number(right)
    return left == right or (numbers[0] is not None and numbers[0] == numbers[1])


def last_boxed(text: str) -> str | None:
    r"""What the last complete `\boxed{...}` (or `\fbox{...}`) holds, braces inside it matched."""
    open_braces: list[int | None] = []  # where a box's content starts; None for any other brace
    answer: tuple[int, int] | None = None
    for brace in _BRACE.finditer(text):
        if brace[0] in (r"\{", r"\}"):
            continue
        if brace[0] != "}":
            open_braces.append(None if brace[0] == "{" else brace.end())
        elif open_braces and (start := open_braces.pop()) is not None and (answer is None or start > answer[0]):
            answer = start, brace.start()
    return None if answer is None else text[answer[0] : answer[1]]


def _normal(answer: str) -> str:
    bare = _WRAPPER.sub(r"", answer)
    # A unit beside the answer goes; an answer that is all text stays.
    answer = bare if bare.strip() else _WRAPPER.sub(r"\1", answer)
    answer = _LAYOUT.sub("", answer.replace("\\dfrac", "\\frac").replace("\\tfrac", "\\frac"))
    answer = _DEGREES.sub("", answer).replace("\\%", "").replace("%", "").rstrip(".")
    answer = _SHORT_FRACTION.sub(r"\\frac{\1}{\2}", answer)
    found = _ASSIGNMENT.match(answer)
    answer = answer[found.end() :] if found else answer
    return answer.replace(",", "") if _GROUPED.fullmatch(answer) else answer


def _number(text: str) -> Fraction | None:
    if len(text) > _LONGEST_NUMBER:  # a response may hold more digits than Python converts
        return None
    if _DECIMAL.fullmatch(text):
        return Fraction(text)
    for pattern, parts in ((_FRACTION, (2, 3)), (_RATIO, (1, 2))):
        found = pattern.fullmatch(text)
        if found and int(found[parts[1]]):
            value = Fraction(int(found[parts[0]]), int(found[parts[1]]))
            return -value if pattern is _FRACTION and found[1] == "-" else value
    return None
