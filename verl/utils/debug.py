"""What a run does now: `who_waits()` (at another terminal: `python -m verl.utils.debug`), `print_memory_usage()`."""

import time
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any

from verl.utils.activity import DRIVER, Activity, Awaited, activities
from verl.utils.events import duration
from verl.utils.text import aligned

SPREAD = 0.15
"""Ranks of one role whose memory differs by more than this share of the largest are worth a look."""


def who_waits() -> None:
    """Print what each role of every running job of this user on this machine does now, and for whom it waits."""
    print(activity_table(activities(), time.time()), flush=True)


def activity_table(found: Sequence[Activity], now: float) -> str:
    """A table for each job: the driver first, then the roles by name and rank. `now` is in seconds since the epoch."""
    if not found:
        return "no process of verl that belongs to you runs on this machine (a run is seen once its workers start)"
    tables = []
    ordered = sorted(
        found, key=lambda activity: (activity.job, activity.role != DRIVER, activity.role, activity.rank or 0)
    )
    for job, members in groupby(ordered, key=lambda activity: activity.job):
        rows = [("role", "rank", "node", "pid", "step", "does", "for", "waits for")]
        for activity in members:
            awaited = _awaited_text(activity.waits_for)
            rows.append(
                (
                    activity.role,
                    _text(activity.rank),
                    activity.node,
                    str(activity.pid),
                    _text(activity.step),
                    activity.name or ("waits" if awaited else "idle"),
                    duration(now - activity.since),
                    f"{awaited} ({duration(now - activity.waits_since)})" if awaited else "-",
                )
            )
        tables.append("\n".join([f"job of the driver {job}", *aligned(rows)]))
    return "\n\n".join(tables)


def _awaited_text(awaited: Sequence[Awaited]) -> str:
    ranks: dict[str, list[str]] = {}
    for other in awaited:
        ranks.setdefault(other.name, []).append(str(other.rank))
    return ", ".join(f"{name} on rank{'s' * (len(of) > 1)} {', '.join(of)}" for name, of in ranks.items())


def print_memory_usage(label: str = "memory", groups: Any = None) -> None:
    """Print the memory of this process: resident, now and at its peak, and of its CUDA device.

    With `groups` (a trainer, a worker group, or several: a list, or a dict by role) print a row for each of their
    processes as well, with a warning for every role whose processes differ by more than 15%.
    """
    from verl.utils.memory import GIB, MemoryUsage

    here = MemoryUsage.here()
    parts = [f"rss {here.rss / GIB:.2f} GiB", f"peak rss {here.peak_rss / GIB:.2f} GiB"]
    if here.allocated is not None:
        parts += [
            f"cuda {_gib(here.allocated)}",
            f"peak cuda {_gib(here.peak_allocated)}",
            f"device {_gib(here.device_used)} of {_gib(here.device_total)} in use",
        ]
    lines = [f"[{label}, pid {here.pid}] " + " | ".join(parts)]
    if groups is not None:
        lines += memory_lines({group.role: group.memory_usage() for group in _groups_of(groups)})
    print("\n".join(lines), flush=True)


def memory_lines(by_role: Mapping[str, Sequence[Any]]) -> list[str]:
    """A table of `MemoryUsage` by role and rank, roles of the same processes in one row, and the warnings."""
    shared: dict[tuple[Any, ...], list[str]] = {}
    for role, usages in by_role.items():
        shared.setdefault(tuple((usage.node, usage.pid) for usage in usages), []).append(role)
    rows = [("role", "rank", "node", "pid", "rss", "peak rss", "device", "tensors", "peak", "reserved", "in use")]
    warnings = []
    for roles in shared.values():
        name, usages = "+".join(roles), by_role[roles[-1]]
        for rank, usage in enumerate(usages):
            device = [_gib(each) for each in (usage.allocated, usage.peak_allocated, usage.reserved)]
            in_use = "-" if usage.device_used is None else f"{_gib(usage.device_used)} of {_gib(usage.device_total)}"
            memory = [_gib(usage.rss), _gib(usage.peak_rss), usage.device, *device, in_use]
            rows.append((name, str(rank), usage.node, str(usage.pid), *memory))
        warnings += _spread(name, "resident memory", [usage.rss for usage in usages])
        if all(usage.reserved is not None for usage in usages):
            warnings += _spread(name, "reserved device memory", [usage.reserved for usage in usages])
    return [*aligned(rows), *warnings]


def _spread(role: str, what: str, amounts: Sequence[int]) -> list[str]:
    least, most = min(amounts), max(amounts)
    if most - least <= SPREAD * most:
        return []
    return [
        f"WARNING: {role}: {what} differs by {(most - least) / most:.0%} between ranks: {_gib(least)} on rank "
        f"{amounts.index(least)}, {_gib(most)} on rank {amounts.index(most)}"
    ]


def _groups_of(groups: Any) -> Iterable[Any]:
    groups = getattr(groups, "worker_groups", groups)
    if isinstance(groups, Mapping):
        return groups.values()
    return groups if isinstance(groups, Sequence) else [groups]


def _gib(amount: int | None) -> str:
    return "-" if amount is None else f"{amount / 2**30:.2f} GiB"


def _text(value: int | None) -> str:
    return "-" if value is None else str(value)


if __name__ == "__main__":
    who_waits()
