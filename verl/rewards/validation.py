"""How good the answers to the validation prompts are."""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any


def validation_metrics(
    data_sources: Sequence[Any],
    uids: Sequence[Any],
    scores: Sequence[float],
    extras: Mapping[str, Sequence[Any]] | None = None,
) -> dict[str, float]:
    """`val/<data_source>/<name>/mean@<n>` and, for n > 1, `best@<n>`.

    Rows with one `uid` are the n answers to one prompt, whatever its text. `mean@n` is the mean over prompts of the
    mean of their n answers, `best@n` that of their maximum; prompts with another number of answers have metrics of
    their own. `<name>` is `reward` for `scores`, and a key of `extras` for prompts all of whose answers have a
    number there.

    Args:
        data_sources, uids, scores: one entry per row.
        extras: further values of the rows, as in `RewardResult.extras`.

    Raises ValueError for columns of several lengths, or a uid in two data sources.
    """
    columns = {"data_sources": data_sources, "uids": uids, "reward": scores, **(extras or {})}
    lengths = {name: len(column) for name, column in columns.items()}
    if len(set(lengths.values())) > 1:
        raise ValueError(f"the columns of a validation must have one length, not {lengths}")
    groups: dict[Any, list[int]] = defaultdict(list)
    for row, uid in enumerate(uids):
        groups[uid].append(row)

    figures: dict[str, list[float]] = defaultdict(list)
    for uid, rows in groups.items():
        sources = {data_sources[row] for row in rows}
        if len(sources) > 1:
            raise ValueError(f"uid {uid!r} is in several data sources: {sorted(map(str, sources))}")
        prefix, n = f"val/{sources.pop()}", len(rows)
        for name, column in {"reward": scores, **(extras or {})}.items():
            values = [_as_number(column[row]) for row in rows]
            numbers = [value for value in values if value is not None]
            if len(numbers) == n:
                figures[f"{prefix}/{name}/mean@{n}"].append(fmean(numbers))
                if n > 1:
                    figures[f"{prefix}/{name}/best@{n}"].append(_max(numbers))
    return {name: fmean(values) for name, values in figures.items()}


def _as_number(value: Any) -> float | None:
    """None for what is no number."""
    if hasattr(value, "item") and math.prod(value.shape) == 1:  # a tensor, an array or one of numpy's scalars
        value = value.item()
    return float(value) if isinstance(value, int | float) else None


def _max(values: Sequence[float]) -> float:
    """NaN if any is: max() would hide it or not, depending on the order."""
    return math.nan if any(map(math.isnan, values)) else max(values)
