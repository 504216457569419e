"""Driver side: worker groups in Ray actors, and the resources that they run on."""

from verl.workers.classes import ClassWithInitArgs as RayClassWithInitArgs
from verl.workers.classes import create_colocated_worker_cls
from verl.workers.errors import GroupStoppedError, WorkerDiedError
from verl.workers.ray.group import MegatronRayWorkerGroup, RayWorkerGroup
from verl.workers.ray.resource_pool import RayResourcePool, ResourcePoolManager
from verl.workers.ray.session import RaySession, ensure_ray

__all__ = [
    "GroupStoppedError",
    "MegatronRayWorkerGroup",
    "RayClassWithInitArgs",
    "RayResourcePool",
    "RaySession",
    "RayWorkerGroup",
    "ResourcePoolManager",
    "WorkerDiedError",
    "create_colocated_worker_cls",
    "ensure_ray",
]
