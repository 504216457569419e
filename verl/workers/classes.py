"""Which worker classes a group runs, and with which arguments."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from verl.worker import Worker


class ClassWithInitArgs:
    """A worker class and the arguments to make it with, once in every process of a group.

    `cls` is a subclass of `Worker`, plain or wrapped by `ray.remote`. Raises TypeError for anything else.
    """

    def __init__(self, cls: Any, *args: Any, **kwargs: Any) -> None:
        # What ray.remote returns keeps the class inside; looking for it this way needs no import of Ray.
        wrapped = getattr(cls, "__ray_metadata__", None)
        inner = cls if wrapped is None else wrapped.modified_class.__ray_actor_class__
        if not (isinstance(inner, type) and issubclass(inner, Worker)):
            raise TypeError(f"expected a subclass of verl.worker.Worker (or ray.remote of one), not {cls!r}")
        self.cls: type[Worker] = inner
        self.args = args
        self.kwargs = kwargs

    def __repr__(self) -> str:
        return f"ClassWithInitArgs({self.cls.__name__})"


@dataclass(frozen=True)
class ColocatedClasses:
    """Several roles that share every process of a group, see `create_colocated_worker_cls`."""

    roles: dict[str, ClassWithInitArgs]


def create_colocated_worker_cls(class_dict: Mapping[str, ClassWithInitArgs]) -> ColocatedClasses:
    """Put several roles, by name, into one process per device: one process group, one CUDA context.

    Give the result to a group and get a group for each role from its `spawn(prefix_set)`.
    Raises ValueError for an empty dict, TypeError for a value that is no class with arguments.
    """
    if not class_dict:
        raise ValueError("create_colocated_worker_cls: class_dict is empty; give at least one role")
    for role, cls in class_dict.items():
        if not isinstance(cls, ClassWithInitArgs):
            raise TypeError(f"create_colocated_worker_cls: role {role!r} must be a RayClassWithInitArgs, not {cls!r}")
    return ColocatedClasses(dict(class_dict))
