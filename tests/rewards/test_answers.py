import json
import sys
from typing import Any

import pytest

from verl.rewards.answers import (
    exact_match,
    fenced_block,
    final_answer,
    format_tags,
    json_valid,
    multiple_choice,
    numeric_match,
)
from verl.rewards.default import default_compute_score
from verl.rewards.length import length_penalty


@pytest.mark.parametrize(
    ("text", "answer"),
    [("<answer> a </answer> then <answer>b\n</answer>", "b"), (" plain ", "plain"), ("<answer>open", "<answer>open")],
)
def test_final_answer(text: str, answer: str) -> None:
    assert final_answer(text) == answer


@pytest.mark.parametrize(
    ("text", "truth", "score"),
    [
        ("Paris", "paris", 1),
        ("  New\n York ", "New York", 1),
        ("so <answer>Paris</answer>.", "Paris", 1),
        ("It is Paris", "Paris", 0),
        ("b", ["a", "B"], 1),
        ("7", 7, 1),
        ("", "", 1),
        ("שלום 👋", "שלום 👋", 1),
    ],
)
def test_exact_match(text: str, truth: Any, score: float) -> None:
    assert exact_match(text, truth) == score


@pytest.mark.parametrize(
    ("text", "truth", "score"),
    [
        ("the result is 3.14159265", "3.14159265", 1),
        ("about 1,234.5", 1234.5, 1),
        ("first 3, then 4", 4, 1),
        ("-7", -7, 1),
        ("10-7", 7, 1),
        ("1e3", 1000, 1),
        (".5", 0.5, 1),
        ("x2", 2, 0),
        ("none", 2, 0),
        ("3.0000001", 3, 1),
        ("3.001", 3, 0),
        ("9" * 400, 3, 0),
    ],
)
def test_numeric_match(text: str, truth: Any, score: float) -> None:
    assert numeric_match(text, truth) == score


@pytest.mark.parametrize("truth", ["abc", "nan", None])
def test_numeric_match_needs_a_number(truth: Any) -> None:
    with pytest.raises(ValueError, match="must be a finite number"):
        numeric_match("3", truth)


@pytest.mark.parametrize(
    ("text", "truth", "score"),
    [
        ("B", "B", 1),
        ("b.", "B", 1),
        ("(C)", "C", 1),
        ("The answer is B.", "B", 1),
        ("Answer: **D**", "D", 1),
        ("the answer is (A), not B", "A", 1),
        ("Either A or C... I choose option C", "C", 1),
        (r"\boxed{\text{B}}", "B", 1),
        ("A B", "B", 1),
        ("the answer is a number", "A", 0),
        ("I think it is Bob", "B", 0),
        ("It is B, I think.", "B", 1),
        ("I’m sure that it is B", "B", 1),
        ("B. I am sure", "B", 1),
        ("C is right. A proof follows.", "C", 1),
        ("C\nA proof follows, with B.", "C", 1),
        ("**C**: A or B would be odd", "C", 1),
        ("C) Unlike A and D it is even", "C", 1),
        ("A. red\nB. green\nC. blue\nI take B", "B", 1),
        ("A dog, I guess", "A", 0),
        ("A is right", "A", 1),
        ("It must be A", "A", 1),
        ("Of H and I, I take I.", "I", 1),
        ("H or I is it", "I", 1),
        ("<answer>B</answer>", 1, 1),
        ("no letter", "B", 0),
        ("Answer: B\n\nExplanation: option A is wrong", "B", 1),
        ("Option A fails, so choice C", "C", 1),
    ],
)
def test_multiple_choice(text: str, truth: Any, score: float) -> None:
    assert multiple_choice(text, truth) == score


def test_multiple_choice_needs_a_letter() -> None:
    with pytest.raises(ValueError, match="must be one of ABCDEFGHIJ, not 'Paris'"):
        multiple_choice("A", "Paris")
    for number in (12, -1):
        with pytest.raises(ValueError, match=f"must be one of ABCDEFGHIJ, not {number}"):
            multiple_choice("A", number)


SCHEMA = {"type": "object", "required": ["name"], "properties": {"name": {"type": "string"}}}


@pytest.mark.parametrize(
    ("text", "score"),
    [
        ('{"name": "x"}', 1),
        ('Here:\n```json\n{"name": "x"}\n```\nDone.', 1),
        ('<answer>{"name": "x", "more": 1}</answer>', 1),
        ('{"name": 3}', 0),
        ("{}", 0),
        ("{'name': 'x'}", 0),
        ('{"name": NaN}', 0),
        ("[" * 100000, 0),
    ],
)
def test_json_schema(text: str, score: float) -> None:
    pytest.importorskip("jsonschema")
    assert json_valid(text, SCHEMA) == json_valid(text, json.dumps(SCHEMA)) == score


def test_json_schema_must_be_one() -> None:
    pytest.importorskip("jsonschema")
    with pytest.raises(ValueError, match="no JSON schema"):
        json_valid("{}", {"type": "nothing"})


@pytest.mark.parametrize(
    ("text", "score"),
    [
        ("<think>a</think><answer>b</answer>", 1),
        ("\n<think>\na\nb</think>\n\n<answer> b</answer>\n", 1),
        ("<answer>b</answer><think>a</think>", 0),
        ("<think>a</think>", 0),
        ("<think>a</think> so <answer>b</answer>", 0),
        ("<think> </think><answer>b</answer>", 0),
        ("<think>a</think><answer>b</answer><answer>c</answer>", 0),
        ("<think>a<think></think><answer>b</answer>", 0),
    ],
)
def test_format_tags(text: str, score: float) -> None:
    assert format_tags(text) == score


def test_length_penalty() -> None:
    assert length_penalty("s", "x" * 30, None, None, per_character=0.1, free=10) == pytest.approx(-2)
    assert length_penalty("s", "x" * 5, None, None, free=10) == 0


def test_fenced_blocks() -> None:
    text = "```python\na = 1\n```\nand\n```\nb\n```"
    assert fenced_block(text) == "b\n"
    assert fenced_block(text, ["python"]) == "a = 1\n"
    assert fenced_block("none") is None


@pytest.mark.parametrize(
    ("source", "text", "truth", "score"),
    [
        ("gsm8k", "#### 4", "4", 1),
        ("aime", r"\boxed{204}", "204", 1),
        ("exact_match", "a", "A", 1),
        ("numeric", "0.50", "1", 0),
        ("multiple_choice", "(B)", "B", 1),
        ("cais/mmlu", "B", "C", 0),
    ],
)
def test_the_data_source_chooses_the_rule(source: str, text: str, truth: Any, score: float) -> None:
    assert default_compute_score(source, text, truth, None) == score


def test_symbolic_equality() -> None:
    pytest.importorskip("math_verify", reason="math-verify is not installed")
    for text, truth, score in [
        (r"so \boxed{\frac{2}{4}}", "0.5", 1),
        (r"it is $x^2+2x+1$", "(x+1)^2", 1),
        (r"$\{1,2\}$", r"\{2,1\}", 1),
        ("12", "13", 0),
        ("no idea", "13", 0),
    ]:
        assert default_compute_score("math_verify", text, truth) == score, text
    with pytest.raises(ValueError, match="no expression in the ground truth"):
        default_compute_score("math_verify", "1", "")


@pytest.mark.parametrize(
    ("source", "package"),
    [
        ("json_schema", "jsonschema"),
        ("math_verify", "math-verify"),
        ("reasoning_gym/basic_arithmetic", "reasoning-gym"),
    ],
)
def test_a_missing_package_is_named(source: str, package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, package.replace("-", "_"), None)
    with pytest.raises(ImportError, match=rf"{source}.* needs the package {package} .*: pip install {package}$"):
        default_compute_score(source, "{}", "{}", {"entry": {}})


def test_rules_take_the_fields_signature() -> None:
    from verl.rewards import rules
    from verl.rewards.functions import kind_of

    for name in rules.__all__:
        assert kind_of(getattr(rules, name)) == "row", name
    arguments = {"data_source": "s", "solution_str": "<a>x</a>", "ground_truth": "x", "extra_info": None}
    assert rules.format_tags(**arguments, tags=["a"]) == 1
    assert (
        rules.gsm8k_number(data_source="s", solution_str="so 4", ground_truth="4", extra_info=None, method="flexible")
        == 1
    )
