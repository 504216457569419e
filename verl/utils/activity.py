"""What each role does now, and for whom it waits.

A process knows its own activity from a context variable. It also writes it to a small file, one for each role, so that
whoever waits for it, and a person at another terminal, can read it.
"""

import functools
import json
import os
import socket
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from urllib.parse import quote

import psutil

DRIVER = "driver"


@functools.cache
def _start_of(pid: int) -> float:
    return psutil.Process(pid).create_time()


@dataclass(frozen=True)
class Awaited:
    """A call that is waited for, such as `critic.update_critic`. `pid` is 0 while nothing is known of its process."""

    name: str
    rank: int
    node: str
    pid: int

    def __str__(self) -> str:
        process = f" (node {self.node}, pid {self.pid})" if self.pid else ""
        return f"{self.name} on rank {self.rank}{process}"


@dataclass(frozen=True)
class Activity:
    """What one role of a process does. Times are seconds since the epoch.

    Attributes:
        role, rank: who; the driver is of role "driver" and has no rank.
        name: the method or phase; empty when idle.
        job: the driver that it works for, as `<node>:<pid>`.
        waits_for, waits_since: those it waits for, if any, and since when.
        process_started: tells the process from a later one with the same pid.
    """

    role: str
    rank: int | None
    name: str
    since: float
    step: int | None
    job: str
    waits_for: tuple[Awaited, ...] = ()
    waits_since: float = 0.0
    node: str = field(default_factory=socket.gethostname)
    pid: int = field(default_factory=os.getpid)
    process_started: float = field(default_factory=lambda: _start_of(os.getpid()))

    @property
    def who(self) -> str:
        return "the driver" if self.rank is None else f"{self.role} on rank {self.rank}"


_current: ContextVar[Activity | None] = ContextVar("verl_activity", default=None)


def current() -> Activity | None:
    """What this thread does, if somebody said so."""
    return _current.get()


def this_job() -> str:
    """The driver that this thread works for; by default this process."""
    return _current_or_idle().job


@contextmanager
def doing(
    name: str, role: str | None = None, rank: int | None = None, step: int | None = None, job: str | None = None
) -> Iterator[None]:
    """Say what this thread does while the block runs. Without `role` it is who it was; a process starts as driver."""
    outer = _current_or_idle()
    if role is None:
        role, rank = outer.role, outer.rank
    step = outer.step if step is None else step
    with _shown(Activity(role, rank, name, time.time(), step, job or outer.job)):
        yield


@contextmanager
def waiting(awaited: Sequence[Awaited]) -> Iterator[Callable[[Sequence[Awaited]], None]]:
    """Say that this thread waits while the block runs. The block gets a function to call when they are fewer."""
    activity = replace(_current_or_idle(), waits_for=tuple(awaited), waits_since=time.time())
    with _shown(activity):
        yield lambda fewer: _write(replace(activity, waits_for=tuple(fewer)))


def activities() -> list[Activity]:
    """Those of all processes of this user on this machine that are alive. What dead ones left is removed."""
    found = []
    for path in sorted(folder().glob("*.json")):
        with suppress(FileNotFoundError):
            try:
                entry = json.loads(path.read_text())
                awaited = tuple(Awaited(**each) for each in entry.pop("waits_for"))
                activity = Activity(**entry, waits_for=awaited)
            except (ValueError, TypeError, KeyError):  # another version of verl, whose processes we cannot judge
                continue
            if activity.node != socket.gethostname():
                continue  # of a container that shares the folder: its pids mean nothing here
            if _alive(activity):
                found.append(activity)
            else:
                path.unlink()
    return found


def deeds(awaited: Awaited, seen: tuple[int, ...] = ()) -> str:
    """What an awaited process does now and for whom that waits, such as ` [in make for 4 s, waiting for ...]`.

    Empty for a process of another machine, or one that says nothing.
    """
    if awaited.pid in seen:
        return " [which waits in a circle]"
    if awaited.node != socket.gethostname():
        return ""
    of_process = [activity for activity in activities() if activity.pid == awaited.pid]
    busy = [activity for activity in of_process if activity.name]
    if not busy:
        return " [idle]" if of_process else ""
    latest = max(busy, key=lambda activity: activity.since)
    now = time.time()
    text = f"in {latest.role}.{latest.name} for {now - latest.since:.0f} s"
    if latest.waits_for:
        others = ", ".join(str(other) + deeds(other, (*seen, awaited.pid)) for other in latest.waits_for)
        text += f", of which it has waited {now - latest.waits_since:.0f} s for {others}"
    return f" [{text}]"


def folder() -> Path:
    """Where the files are: a folder of this user alone, in memory where the system has such a place.

    Raises PermissionError when somebody else made it.
    """
    base = Path("/dev/shm") if os.access("/dev/shm", os.W_OK) else Path(tempfile.gettempdir())
    path = base / f"verl-{os.getuid()}"
    path.mkdir(mode=0o700, exist_ok=True)
    if path.stat().st_uid != os.getuid():
        raise PermissionError(f"{path} belongs to another user")
    return path


def _own_job() -> str:
    return f"{socket.gethostname()}:{os.getpid()}"


def _current_or_idle() -> Activity:
    return current() or Activity(DRIVER, None, "", time.time(), None, _own_job())


@contextmanager
def _shown(activity: Activity) -> Iterator[None]:
    outer = current()
    token = _current.set(activity)
    _write(activity)
    try:
        yield
    finally:
        _current.reset(token)
        if outer is not None and _file_name(outer) == _file_name(activity):
            _write(outer)
        else:
            idle = replace(activity, name="", since=time.time(), waits_for=(), waits_since=0.0)
            # The driver, and what runs in its process, is there only while it does something.
            _write(idle, keep=activity.job != _own_job())


def _file_name(activity: Activity) -> str:
    # Several threads of a driver may each wait for a group; of a worker, one thread runs one call at a time.
    number = threading.get_ident() if activity.rank is None else activity.rank
    return f"{activity.pid}-{quote(activity.role, safe='')}-{number}.json"


def _write(activity: Activity, keep: bool = True) -> None:
    """Write the file of an activity, or remove it."""
    try:
        path = folder() / _file_name(activity)
        if not keep:
            path.unlink(missing_ok=True)
            return
        new = path.with_suffix(f".{threading.get_ident()}")
        new.write_text(json.dumps(asdict(activity)))
        new.replace(path)  # whoever reads it sees the old one or the new one, never a part
    except OSError as error:  # no reason to end a run, and Python shows a warning once
        warnings.warn(f"who_waits() cannot see what this process does: {error}", stacklevel=2)


def _alive(activity: Activity) -> bool:
    try:
        process = psutil.Process(activity.pid)
        # The same process seen twice may differ by what the clock was corrected meanwhile.
        same = abs(process.create_time() - activity.process_started) < 5
        return same and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
