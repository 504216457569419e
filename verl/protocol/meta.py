"""Joining the `meta_info` of several batches.

Two keys are reports that every process writes for itself, so they are collected: `timing` (seconds by name) and
`metrics`. Any other key is a fact about the whole batch, on which all must agree.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from verl.protocol.compare import values_equal

Meta = dict[str, Any]


def concat_meta(metas: Sequence[Mapping[str, Any]]) -> Meta:
    """The meta of rows put one after another.

    `timing` becomes {name: [every value]}, `metrics` one list of all parts' entries. A key that some lack is kept.
    Raises ValueError when two parts contradict each other, naming the key and both values.
    """
    merged: Meta = {}
    for key in dict.fromkeys(key for meta in metas for key in meta):
        values = [meta[key] for meta in metas if key in meta]
        merged[key] = _COLLECTORS[key](values) if key in _COLLECTORS else _agreed("concat", key, values)
    return merged


def union_meta(left: Mapping[str, Any], right: Mapping[str, Any]) -> Meta:
    """The meta of columns put side by side: as `concat_meta`, but what both already share stays as it is."""
    merged: Meta = {**left, **right}
    for key in left.keys() & right.keys():
        if key in _COLLECTORS and not values_equal(left[key], right[key]):
            merged[key] = _COLLECTORS[key]([left[key], right[key]])
        else:
            merged[key] = _agreed("union", key, [left[key], right[key]])
    return merged


def _agreed(operation: str, key: str, values: Sequence[Any]) -> Any:
    for other in values[1:]:
        if not values_equal(values[0], other):
            raise ValueError(
                f"{operation}: meta_info[{key!r}] is {values[0]!r} in one part and {other!r} in another; "
                f"make them agree or remove the key"
            )
    return values[0]


def _as_list(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else [value]


def _collect_timings(values: Iterable[Any]) -> dict[str, list[Any]]:
    collected: dict[str, list[Any]] = {}
    for timing in values:
        if not isinstance(timing, Mapping):
            raise TypeError(f"meta_info['timing'] must be a dict of seconds by name, not {type(timing).__name__}")
        for name, seconds in timing.items():
            collected.setdefault(name, []).extend(_as_list(seconds))
    return collected


def _collect_metrics(values: Iterable[Any]) -> list[Any]:
    return [entry for value in values for entry in _as_list(value)]


_COLLECTORS: dict[str, Callable[[Iterable[Any]], Any]] = {"timing": _collect_timings, "metrics": _collect_metrics}
