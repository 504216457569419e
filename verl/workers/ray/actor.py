"""The one Ray actor class: a process that holds a worker for each role."""

import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import ray
import torch

from verl.utils.events import LogSettings, stderr_handler
from verl.worker.host import Host
from verl.worker.messages import Call, CallSite, Reply
from verl.workers.ray.failure import Failure

Outcome = tuple[Reply | None, Failure | None]
"""Two objects for Ray: a reply, which may be large, and a small status, None if all went well."""


@dataclass(frozen=True)
class Place:
    """Where an actor runs."""

    node: str
    address: str
    pid: int
    port: int


@ray.remote
class WorkerActor:
    """A process of a group. It runs one call at a time, in the order in which they come."""

    def __init__(self, label: str, rank: int, timeout_s: float) -> None:
        self._label = label
        self._rank = rank
        self._timeout_s = timeout_s
        self._hosts: dict[str, Host] = {}
        self._log: LogSettings | None = None
        self._log_handler = stderr_handler()
        # Bound, but not listening, so that nobody else gets this port before rank 0 of torch.distributed wants it.
        self._port_holder = socket.socket()
        self._port_holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._port_holder.bind(("", 0))

    def __repr__(self) -> str:  # Ray puts it in front of everything that the process prints
        return f"{self._label} rank {self._rank}"

    def place(self) -> tuple[Place | None, Failure | None]:
        port = self._port_holder.getsockname()[1]
        return Place(socket.gethostname(), ray.util.get_node_ip_address(), os.getpid(), port), None

    def start(self, env: Mapping[str, str], classes: tuple[ray.ObjectRef]) -> Outcome:
        """Make the workers. `classes` is still packed, so that the environment is set when their modules load."""
        site = CallSite(self._label, "__init__", self._rank, socket.gethostname(), os.getpid())
        try:
            threads = max(1, len(os.sched_getaffinity(0)) // int(env["LOCAL_WORLD_SIZE"]))
            os.environ.update(env, OMP_NUM_THREADS=str(threads))
            torch.set_num_threads(threads)
            for role, (cls, args, kwargs) in self._fetch(classes[0]).items():
                self._hosts[role] = Host.build(role, cls, args, kwargs, site.node)
        except Exception as error:
            return None, Failure.of(error, site)
        return Reply(None), None

    def call(self, role: str, method: str, call: Call) -> Outcome:
        host = self._hosts[role]
        if call.origin.log != self._log:  # from the first call on, the log is as the driver's
            self._log = call.origin.log
            self._log.apply(self._log_handler)
        try:
            return host.invoke(method, call.map(self._fetch)), None
        except Exception as error:
            return None, Failure.of(error, host.site(method))

    def _fetch(self, value: Any) -> Any:
        return ray.get(value, timeout=self._timeout_s) if isinstance(value, ray.ObjectRef) else value
