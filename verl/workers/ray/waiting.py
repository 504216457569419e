"""Waiting for workers: for all of them at once, with a deadline, and with a word about who is late."""

import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayActorError, RayError, RayTaskError

from verl.utils.activity import Awaited, current, deeds, waiting
from verl.utils.events import event
from verl.worker.messages import CallSite, Reply, annotate
from verl.workers.errors import WorkerDiedError

logger = logging.getLogger("verl.workers")

GRACE_S = 1.0
"""After the first failure, how long others may take to fail too. When a process dies, its peers' collectives fail as
well, and their errors may come first; the death is then the one to report."""


@dataclass(frozen=True)
class RemoteCall:
    """A call on one rank: a reference to its status and, where it is wanted, to its reply."""

    status: ray.ObjectRef
    site: CallSite
    value: ray.ObjectRef | None = None


GroupCall = tuple[RemoteCall, ...]
"""One call of a group's method: all ranks that run, in rank order."""


def all_done(calls: GroupCall) -> bool:
    """Whether all ranks are done, well or not. Does not wait."""
    statuses = [call.status for call in calls]
    return len(ray.wait(statuses, num_returns=len(statuses), timeout=0)[0]) == len(statuses)


@dataclass(frozen=True)
class Limits:
    """How long to wait for an answer, and how often to say in the log who is still awaited; seconds."""

    timeout_s: float
    log_every_s: float = 30.0


@dataclass(frozen=True)
class Waiting:
    """Waits for the replies of one group call. It can be pickled, to wait in another process.

    Attributes:
        calls: the group call.
        sources: how many of them send a reply that is wanted.
        earlier: group calls that these processes had not finished when this one was sent. If one of those
            leaves ranks behind, this one would wait for them for ever.
        stop: called with the error when the group is no longer of use: a rank failed and others did not, or a process
            died, or the group's own deadline passed. Only where the group is.
    """

    calls: GroupCall
    sources: int
    limits: Limits
    earlier: tuple[GroupCall, ...] = ()
    stop: Callable[[Exception], None] | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return Waiting, (self.calls, self.sources, self.limits, self.earlier, None)

    def __call__(self, handles: list[ray.ObjectRef], timeout_s: float | None) -> list[Reply]:
        """The replies behind `handles`. Raises the worker's exception, WorkerDiedError, or TimeoutError.

        For all handles it waits for all ranks, since one without a reply can fail as well; for some of them it waits
        no longer than it must, but still raises when any rank fails meanwhile.
        """
        limit = self.limits.timeout_s if timeout_s is None else timeout_s
        deadline = time.monotonic() + limit
        everything = len(handles) == self.sources
        wanted = {call.status for call in self.calls if everything or call.value in handles}
        with waiting([call.site.awaited for call in self.calls]) as show:
            self._wait(wanted, deadline, limit, show)
            try:
                return ray.get(handles, timeout=max(0.0, deadline - time.monotonic()))
            except GetTimeoutError:
                sites = [call.site for call in self.calls if call.value in handles]
                raise TimeoutError(
                    f"{_waiter()} could not fetch within {limit:g} s what {_list(sites)} returned"
                ) from None

    def ready(self, handles: list[ray.ObjectRef]) -> bool:
        """Whether everything behind `handles` is there, be it a reply or an error."""
        return all_done(self.calls)

    def _wait(
        self, wanted: set[ray.ObjectRef], deadline: float, limit: float, show: Callable[[list[Awaited]], None]
    ) -> None:
        pending = {call.status: (call, calls) for calls in (self.calls, *self.earlier) for call in calls}
        started = time.monotonic()
        next_log = started + self.limits.log_every_s
        while wanted & pending.keys():
            patience = max(0.0, min(deadline, next_log) - time.monotonic())
            ready, _ = ray.wait(list(pending), num_returns=1, timeout=patience)
            for ref in ready:
                self._check(*pending.pop(ref))
            late = [call.site for call in self.calls if call.status in pending]
            if ready:
                show([site.awaited for site in late])
                continue
            if time.monotonic() >= deadline:
                raise self._late(late, limit)
            waited = time.monotonic() - started
            event(_logger(), f"{_waiter()} is waiting for {_doing(late)}", seconds=waited, level=logging.WARNING)
            next_log += self.limits.log_every_s

    def _check(self, call: RemoteCall, calls: GroupCall) -> None:
        """Raise if `call`, one of the group call `calls`, failed in a way that concerns who waits here."""
        error = _error_of(call)
        if error is None:
            return
        others = [other for other in calls if other is not call]
        errors = [(call, error), *_failures_among(others)]
        errors.sort(key=lambda pair: not isinstance(pair[1], WorkerDiedError))
        (_, error), *less = errors
        for other, further in less:
            text = str(further).splitlines() or [""]
            error.add_note(f"rank {other.site.rank} failed too: {type(further).__name__}: {text[0]}")
        # When every rank raised, such as for a bad argument, they still agree and none is stuck in a collective.
        whole = len(errors) == len(calls) and not isinstance(error, WorkerDiedError)
        if self.stop is not None and not whole:
            self.stop(error)
        if calls is self.calls or not whole:
            raise error

    def _late(self, late: list[CallSite], limit: float) -> TimeoutError:
        answered = [call.site.rank for call in self.calls if call.site not in late]
        error = TimeoutError(
            f"{_waiter()} waited {limit:g} s for {_doing(late)}, without an answer; "
            + (f"answers came from ranks {answered}" if answered else "no rank has answered")
        )
        if self.stop is not None and limit >= self.limits.timeout_s:
            self.stop(error)
        return error


def _failures_among(calls: list[RemoteCall]) -> list[tuple[RemoteCall, Exception]]:
    """Those that have failed, or do so within the grace time."""
    if not calls:
        return []
    by_status = {call.status: call for call in calls}
    ready, _ = ray.wait(list(by_status), num_returns=len(by_status), timeout=GRACE_S)
    found = [(by_status[ref], _error_of(by_status[ref])) for ref in ready]
    return [(call, error) for call, error in found if error is not None]


def _error_of(call: RemoteCall) -> Exception | None:
    """What went wrong with a call that is done."""
    try:
        failure = ray.get(call.status)
    except RayTaskError as error:
        # Raised outside of the method, by arguments that do not unpickle or a result that does not pickle.
        cause = error.cause if isinstance(error.cause, Exception) else RuntimeError(str(error))
        annotate(cause, call.site)
        cause.add_note(str(error))
        return cause
    except RayError as error:
        died = WorkerDiedError(f"{call.site}: the process died. {_detail(error)}")
        annotate(died, call.site)
        return died
    return None if failure is None else failure.exception()


def _detail(error: RayError) -> str:
    """What Ray says of a death, without its advice."""
    lines = [line for line in str(error).splitlines() if line]
    if "low on memory" in str(error):
        lines[-1] += ": end what else runs there, or use less (micro-batch sizes, response length, offloading)"
    if isinstance(error, RayActorError):
        return lines[-1].split(" Some common causes include")[0]
    return " ".join(lines[:2])


def _list(sites: Iterable[CallSite]) -> str:
    return ", ".join(map(str, sites))


def _doing(sites: Iterable[CallSite]) -> str:
    """The same, each with what its process does now and for whom that waits, so far as it can be seen from here."""
    return ", ".join(str(site) + deeds(site.awaited) for site in sites)


def _waiter() -> str:
    activity = current()
    return "the driver" if activity is None else activity.who


def _logger() -> logging.Logger:
    """That of whoever waits: the driver, or a worker that was handed the future."""
    activity = current()
    return logger if activity is None or activity.rank is None else logging.getLogger(f"verl.worker.{activity.role}")
