"""Metrics that merge exactly: the same figure for any number of micro-batches, processes and orders.

A worker never averages averages. It returns `Mean(total, count)` and the like; the driver merges those of all
processes and only then divides.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Mean:
    """total / count; NaN when nothing was counted. Both may be floats or scalar tensors."""

    total: Any
    count: Any

    def merge(self, other: "Mean") -> "Mean":
        return Mean(self.total + other.total, self.count + other.count)

    def value(self) -> float:
        return float("nan") if self.empty else float(self.total) / float(self.count)

    @property
    def empty(self) -> bool:
        return not float(self.count)

    def detached(self) -> "Mean":
        return Mean(float(self.total), float(self.count))


@dataclass(frozen=True)
class Difference:
    """The difference of two means, each over values of its own; NaN when one of them has none."""

    left: Mean
    right: Mean

    def merge(self, other: "Difference") -> "Difference":
        return Difference(self.left.merge(other.left), self.right.merge(other.right))

    def value(self) -> float:
        return self.left.value() - self.right.value()

    @property
    def empty(self) -> bool:
        return self.left.empty or self.right.empty

    def detached(self) -> "Difference":
        return Difference(self.left.detached(), self.right.detached())


@dataclass(frozen=True)
class Sum:
    total: Any
    empty = False

    def merge(self, other: "Sum") -> "Sum":
        return Sum(self.total + other.total)

    def value(self) -> float:
        return float(self.total)

    def detached(self) -> "Sum":
        return Sum(float(self.total))


@dataclass(frozen=True)
class Max:
    """The largest value; -inf when there was none."""

    largest: Any

    def merge(self, other: "Max") -> "Max":
        return Max(max(float(self.largest), float(other.largest)))

    def value(self) -> float:
        return float(self.largest)

    @property
    def empty(self) -> bool:
        return float(self.largest) == float("-inf")

    def detached(self) -> "Max":
        return Max(float(self.largest))


@dataclass(frozen=True)
class Min:
    """The smallest value; inf when there was none."""

    smallest: Any

    def merge(self, other: "Min") -> "Min":
        return Min(min(float(self.smallest), float(other.smallest)))

    def value(self) -> float:
        return float(self.smallest)

    @property
    def empty(self) -> bool:
        return float(self.smallest) == float("inf")

    def detached(self) -> "Min":
        return Min(float(self.smallest))


Metric = Mean | Difference | Sum | Max | Min
Metrics = dict[str, Metric]


def merge_metrics(parts: Iterable[Mapping[str, Metric]]) -> Metrics:
    """Merge metrics of micro-batches or processes. One name of two kinds is a TypeError."""
    merged: Metrics = {}
    for part in parts:
        for name, metric in part.items():
            if name not in merged:
                merged[name] = metric
            elif type(merged[name]) is not type(metric):
                raise TypeError(
                    f"metric {name!r} is a {type(merged[name]).__name__} in one place and a "
                    f"{type(metric).__name__} in another: give it one kind"
                )
            else:
                merged[name] = merged[name].merge(metric)  # type: ignore[arg-type]
    return merged


def detach_metrics(metrics: Mapping[str, Metric]) -> Metrics:
    """The same metrics as plain floats, ready to travel."""
    return {name: metric.detached() for name, metric in metrics.items()}


def metric_values(metrics: Mapping[str, Metric]) -> dict[str, float]:
    """The final figures, without those that nothing was counted for, such as the loss of a step whose tokens were all
    rejected."""
    return {name: metric.value() for name, metric in metrics.items() if not metric.empty}
