"""Answers of one kind each: the same text, the same number, the right letter, valid JSON. All are row scorers."""

import json
import math
import re
from collections.abc import Sequence
from typing import Any

from verl.rewards.optional import optional_package

_TAGGED = re.compile(r"<answer>(.*?)</answer>", re.DOTALL | re.IGNORECASE)
_FENCED = re.compile(r"```[ \t]*([\w+#.-]*)[ \t]*\r?\n(.*?)```", re.DOTALL)
_NUMBER = re.compile(
    r"(?<![\w.])[-+]?(?:[0-9]{1,3}(?:,[0-9]{3})+|[0-9]+)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?|(?<![\w.])[-+]?\.[0-9]+"
)
# In this order: what is said to be the answer, what is boxed, a letter in parentheses. Words around it in any case, the
# letter itself as a capital: "answer is a number" names no option.
_CHOICE = (
    r"(?i:answer)\s*(?:is|:|=)?\s*[:\s]*[\(\[\*\"'`]*{}(?![\w'])",
    r"(?i:option|choice)\s*(?:is|:|=)?\s*[:\s]*[\(\[\*\"'`]*{}(?![\w'])",
    r"\\boxed\{{\s*(?:\\text\{{)?\s*\(?{}\)?\s*\}}",
    r"[\(\[]{}[\)\]]",
)
# Then one that begins a line: "C", "(C)", "C.", "C)", "C:", also in bold type.
_BEGINS_LINE = r"^[ \t>*_-]*\(?{}[*_]*(?:[.):](?!\w)|[ \t]*$)"
# Last one that stands alone, but for the pronoun I and the article A: both stand before a lower-case word.
_ALONE = (
    r"(?<![\w'’]){}(?![\w'’])(?!(?<=I)\s+(?!is\b)[a-z])"
    r"(?!(?<=A)\s+(?!(?:and|as|because|has|is|or|seems|since|was)\b)[a-z])"
)


def final_answer(text: str) -> str:
    """What stands in the last `<answer>...</answer>`, or else the whole text; without white space around it."""
    tagged = _TAGGED.findall(text)
    return (tagged[-1] if tagged else text).strip()


def exact_match(solution_str: str, ground_truth: Any) -> float:
    """1 if the final answer is the ground truth (or one of a list of them), letter by letter, but for case and white
    space; else 0."""
    truths = ground_truth if isinstance(ground_truth, list | tuple) else [ground_truth]
    answer = _plain(final_answer(solution_str))
    return float(any(_plain(str(truth)) == answer for truth in truths))


def numeric_match(solution_str: str, ground_truth: Any, rel_tol: float = 1e-6, abs_tol: float = 1e-9) -> float:
    """1 if the last number of the final answer is the ground truth within the tolerances; else 0.

    Raises ValueError for a ground truth that is no finite number.
    """
    try:
        truth = float(str(ground_truth).replace(",", ""))
    except ValueError:
        truth = math.nan
    if not math.isfinite(truth):
        raise ValueError(f"the ground truth of a numeric row must be a finite number, not {ground_truth!r}")
    found = _NUMBER.findall(final_answer(solution_str))
    return float(
        bool(found) and math.isclose(float(found[-1].replace(",", "")), truth, rel_tol=rel_tol, abs_tol=abs_tol)
    )


def multiple_choice(solution_str: str, ground_truth: Any, letters: str = "ABCDEFGHIJ") -> float:
    """1 if the letter that the response settles on is the ground truth ("B", or 1 for the second); else 0.

    The last letter that is named as the answer counts, else the last named as an option, the last boxed one, the last
    in parentheses, the only one that begins a line ("C.", "C:"), or the last that stands alone as a capital and is no
    word ("I think", "A proof").
    Raises ValueError for a ground truth that is no such letter.
    """
    truth = str(ground_truth).strip().strip("()").upper()
    if isinstance(ground_truth, int):
        truth = letters[ground_truth : ground_truth + 1] if ground_truth >= 0 else ""
    if len(truth) != 1 or truth not in letters:
        raise ValueError(f"the ground truth of a multiple-choice row must be one of {letters}, not {ground_truth!r}")
    answer = final_answer(solution_str)
    if len(answer.strip("().*: ")) == 1:
        return float(answer.strip("().*: ").upper() == truth)
    letter = f"([{letters}])"
    for pattern in _CHOICE:
        found = re.findall(pattern.format(letter), answer)
        if found:
            return float(found[-1] == truth)
    begins = set(re.findall(_BEGINS_LINE.format(letter), answer, re.MULTILINE))
    if len(begins) == 1:  # more are the options, written once more
        return float(truth in begins)
    alone = re.findall(_ALONE.format(letter), answer)
    return float(bool(alone) and alone[-1] == truth)


def json_valid(solution_str: str, ground_truth: Any) -> float:
    """1 if the response is JSON that fits the JSON schema `ground_truth` (a dict, or JSON text of one); else 0.

    The JSON is the last fenced block, the final answer, or the whole response. Raises ValueError for a ground truth
    that is no schema, ImportError without the package jsonschema.
    """
    jsonschema = optional_package("jsonschema", "the rule of JSON answers (data_source json_schema)")
    schema = json.loads(ground_truth) if isinstance(ground_truth, str) else ground_truth
    try:
        validator = jsonschema.validators.validator_for(schema)
        validator.check_schema(schema)
    except (jsonschema.SchemaError, TypeError) as error:
        raise ValueError(f"the ground truth is no JSON schema: {error}") from error
    try:
        value = json.loads(fenced_block(solution_str) or final_answer(solution_str), parse_constant=_no_constant)
    except (ValueError, RecursionError):
        return 0.0
    return float(validator(schema).is_valid(value))


def format_tags(solution_str: str, tags: Sequence[str] = ("think", "answer")) -> float:
    """1 if the response is exactly these tags, each once, in this order, with something in each and nothing around
    them; else 0."""
    for tag in tags:
        if len(re.findall(rf"<{tag}>", solution_str)) != 1 or len(re.findall(rf"</{tag}>", solution_str)) != 1:
            return 0.0
    pattern = r"\s*".join(rf"<{tag}>\s*\S.*?</{tag}>" for tag in tags)
    return float(re.fullmatch(rf"\s*{pattern}\s*", solution_str, re.DOTALL) is not None)


def fenced_block(text: str, languages: Sequence[str] = ()) -> str | None:
    """What stands in the last Markdown fence, of one of the languages if any are given; None without one."""
    blocks = [block for language, block in _FENCED.findall(text) if not languages or language.lower() in languages]
    return blocks[-1] if blocks else None


def _plain(text: str) -> str:
    return " ".join(text.split()).casefold()


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")
