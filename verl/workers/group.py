"""A group of workers as one object: its methods are the registered methods of the worker class."""

import difflib
import functools
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, Self

from verl.protocol import DataProtoFuture
from verl.worker import Execute, Worker
from verl.worker.dispatch import Collect, JoinRows, MethodSpec, only_value, registered_methods
from verl.worker.layout import Layout
from verl.worker.messages import Call
from verl.workers.classes import ClassWithInitArgs, ColocatedClasses

DEFAULT_TIMEOUT_S = 3600.0


class WorkerFuture(DataProtoFuture):
    """The result of a non-blocking call that is not one `DataProto`. `get(timeout_s)` waits for it and returns it."""


@dataclass(frozen=True)
class Pending:
    """Calls under way: a handle for each rank whose reply is wanted, and how to wait for them (see DataProtoFuture)."""

    handles: list[Any]
    resolve: Callable[[list[Any], float | None], list[Any]]
    ready: Callable[[list[Any]], bool]


class Processes(Protocol):
    """The processes behind a group. Several groups, one for each role, may share them."""

    world_size: int

    def submit(self, role: str, method: str, calls: Mapping[int, Call], sources: Sequence[int]) -> Pending:
        """Start `calls` (by rank) of a registered method, without waiting; replies are wanted from `sources`."""
        ...

    def shutdown(self) -> None:
        """End the processes."""
        ...


class WorkerGroup:
    """All ranks of one role.

    Every registered method of the worker class is a method of the group. A call splits its arguments over the ranks,
    waits for all of them (unless the method is non-blocking) and joins the results, as the method's mode says.

    Attributes:
        role: its name in messages.
        world_size: number of processes.
        processes: where it runs; groups that share them run one after another.
    """

    def __init__(self, processes: Processes, classes: Mapping[str, type[Worker]], role: str | None = None) -> None:
        # A group of several roles has no methods of its own before `spawn`.
        self.role = "+".join(classes) if role is None else role
        self.world_size = processes.world_size
        self.processes = processes
        self._classes = dict(classes)
        self._layouts: dict[str, Layout] = {}
        worker_cls = self._classes.get(self.role)
        self._specs = {} if worker_cls is None else registered_methods(worker_cls)
        for name, spec in self._specs.items():
            if hasattr(type(self), name) or name in vars(self):
                raise ValueError(
                    f"{self.role}: the registered method {name!r} has the name of something that every worker group "
                    f"has; rename it"
                )
            setattr(self, name, self._bind(name, spec, getattr(worker_cls, name)))

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        if not self._specs:
            raise AttributeError(
                f"this group holds the roles {sorted(self._classes)} and has no method {name!r} itself: take a role's "
                f"group out of spawn(prefix_set=...)"
            )
        near = difflib.get_close_matches(name, self._specs, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"registered methods: {sorted(self._specs)}"
        raise AttributeError(f"the workers of role {self.role!r} have no registered method {name!r}; {hint}")

    def spawn(self, prefix_set: Iterable[str]) -> dict[str, Self]:
        """A group for each named role of `create_colocated_worker_cls`, on the processes of this one.

        Raises ValueError, with the known roles, for a role that these processes do not hold.
        """
        roles = list(prefix_set)
        unknown = [role for role in roles if role not in self._classes]
        if unknown:
            raise ValueError(f"spawn: there are no roles {unknown} in these processes, only {sorted(self._classes)}")
        return {role: self._for_role(role) for role in roles}

    def layout(self, mesh: str) -> Layout:
        """Where the ranks stand on a mesh. The workers are asked once.

        Raises ValueError for an unknown mesh or positions that do not fit together.
        """
        if mesh not in self._layouts:
            try:
                self._layouts[mesh] = Layout(tuple(self.mesh_position(mesh)))
            except ValueError as error:
                error.add_note(f"mesh {mesh!r} of role {self.role!r}")
                raise
        return self._layouts[mesh]

    def shutdown(self) -> None:
        """End the processes, those of all roles that share them."""
        self.processes.shutdown()

    def _for_role(self, role: str) -> Self:
        group = type(self).__new__(type(self))
        WorkerGroup.__init__(group, self.processes, self._classes, role)
        return group

    def _bind(self, name: str, spec: MethodSpec, method: Callable[..., Any]) -> Callable[..., Any]:
        signature = inspect.signature(method)
        signature = signature.replace(parameters=list(signature.parameters.values())[1:])  # without self

        @functools.wraps(method)
        def call(*args: Any, **kwargs: Any) -> Any:
            try:
                if spec.checks_arguments:
                    signature.bind(*args, **kwargs)
                return self._call(name, spec, Call(args, kwargs))
            except (TypeError, ValueError) as error:
                if not hasattr(error, "raised_by"):
                    error.add_note(f"in the driver's call of {self.role}.{name}")
                raise

        call.__signature__ = signature  # type: ignore[attr-defined]
        return call

    def _call(self, name: str, spec: MethodSpec, call: Call) -> Any:
        dispatcher = spec.dispatcher
        layout = self.layout(spec.mesh) if dispatcher.mesh else Layout.flat(self.world_size)
        sent = dispatcher.split(layout, call)
        collect: Collect
        if spec.execute_mode is Execute.RANK_ZERO:
            ranks, sources, collect = [0], [0], only_value
        else:
            ranks = list(range(self.world_size))
            sources = list(layout.collectors) if dispatcher.collectors_only else ranks
            collect = dispatcher.collect(layout, sent.plan)
        pending = self.processes.submit(self.role, name, {rank: sent.calls[rank] for rank in ranks}, sources)
        kind = DataProtoFuture if isinstance(collect, JoinRows) else WorkerFuture
        future = kind(pending.handles, collect, pending.resolve, pending.ready)
        return future.get() if spec.blocking else future


def named_classes(classes: ClassWithInitArgs | ColocatedClasses, name: str | None) -> dict[str, ClassWithInitArgs]:
    """Classes by role. A single class gets `name`, or else its own, for its role."""
    if isinstance(classes, ColocatedClasses):
        return classes.roles
    if not isinstance(classes, ClassWithInitArgs):
        raise TypeError(
            f"ray_cls_with_init must be a RayClassWithInitArgs or come from create_colocated_worker_cls, not "
            f"{type(classes).__name__}"
        )
    return {name or classes.cls.__name__: classes}
