"""Groups of workers in Ray actors."""

from verl.worker.layout import MegatronPosition
from verl.workers.classes import ClassWithInitArgs, ColocatedClasses
from verl.workers.group import DEFAULT_TIMEOUT_S, WorkerGroup, named_classes
from verl.workers.ray.processes import RayProcesses
from verl.workers.ray.resource_pool import RayResourcePool
from verl.workers.ray.waiting import Limits


class RayWorkerGroup(WorkerGroup):
    """One Ray actor per process of a pool. Its methods are the registered methods of the worker class.

    With classes from `create_colocated_worker_cls`, `spawn(prefix_set)` gives a group for each role.

    An exception of a worker is raised here as its own type, with notes that name role, rank, node and method, and the
    same in its attribute `raised_by`. A process that dies is a `WorkerDiedError`. Unless all ranks raised, the rest of
    the group is then killed, since it may wait for the one that failed, and further calls are a `GroupStoppedError`.

    Args:
        resource_pool: where the processes go; by default a pool of one process, which ends with the group.
        ray_cls_with_init: the class, or the classes from `create_colocated_worker_cls`.
        name_prefix: the role's name in messages; by default that of the class.
        device_name: "cuda" or "cpu", to check the pool against, and to choose the default pool.
        timeout_s: seconds after which an unanswered call is a TimeoutError that names who is late; the group is then
            killed.
        start_timeout_s: the same for the start of the actors.
        log_every_s: how often a waiting driver logs who is late.

    Raises what a worker's `__init__` raises, RuntimeError when the cluster lacks the resources, TimeoutError when
    the actors do not start.
    """

    def __init__(
        self,
        resource_pool: RayResourcePool | None = None,
        ray_cls_with_init: ClassWithInitArgs | ColocatedClasses | None = None,
        name_prefix: str | None = None,
        device_name: str | None = None,
        timeout_s: float = DEFAULT_TIMEOUT_S,
        start_timeout_s: float = 300.0,
        log_every_s: float = 30.0,
    ) -> None:
        if ray_cls_with_init is None:
            raise TypeError(f"{type(self).__name__} needs ray_cls_with_init: the class to run")
        pool = resource_pool or RayResourcePool([1], use_gpu=device_name == "cuda")
        if device_name is not None and (device_name == "cuda") != pool.use_gpu:
            raise ValueError(
                f"device_name={device_name!r} does not go with the resource pool {pool.name!r}, which has "
                f"use_gpu={pool.use_gpu}"
            )
        classes = named_classes(ray_cls_with_init, name_prefix)
        label = name_prefix or "+".join(classes)
        processes = RayProcesses(
            pool,
            classes,
            label,
            Limits(timeout_s, log_every_s),
            Limits(start_timeout_s, log_every_s),
            own_pool=resource_pool is None,
        )
        super().__init__(processes, {role: cls.cls for role, cls in classes.items()})


class MegatronRayWorkerGroup(RayWorkerGroup):
    """A group whose workers registered their Megatron ranks (`Worker.register_megatron_mesh`) as the mesh "train"."""

    @property
    def tp_size(self) -> int:
        """Processes that share each layer (tensor parallel)."""
        return self._megatron().tp_size

    @property
    def pp_size(self) -> int:
        """Pipeline stages."""
        return self._megatron().pp_size

    @property
    def dp_size(self) -> int:
        """Copies of the model."""
        return self._megatron().dp_size

    def _megatron(self) -> MegatronPosition:
        position = self.layout("train").positions[0]
        if not isinstance(position, MegatronPosition):
            raise TypeError(
                f"the workers of role {self.role!r} have not called register_megatron_mesh, so they have no "
                f"Megatron ranks"
            )
        return position
