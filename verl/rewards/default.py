"""Which rule scores which data set."""

from typing import Any, Protocol

from verl.rewards import reasoning_gym, rules

Score = float | dict[str, Any]
"""A score, or a dict with `score` and whatever else shall be logged of the row."""


class ComputeScore(Protocol):
    """The signature of a scoring function; it is called with keywords."""

    def __call__(self, data_source: str, solution_str: str, ground_truth: Any, extra_info: Any) -> Score: ...


SCORERS: dict[str, ComputeScore] = {
    "arithmetic": rules.sum_of_numbers,
    # numbers after ####
    "gsm8k": rules.gsm8k_number,
    "openai/gsm8k": rules.gsm8k_number,
    # answers in a box
    "math": rules.boxed,
    "lighteval/MATH": rules.boxed,
    "DigitalLearningGmbH/MATH-lighteval": rules.boxed,
    "HuggingFaceH4/MATH-500": rules.boxed,
    # answers on a last line "Answer: ...", as the prompts ask
    "math_dapo": rules.answer_line,
    "aime": rules.answer_line,
    # symbolic equality
    "math_verify": rules.math_verify,
    # plain answers
    "exact_match": rules.exact,
    "numeric": rules.number,
    "multiple_choice": rules.letter,
    "json_schema": rules.json_schema,
    "cais/mmlu": rules.letter,
    "TIGER-Lab/MMLU-Pro": rules.letter,
    "allenai/ai2_arc": rules.letter,
    # programs
    "code": rules.code_tests,
    "codecontests": rules.code_tests,
    "apps": rules.code_tests,
    "codeforces": rules.code_tests,
    "taco": rules.code_tests,
}


def default_compute_score(data_source: str, solution_str: str, ground_truth: Any, extra_info: Any = None) -> Score:
    """Score by the rule of `data_source`. ValueError for a source without one."""
    return scorer_for(data_source)(
        data_source=data_source, solution_str=solution_str, ground_truth=ground_truth, extra_info=extra_info
    )


def scorer_for(data_source: str) -> ComputeScore:
    """The rule of `data_source`: by its name, or for reasoning_gym's and AIME's (`aime24`, `math-ai/AIME_2025`) by how
    it begins. ValueError for a source without one."""
    source = str(data_source)
    if source in SCORERS:
        return SCORERS[source]
    if source.startswith(reasoning_gym.SOURCE):
        return reasoning_gym.compute_score
    if source.rpartition("/")[2].lower().startswith("aime"):
        return SCORERS["aime"]
    raise ValueError(
        f"there is no built-in rule for data_source {data_source!r}, only for {', '.join(SCORERS)}: write a "
        "function of your own and set reward.custom_reward_function.path and .name"
    )
