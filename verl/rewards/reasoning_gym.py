"""Answers to generated puzzles, scored by the generator (`pip install reasoning-gym`)."""

import json
from collections.abc import Mapping
from typing import Any

from verl.rewards.answers import final_answer
from verl.rewards.optional import optional_package

SOURCE = "reasoning_gym/"
"""What the data sources of `verl.data.generated` begin with; the generator's name follows."""


def compute_score(data_source: str, solution_str: str, ground_truth: Any, extra_info: Any) -> float:
    """The generator's own score, from 0 to 1, of the final answer (in `<answer>` tags, or else the whole response).

    Raises ValueError for a row without the generator's entry, ImportError without the package reasoning-gym.
    """
    package = optional_package("reasoning-gym", f"the score of {data_source}")
    if not isinstance(extra_info, Mapping) or "entry" not in extra_info:
        raise ValueError("extra_info of a reasoning_gym row must have `entry`, which its generator wrote")
    entry = extra_info["entry"]
    entry = json.loads(entry) if isinstance(entry, str) else entry
    return float(package.get_score_answer_fn(data_source.removeprefix(SOURCE))(final_answer(solution_str), entry))
