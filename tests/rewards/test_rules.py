import time
from typing import Any

import pytest

from verl.rewards import arithmetic, default_compute_score, gsm8k, math_boxed, math_dapo
from verl.rewards.default import SCORERS


@pytest.mark.parametrize(
    ("response", "truth", "score"),
    [
        ("19", "19", 1),
        (" 19\n20", 19, 1),
        ("19.", "19", 1),
        ("19, I think", "19", 1),
        ("+19", "19", 1),
        ("019", "19", 1),
        ("1,000", "1000", 1),
        ("-5", "-5", 1),
        ("-0", "0", 1),
        ("190", "19", 0),
        ("19.5", "19", 0),
        ("19,5", "19", 0),
        ("1 9", "19", 0),
        ("It is 19", "19", 0),
        ("5", "-5", 0),
        ("", "19", 0),
        ("9" * 6000, "19", 0),
    ],
)
def test_arithmetic(response: str, truth: Any, score: float) -> None:
    assert arithmetic.compute_score(response, truth) == score


@pytest.mark.parametrize(
    ("response", "truth", "strict", "flexible"),
    [
        ("so 9*2=18\n#### 18", "18", 1, 1),
        ("#### 7 ... no: #### 18", "18", 1, 1),
        ("####18.", "18", 1, 1),
        ("#### $1,234.50", "1234.5", 1, 1),
        ("#### 18.00", "18", 1, 1),
        ("#### -3", "-3", 1, 1),
        ("the answer is 18.", "18", 0, 1),
        ("18 apples and 2 pears", "18", 0, 0),
        ("it is 20-18", "18", 0, 1),
        ("#### x", "18", 0, 0),
        ("#### 18", "#### 18", 1, 1),
        ("", "18", 0, 0),
        ("#### 0.50", ".5", 1, 1),
        ("#### " + "9" * 6000, "18", 0, 0),
    ],
)
def test_gsm8k(response: str, truth: str, strict: float, flexible: float) -> None:
    assert gsm8k.compute_score(response, truth) == strict
    assert gsm8k.compute_score(response, truth, method="flexible") == flexible


@pytest.mark.parametrize(
    ("response", "truth", "score"),
    [
        (r"so \boxed{42}.", "42", 1),
        (r"\boxed{1} then \boxed{2}", "2", 1),
        (r"\boxed{1} then \boxed{2}", "1", 0),
        (r"\boxed{\frac{1}{2}}", "0.5", 1),
        (r"\boxed{\dfrac12}", r"\boxed{\frac{1}{2}}", 1),
        (r"\boxed{-\frac{1}{2}}", "-1/2", 1),
        (r"\boxed{1,000}", "1000", 1),
        (r"\boxed{(1, 000)}", "(1,000)", 1),
        (r"\boxed{1,2}", "12", 0),
        (r"\boxed{5\text{ cm}}", "5", 1),
        (r"\boxed{\text{Evelyn}}", "Evelyn", 1),
        (r"\boxed{x = 3}", "3", 1),
        (r"\boxed{50\%}", "50", 1),
        (r"\boxed{\$5}", "5", 1),
        (r"\boxed{90^\circ}", "90", 1),
        (r"\boxed{2\,\sqrt{3}}", r"2\sqrt{3}", 1),
        (r"\boxed{\left( 1, \frac{3}{4} \right)}", r"(1,\frac{3}{4})", 1),
        (r"\boxed{\{1, 2\}}", r"\{1,2\}", 1),
        (r"\boxed{\boxed{7}}", "7", 1),
        (r"\boxed{7", "7", 0),
        (r"the first \boxed{7} and an open \boxed{8", "7", 1),
        ("42", "42", 0),
        (r"\boxed{}", "42", 0),
        (r"\boxed{1/0}", "1/0", 1),
        (r"\boxed{" + "9" * 6000 + "}", "9", 0),
    ],
)
def test_math_boxed(response: str, truth: str, score: float) -> None:
    assert math_boxed.compute_score(response, truth) == score


@pytest.mark.parametrize(
    ("response", "truth", "score"),
    [
        ("so it is 34.\n\nAnswer: 34", "34", 1),
        ("Answer: $34$.", "34", 1),
        ("**Answer:** 34", "34", 1),
        ("**Answer**: **34**.\n", "34", 1),
        ("**Final answer: 34**", "34", 1),
        ("ANSWER :\n\n34", "34", 1),
        (r"Answer: \(\frac{1}{2}\)", "0.5", 1),
        (r"Answer: $\boxed{34}$", "34", 1),
        ("Answer: $x = 7$", "7", 1),
        ("Answer: 1,000", "1000", 1),
        ("Answer: -.5", "-0.5", 1),
        ("Answer: 3\nno, Answer: 34", "34", 1),
        ("Answer: 34\nno, Answer: 3", "34", 0),
        ("Answer: 34 or 35", "34", 0),
        ("Answer: 34\nThat was easy.\nAnswer:", "34", 1),
        (r"so \boxed{34}", "34", 1),
        ("so \\boxed{34}\nAnswer: 35", "34", 0),
        ("it is 34", "34", 0),
        ("Answer:", "34", 0),
        ("", "34", 0),
    ],
)
def test_math_dapo(response: str, truth: str, score: float) -> None:
    assert math_dapo.compute_score(response, truth) == score


@pytest.mark.parametrize("source", ["math_dapo", "aime", "aime24", "HuggingFaceH4/aime_2024", "math-ai/AIME_2025"])
def test_what_asks_for_a_last_line_is_scored_by_it(source: str) -> None:
    assert default_compute_score(source, "so it is 34.\nAnswer: $34$", "34") == 1
    assert default_compute_score(source, r"so it is \boxed{34}", "34") == 1
    assert default_compute_score(source, "Answer: 35", "34") == 0


def test_a_response_of_nothing_but_boxes_takes_no_time() -> None:
    start = time.perf_counter()
    assert math_boxed.compute_score(r"\boxed{" * 20_000, "1") == 0
    assert gsm8k.compute_score("#### " * 20_000 + "," * 50_000, "1", method="flexible") == 0
    assert math_dapo.compute_score("answer" + " *" * 50_000 + "Answer:" * 20_000 + " " * 50_000, "1") == 0
    assert time.perf_counter() - start < 2


@pytest.mark.parametrize("rule", [arithmetic, gsm8k])
@pytest.mark.parametrize("truth", ["", "nineteen", None])
def test_a_ground_truth_that_is_no_number_is_refused(rule: Any, truth: Any) -> None:
    with pytest.raises(ValueError, match="ground truth of a"):
        rule.compute_score("19", truth)


def test_unknown_method() -> None:
    with pytest.raises(ValueError, match="unknown method 'loose'"):
        gsm8k.compute_score("1", "1", method="loose")  # type: ignore[arg-type]


def test_default_picks_by_data_source() -> None:
    assert default_compute_score("arithmetic", "7", "7", {}) == 1
    assert default_compute_score("openai/gsm8k", "7", "7") == 0
    assert default_compute_score("lighteval/MATH", r"\boxed{7}", "7") == 1
    with pytest.raises(ValueError) as caught:
        default_compute_score("my/data", "7", "7")
    message = str(caught.value)
    assert "'my/data'" in message and "reward.custom_reward_function.path" in message
    assert all(source in message for source in SCORERS)
