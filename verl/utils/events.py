"""Lines of the log that say what a run does, with role, rank, step and duration as fields of the record.

All go through Python's logging, below the logger "verl": its level decides what is shown, on the driver and in the
workers' processes alike.
"""

import logging
import sys
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from verl.utils.activity import DRIVER, current, doing, this_job
from verl.utils.timing import timer

FORMAT = "%(asctime)s %(name)s: %(message)s"
DATE_FORMAT = "%H:%M:%S"


def event(
    logger: logging.Logger,
    message: str,
    *,
    role: str | None = None,
    rank: int | None = None,
    step: int | None = None,
    seconds: float | None = None,
    level: int = logging.INFO,
) -> None:
    """Log `[Step 3] message, 1.25 s`. The record has the attributes `role`, `rank`, `step` and `duration` (seconds).

    Role, rank and step are those of the current activity unless they are given.
    """
    if not logger.isEnabledFor(level):
        return
    activity = current()
    if role is None:
        role, rank = (activity.role, activity.rank) if activity else (DRIVER, None)
    if step is None and activity is not None:
        step = activity.step
    head = "" if step is None else f"[Step {step}] "
    tail = "" if seconds is None else f", {duration(seconds)}"
    fields = {"role": role, "rank": rank, "step": step, "duration": seconds}
    logger.log(level, "%s%s%s", head, message, tail, extra=fields, stacklevel=2)


@contextmanager
def phase(
    name: str,
    timings: MutableMapping[str, float],
    *,
    logger: logging.Logger,
    role: str = DRIVER,
    step: int | None = None,
) -> Iterator[None]:
    """`verl.utils.timing.timer` for a part of a step that `role` does: it also tells the log and `who_waits`.

    What a role has done is told at INFO; the driver's own parts, and what begins, at DEBUG.
    """
    own = role == DRIVER
    with doing(name, step=step):
        begins = f"{name} begins" if own else f"dispatching {name} to {role}"
        event(logger, begins, role=role, level=logging.DEBUG)
        took: dict[str, float] = {}
        with timer(name, timings), timer(name, took):
            yield
        ends = f"{name} completed" if own else f"{role} completed {name}"
        event(logger, ends, role=role, seconds=took[name], level=logging.DEBUG if own else logging.INFO)


def duration(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.2f} s"


# ---- the workers' log ----


@dataclass(frozen=True)
class LogSettings:
    """How the logger "verl" of a driver logs, for its workers to do the same."""

    level: int
    format: str = FORMAT
    date_format: str | None = DATE_FORMAT

    @staticmethod
    def here() -> "LogSettings":
        """The level, and the format of the first handler that has one."""
        logger: logging.Logger | None = logging.getLogger("verl")
        level = logging.getLogger("verl").getEffectiveLevel()
        while logger is not None:
            for handler in logger.handlers:
                # A class of formatters of the user's own may not exist in a worker.
                if type(handler.formatter) is logging.Formatter and handler.formatter._fmt is not None:
                    return LogSettings(level, handler.formatter._fmt, handler.formatter.datefmt)
            logger = logger.parent if logger.propagate else None
        return LogSettings(level)

    def apply(self, handler: logging.Handler) -> None:
        """Make `handler`, and no other that is further up, write what "verl" logs in this process."""
        handler.setFormatter(logging.Formatter(self.format, self.date_format))
        logger = logging.getLogger("verl")
        logger.setLevel(self.level)
        logger.propagate = False  # a handler of the root logger would write each line a second time
        if handler not in logger.handlers:
            logger.addHandler(handler)


def stderr_handler() -> logging.Handler:
    """Ray brings what a worker writes there to the driver's terminal."""
    return logging.StreamHandler(sys.stderr)


@dataclass(frozen=True)
class Origin:
    """Where a call comes from: the driver, its step, and how it logs."""

    job: str = field(default_factory=this_job)
    step: int | None = field(default_factory=lambda: getattr(current(), "step", None))
    log: LogSettings = field(default_factory=LogSettings.here)
