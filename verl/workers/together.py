"""Calls on several groups at the same time, where their processes allow it."""

import time
from collections.abc import Callable, Hashable, Sequence
from contextlib import suppress
from contextvars import copy_context
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any

from verl.workers.errors import WorkerDiedError
from verl.workers.group import WorkerGroup

GRACE_S = 2.0
"""When a process dies or hangs, those of other groups that talk to it fail as well, often first: how long the news of
the one to blame may take after that."""

Outcome = tuple[int, Any, BaseException | None]
"""Number of a task, its result, its error."""


@dataclass(frozen=True)
class Task:
    """A piece of work. `group` is the one whose processes it keeps busy; None is the driver's own work."""

    name: str
    run: Callable[[], Any]
    group: WorkerGroup | None = None


def run_together(tasks: Sequence[Task], timeout_s: float) -> list[Any]:
    """What the tasks return, in their order. Those whose groups share processes run one after another, others at once.

    Raises the first error of a task as soon as it is there (the others are left to end by themselves), or what explains
    it: the death or silence of another task's process. TimeoutError names a task that takes longer than `timeout_s`.
    """
    lanes: dict[Hashable, list[int]] = {}
    for number, task in enumerate(tasks):
        lanes.setdefault(_lane(task), []).append(number)
    if len(lanes) < 2:
        return [task.run() for task in tasks]
    results: dict[int, Any] = {}
    outcomes: SimpleQueue[Outcome] = SimpleQueue()

    def run_lane(numbers: tuple[int, ...]) -> None:
        for number in numbers:
            try:
                outcomes.put((number, tasks[number].run(), None))
            except BaseException as error:
                outcomes.put((number, None, error))
                return

    for numbers in lanes.values():
        # Daemons: what cannot be stopped must not keep a failed run from ending.
        # A copy of the context: log lines of the thread know which step they belong to.
        run = copy_context().run
        Thread(target=run, args=(run_lane, tuple(numbers)), name=tasks[numbers[0]].name, daemon=True).start()
    # Each task has the whole time, from the end of the one before it in its lane.
    # A group that waits as long comes first: its own error names rank, process and deed.
    patience = timeout_s + 0.5
    deadlines = dict.fromkeys(lanes, time.monotonic() + patience)
    while deadlines:
        deadline = min(deadlines.values())
        try:
            number, result, error = outcomes.get(timeout=max(0.0, deadline - time.monotonic()))
        except Empty:
            late = [tasks[lanes[lane][0]].name for lane in deadlines if deadlines[lane] == deadline]
            raise TimeoutError(f"the driver waited {timeout_s:g} s for {', '.join(late)}") from None
        if error is not None:
            # What a broken or silent connection raises, in a group; other errors have causes of their own.
            if isinstance(error, RuntimeError | TimeoutError) and tasks[number].group is not None:
                raise _cause_behind(error, tasks, number, outcomes)
            raise error
        results[number] = result
        lane = _lane(tasks[number])
        lanes[lane].remove(number)
        if lanes[lane]:
            deadlines[lane] = time.monotonic() + patience
        else:
            del deadlines[lane]
    return [results[number] for number in range(len(tasks))]


def _lane(task: Task) -> Hashable:
    """Equal for tasks that must take turns."""
    return None if task.group is None else id(task.group.processes)


def _cause_behind(
    error: BaseException, tasks: Sequence[Task], number: int, outcomes: SimpleQueue[Outcome]
) -> BaseException:
    """Of `error` (from task `number`) and what other tasks raise within the grace time, the one that explains most: a
    death, else a silence. Its notes tell of the others."""
    failed = [(number, error)]
    deadline = time.monotonic() + GRACE_S
    with suppress(Empty):
        while not isinstance(failed[-1][1], WorkerDiedError):
            number, _, other = outcomes.get(timeout=max(0.0, deadline - time.monotonic()))
            failed += [(number, other)] if other is not None else []
    failed.sort(key=lambda pair: (not isinstance(pair[1], WorkerDiedError), not isinstance(pair[1], TimeoutError)))
    (_, cause), *rest = failed
    for number, other in rest:
        text = str(other).splitlines() or [""]
        cause.add_note(f"{tasks[number].name} failed too: {type(other).__name__}: {text[0]}")
    return cause
