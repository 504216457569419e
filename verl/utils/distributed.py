"""The default process group, and small collectives over it; with one process they are the identity."""

import weakref
from contextlib import ExitStack

import torch
import torch.distributed as dist

from verl.utils.backends import communication_backend


def world_size() -> int:
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def rank() -> int:
    return dist.get_rank() if dist.is_available() and dist.is_initialized() else 0


class GroupOfOne:
    """A default process group of this process alone, for tensors on the CPU and on `device`. See `group_of_one`.

    Attributes:
        at_end: what to do before the group ends, such as ending groups that were made out of it.
    """

    def __init__(self, device: str) -> None:
        dist.init_process_group(communication_backend(device), store=dist.HashStore(), rank=0, world_size=1)
        self.at_end = ExitStack()
        made = dist.group.WORLD
        assert made is not None
        self.at_end.callback(_destroy, made)
        # What an ending process holds goes with it.
        weakref.finalize(self, self.at_end.close).atexit = False


_own: weakref.WeakSet[GroupOfOne] = weakref.WeakSet()


def group_of_one(device: str) -> GroupOfOne | None:
    """The process group of a process that is alone: the one that was made here before, or else a new one.

    It lives as long as somebody holds it; all who use it should. None where the process is in a group that others
    made, which is used as it is and left alone.
    """
    if not dist.is_initialized():
        group = GroupOfOne(device)
        _own.add(group)
        return group
    return next(iter(_own), None)


def _destroy(group: dist.ProcessGroup) -> None:
    if dist.group.WORLD is group:  # else it has ended already
        dist.destroy_process_group()


def all_reduce_sum(value: float) -> float:
    """The sum of `value` over all processes, in float64 on the CPU: the same number everywhere."""
    if world_size() == 1:
        return float(value)
    total = torch.tensor(float(value), dtype=torch.float64)
    dist.all_reduce(total)
    return float(total)
