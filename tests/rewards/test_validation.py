import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from verl.rewards import validation_metrics


def test_groups_are_by_uid_and_not_by_text() -> None:
    """D6: four rows with one prompt text, two uids."""
    metrics = validation_metrics(["s"] * 4, ["a", "a", "b", "b"], [1, 0, 1, 1])
    assert metrics == {"val/s/reward/mean@2": 0.75, "val/s/reward/best@2": 1.0}


def test_sources_and_numbers_of_answers_are_kept_apart() -> None:
    sources = ["s", "s", "s", "t"]
    metrics = validation_metrics(sources, ["a", "b", "b", "c"], np.array([1.0, 0.0, 0.5, 0.25]))
    assert metrics == {
        "val/s/reward/mean@1": 1.0,
        "val/s/reward/mean@2": 0.25,
        "val/s/reward/best@2": 0.5,
        "val/t/reward/mean@1": 0.25,
    }


def test_extras_count_where_all_answers_have_a_number() -> None:
    extras = {
        "acc": [True, False, None, 1],
        "pred": ["7", "8", "7", "7"],
        "len": [torch.tensor(3), np.int64(4), 5, 6.0],
    }
    metrics = validation_metrics(["s"] * 4, ["a", "a", "b", "b"], [0, 0, 0, 0], extras)
    assert metrics["val/s/acc/mean@2"] == 0.5  # of prompt a alone
    assert metrics["val/s/acc/best@2"] == 1.0
    assert metrics["val/s/len/mean@2"] == 4.5
    assert not any("pred" in name for name in metrics)


def test_nan_is_not_hidden() -> None:
    metrics = validation_metrics(["s"] * 2, ["a", "a"], [math.nan, 1.0])
    assert math.isnan(metrics["val/s/reward/mean@2"]) and math.isnan(metrics["val/s/reward/best@2"])


def test_no_rows_no_metrics() -> None:
    assert validation_metrics([], [], []) == {}


def test_faults() -> None:
    with pytest.raises(ValueError, match="one length, not .*'reward': 1"):
        validation_metrics(["s", "s"], ["a", "b"], [1.0])
    with pytest.raises(ValueError, match=r"uid 'a' is in several data sources: \['s', 't'\]"):
        validation_metrics(["s", "t"], ["a", "a"], [1.0, 0.0])


@given(st.lists(st.tuples(st.sampled_from("abcd"), st.integers(0, 4)), min_size=1, max_size=20), st.randoms())
def test_row_order_does_not_matter(rows: list[tuple[str, int]], random: object) -> None:
    shuffled = list(rows)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    results = [validation_metrics(["s"] * len(r), [u for u, _ in r], [s for _, s in r]) for r in (rows, shuffled)]
    assert results[0] == pytest.approx(results[1])
