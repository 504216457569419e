"""Process side: what one worker process runs. Nothing here imports Ray; `verl.workers` is the driver side."""

from verl.worker.base import Worker
from verl.worker.dispatch import Dispatch, Execute, register
from verl.worker.layout import MeshPosition

__all__ = ["Dispatch", "Execute", "MeshPosition", "Worker", "register"]
