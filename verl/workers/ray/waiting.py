"""Waiting for workers: for all of them at once, with a deadline, and with a word about who is late."""

import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayError, RayTaskError

from verl.worker.messages import CallSite, Reply, annotate
from verl.workers.errors import WorkerDiedError

logger = logging.getLogger("verl.workers")

GRACE_S = 1.0
"""After the first failure, how long others may take to fail too. When a process dies, its peers' collectives fail as
well, and their errors may come first; the death is then the one to report."""


@dataclass(frozen=True)
class RemoteCall:
    """A call on one rank: references to its reply and to its status."""

    value: ray.ObjectRef
    status: ray.ObjectRef
    site: CallSite


@dataclass(frozen=True)
class Limits:
    """How long to wait for an answer, and how often to say in the log who is still awaited; seconds."""

    timeout_s: float
    log_every_s: float = 30.0


@dataclass(frozen=True)
class Waiting:
    """Waits for the replies of one group call. It can be pickled, to wait in another process.

    Attributes:
        calls: all ranks that run, in rank order.
        sources: how many of them send a reply that is wanted.
        stop: called with the error when the group is no longer of use: a rank failed and others did not, or a process
            died, or the group's own deadline passed. Only where the group is.
    """

    calls: tuple[RemoteCall, ...]
    sources: int
    limits: Limits
    stop: Callable[[Exception], None] | None = None
    waiter: str = "the driver"

    def __reduce__(self) -> tuple[Any, ...]:
        return Waiting, (self.calls, self.sources, self.limits, None, "a worker that was handed the future")

    def __call__(self, handles: list[ray.ObjectRef], timeout_s: float | None) -> list[Reply]:
        """The replies behind `handles`. Raises the worker's exception, WorkerDiedError, or TimeoutError.

        For all handles it waits for all ranks, since one without a reply can fail as well; for some of them it waits
        no longer than it must, but still raises when any rank fails meanwhile.
        """
        limit = self.limits.timeout_s if timeout_s is None else timeout_s
        deadline = time.monotonic() + limit
        everything = len(handles) == self.sources
        self._wait({call.status for call in self.calls if everything or call.value in handles}, deadline, limit)
        try:
            return ray.get(handles, timeout=max(0.0, deadline - time.monotonic()))
        except GetTimeoutError:
            sites = [call.site for call in self.calls if call.value in handles]
            raise TimeoutError(
                f"{self.waiter} could not fetch within {limit:g} s what {_list(sites)} returned"
            ) from None

    def ready(self, handles: list[ray.ObjectRef]) -> bool:
        statuses = [call.status for call in self.calls]
        return len(ray.wait(statuses, num_returns=len(statuses), timeout=0)[0]) == len(statuses)

    def _wait(self, wanted: set[ray.ObjectRef], deadline: float, limit: float) -> None:
        pending = {call.status: call for call in self.calls}
        started = time.monotonic()
        next_log = started + self.limits.log_every_s
        while wanted & pending.keys():
            patience = max(0.0, min(deadline, next_log) - time.monotonic())
            ready, _ = ray.wait(list(pending), num_returns=1, timeout=patience)
            for ref in ready:
                call = pending.pop(ref)
                error = _error_of(call)
                if error is not None:
                    raise self._failed(call.site, error, pending)
            if ready:
                continue
            late = [call.site for call in pending.values()]
            if time.monotonic() >= deadline:
                raise self._late(late, limit)
            logger.warning("%s has waited %.0f s for %s", self.waiter, time.monotonic() - started, _list(late))
            next_log += self.limits.log_every_s

    def _failed(self, site: CallSite, error: Exception, pending: dict[ray.ObjectRef, RemoteCall]) -> Exception:
        errors = [(site, error)]
        if pending:
            ready, _ = ray.wait(list(pending), num_returns=len(pending), timeout=GRACE_S)
            found = [(pending[ref].site, _error_of(pending[ref])) for ref in ready]
            errors += [(where, other) for where, other in found if other is not None]
        errors.sort(key=lambda pair: not isinstance(pair[1], WorkerDiedError))
        (_, chosen), *others = errors
        for where, other in others:
            text = str(other).splitlines() or [""]
            chosen.add_note(f"rank {where.rank} failed too: {type(other).__name__}: {text[0]}")
        # When every rank raised, such as for a bad argument, they still agree and none is stuck in a collective.
        alike = len(errors) == len(self.calls) and not isinstance(chosen, WorkerDiedError)
        if self.stop is not None and not alike:
            self.stop(chosen)
        return chosen

    def _late(self, late: list[CallSite], limit: float) -> TimeoutError:
        answered = [call.site.rank for call in self.calls if call.site not in late]
        error = TimeoutError(
            f"{self.waiter} waited {limit:g} s for {_list(late)}, without an answer; "
            + (f"answers came from ranks {answered}" if answered else "no rank has answered")
        )
        if self.stop is not None and limit >= self.limits.timeout_s:
            self.stop(error)
        return error


def _error_of(call: RemoteCall) -> Exception | None:
    """What went wrong with a call that is done."""
    try:
        failure = ray.get(call.status)
    except (
        RayTaskError
    ) as error:  # outside of the method: arguments that do not unpickle, a result that does not pickle
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
    lines = [line for line in str(error).splitlines() if line and not line.startswith("\t")]
    return lines[-1].split(" Some common causes include")[0]


def _list(sites: Iterable[CallSite]) -> str:
    return ", ".join(map(str, sites))
