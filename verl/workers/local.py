"""The same group in the driver's own process: for a debugger, for fast tests, and for runs without Ray."""

import pickle
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from threading import Lock
from typing import Any

from verl.protocol import DataProto
from verl.worker.host import Host
from verl.worker.messages import Call, Reply, annotate
from verl.workers.classes import ClassWithInitArgs, ColocatedClasses
from verl.workers.group import DEFAULT_TIMEOUT_S, Pending, WorkerGroup, named_classes


class LocalWorkerGroup(WorkerGroup):
    """One process, this one, behind the API of `RayWorkerGroup`: same splitting, padding, joining and notes on errors.

    A non-blocking call runs at once and returns a finished future; its error waits for `get`. As with Ray, workers get
    copies of batches and the driver gets copies back, tensors on the CPU.

    Args:
        resource_pool: None, or a pool of one process; it is not used.
        ray_cls_with_init: the class, or the classes from `create_colocated_worker_cls`.
        name_prefix: the role's name; by default that of the class.
        device_name, timeout_s: accepted as by `RayWorkerGroup`; nothing here waits or is placed.

    Raises ValueError for a pool of more than one process, or where the environment says that there are more.
    """

    def __init__(
        self,
        resource_pool: Any = None,
        ray_cls_with_init: ClassWithInitArgs | ColocatedClasses | None = None,
        name_prefix: str | None = None,
        device_name: str | None = None,
        timeout_s: float = DEFAULT_TIMEOUT_S,
    ) -> None:
        if ray_cls_with_init is None:
            raise TypeError("LocalWorkerGroup needs ray_cls_with_init: the class to run")
        if resource_pool is not None and resource_pool.world_size != 1:
            raise ValueError(
                f"LocalWorkerGroup is one process, but the pool has {resource_pool.world_size}: use RayWorkerGroup"
            )
        classes = named_classes(ray_cls_with_init, name_prefix)
        super().__init__(LocalProcess(classes), {role: cls.cls for role, cls in classes.items()})


class LocalProcess:
    """The workers of all roles, in this process."""

    world_size = 1

    def __init__(self, classes: Mapping[str, ClassWithInitArgs]) -> None:
        node = platform.node()
        # Threads of the driver may call at the same time; a process runs one call after another.
        self._lock = Lock()
        self._hosts = {role: Host.build(role, c.cls, c.args, c.kwargs, node) for role, c in classes.items()}
        for role, host in self._hosts.items():
            if host.worker.world_size != 1:
                raise ValueError(
                    f"role {role!r}: LocalWorkerGroup is one process, but the environment says "
                    f"WORLD_SIZE={host.worker.world_size}"
                )

    def submit(self, role: str, method: str, calls: Mapping[int, Call], sources: Sequence[int]) -> Pending:
        with self._lock:
            return Pending([self._run(self._hosts[role], method, calls[0])], _resolve, _ready)

    def shutdown(self) -> None:
        """Close the workers; they go when nobody refers to them."""
        for host in self._hosts.values():
            host.worker.close()

    def _run(self, host: Host, method: str, call: Call) -> "Done":
        try:
            reply = host.invoke(method, call.map(_copy))
        except Exception as error:
            annotate(error, host.site(method))
            return Done(error=error)
        return Done(Reply(_copy(reply.value), reply.plan))


@dataclass(frozen=True)
class Done:
    """A finished call."""

    reply: Reply | None = None
    error: Exception | None = None

    def result(self) -> Reply:
        if self.error is not None:
            raise self.error
        assert self.reply is not None
        return self.reply


def _resolve(handles: list[Done], timeout_s: float | None) -> list[Reply]:
    return [done.result() for done in handles]


def _ready(handles: list[Done]) -> bool:
    return True


def _copy(value: Any) -> Any:
    """A batch as it would arrive in another process; anything else as it is."""
    return pickle.loads(pickle.dumps(value, protocol=5)) if isinstance(value, DataProto) else value
