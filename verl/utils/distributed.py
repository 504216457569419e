"""Small collectives over the default process group; with one process they are the identity."""

import torch
import torch.distributed as dist


def world_size() -> int:
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def rank() -> int:
    return dist.get_rank() if dist.is_available() and dist.is_initialized() else 0


def all_reduce_sum(value: float) -> float:
    """The sum of `value` over all processes, in float64 on the CPU: the same number everywhere."""
    if world_size() == 1:
        return float(value)
    total = torch.tensor(float(value), dtype=torch.float64)
    dist.all_reduce(total)
    return float(total)
