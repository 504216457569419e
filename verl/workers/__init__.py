"""Driver side: groups of worker processes as single objects. `verl.worker` is the process side."""

from verl.workers.classes import ClassWithInitArgs, create_colocated_worker_cls
from verl.workers.group import WorkerFuture, WorkerGroup
from verl.workers.local import LocalWorkerGroup
from verl.workers.together import Task, run_together

__all__ = [
    "ClassWithInitArgs",
    "LocalWorkerGroup",
    "Task",
    "WorkerFuture",
    "WorkerGroup",
    "create_colocated_worker_cls",
    "run_together",
]
