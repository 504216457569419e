"""Ray itself: taking a running session, or starting one and stopping it again."""

import logging
import os
import signal
import socket
import threading
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import psutil
import ray

logger = logging.getLogger("verl.workers")

GRACE_S = 2.0
"""How long a process of Ray's may take to end when it is asked to; it is killed then. Some try long to reach a GCS
that ended first."""


@dataclass
class RaySession:
    """A connection to Ray. `owned` tells whether `ensure_ray` made it; only then does `shutdown` end it."""

    owned: bool

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.shutdown()

    def shutdown(self) -> None:
        """End the session if it was started here. A cluster that was only joined goes on without this driver."""
        if self.owned:
            ray.shutdown()
            self.owned = False


def ensure_ray(
    num_cpus: int | None = None, num_gpus: int | None = None, address: str | None = None, timeout_s: float = 120.0
) -> RaySession:
    """The running Ray session, or else a new one.

    Joins the cluster at `address` (or the environment's RAY_ADDRESS), or one that runs on this machine; else, or at the
    address "local", starts Ray on this machine with `num_cpus` and `num_gpus`, which count processes that may run at
    once, by default what the machine has. A start that fails, is late or is interrupted leaves no process behind.

    Raises ConnectionError for an address where nobody answers, TimeoutError when Ray takes longer than `timeout_s`.
    """
    if ray.is_initialized():
        return RaySession(owned=False)
    options: dict[str, Any] = {"include_dashboard": False, "log_to_driver": True, "logging_level": "WARNING"}
    resources: dict[str, Any] = {"num_cpus": num_cpus, "num_gpus": num_gpus}
    target = address or os.environ.get("RAY_ADDRESS")
    elsewhere = target not in (None, "", "local")
    try:
        if target and elsewhere:
            with _deadline(timeout_s):
                _check_reachable(target, timeout_s)
        with _leaving_nothing(), _deadline(timeout_s):
            if elsewhere:
                ray.init(address=target, **options)
            else:
                try:
                    ray.init(address=target, **options, **resources)
                except ValueError as error:
                    # Ray has found a cluster on this machine, whose size is not ours to set.
                    if "existing cluster" not in str(error):
                        raise
                    ray.init(**options)
                    address = ray.get_runtime_context().gcs_address
                    logger.info("joined the Ray cluster at %s, which runs here", address)
    except _Late:
        what = f"answer at {target}" if elsewhere else "start"
        raise TimeoutError(f"Ray did not {what} within {timeout_s:g} s") from None
    return RaySession(owned=True)


class _Late(BaseException):
    """The deadline passed. Not an Exception, because Ray catches those while it starts."""


@contextmanager
def _leaving_nothing() -> Iterator[None]:
    """End whatever of Ray has come up so far if its start does not succeed."""
    before = psutil.Process().children()
    try:
        yield
    except BaseException:
        try:
            ray.shutdown()  # knows nothing of a node that is half started
        finally:
            _end_processes_since(before)
        raise


def _end_processes_since(before: Collection[psutil.Process]) -> None:
    """End Ray's child processes that are not among `before`, with their own, and wait until they are gone."""
    time.sleep(0.1)  # one that is being started just now is told from others by what it then executes
    started: list[psutil.Process] = []
    for child in psutil.Process().children():
        with suppress(psutil.NoSuchProcess):
            if child not in before and _is_ray(child):
                started += [child, *child.children(recursive=True)]
    for process in started:
        with suppress(psutil.NoSuchProcess):
            process.terminate()
    _, alive = psutil.wait_procs(started, timeout=GRACE_S)
    for process in alive:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(alive, timeout=GRACE_S)


def _is_ray(process: psutil.Process) -> bool:
    # Other threads of this process may start programs at the same time. Ray's are all files of its package.
    package = str(Path(ray.__file__).parent)
    return any(argument.startswith(package) for argument in process.cmdline())


def _check_reachable(address: str, timeout_s: float) -> None:
    # ray.init ends the whole process, after a minute, when nobody answers.
    host, _, port = address.rpartition(":")
    if not port.isdigit() or "://" in address:  # "auto", "local", a Ray client: Ray knows best
        return
    try:
        socket.create_connection((host, int(port)), timeout=timeout_s).close()
    except OSError as error:
        raise ConnectionError(f"no Ray cluster answers at {address}: {error}") from error


@contextmanager
def _deadline(seconds: float) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():  # signals reach the main thread only
        yield
        return

    def late(number: int, frame: Any) -> None:
        raise _Late

    handler = signal.signal(signal.SIGALRM, late)
    # Again and again, because Python drops what is raised in some places, such as the hooks that follow a fork.
    timer = signal.setitimer(signal.ITIMER_REAL, seconds, 1.0)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, handler)
        signal.setitimer(signal.ITIMER_REAL, *timer)
