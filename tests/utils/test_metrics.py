"""Metrics merge to the figure of the whole, however it was cut."""

import math

import pytest
import torch

from verl.utils.metrics import Difference, Max, Mean, Min, Sum, detach_metrics, merge_metrics, metric_values

PARTS = [
    {
        "mean": Mean(torch.tensor(6.0), 2),
        "margin": Difference(Mean(4.0, 2), Mean(1.0, 1)),
        "sum": Sum(1.5),
        "max": Max(torch.tensor(3.0)),
        "min": Min(3.0),
    },
    {
        "mean": Mean(0.0, 1),
        "margin": Difference(Mean(0.0, 0), Mean(0.0, 1)),
        "sum": Sum(2),
        "max": Max(5),
        "min": Min(5),
    },
]
WHOLE = {"mean": 2.0, "margin": 2.0 - 0.5, "sum": 3.5, "max": 5.0, "min": 3.0}


@pytest.mark.parametrize("parts", [PARTS, PARTS[::-1], list(map(detach_metrics, PARTS))])
def test_parts_merge_to_the_whole(parts: list[dict]) -> None:
    assert metric_values(merge_metrics(parts)) == WHOLE


def test_a_name_that_only_some_parts_have_is_kept() -> None:
    assert metric_values(merge_metrics([{"a": Sum(1)}, {"b": Sum(2)}])) == {"a": 1, "b": 2}


def test_nothing_counted_is_nan_and_no_figure() -> None:
    assert math.isnan(Mean(0.0, 0).value()) and math.isnan(Difference(Mean(1.0, 1), Mean(0.0, 0)).value())
    nothing = {
        "mean": Mean(0.0, 0), "margin": Difference(Mean(1.0, 1), Mean(0.0, 0)), "max": Max(-math.inf),
        "min": Min(math.inf), "sum": Sum(0.0), "really": Mean(math.nan, 1),
    }  # fmt: skip
    figures = metric_values(nothing)
    assert list(figures) == ["sum", "really"] and math.isnan(figures["really"])


def test_two_kinds_of_one_name_are_refused() -> None:
    with pytest.raises(TypeError, match="metric 'a' is a Sum in one place and a Mean in another"):
        merge_metrics([{"a": Sum(1)}, {"a": Mean(1.0, 1)}])
