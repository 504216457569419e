"""The processes that hold one copy of the model together while generating."""

import zlib
from typing import Any

import torch.distributed as dist


class Replica:
    """This process's place in its replica: `size` consecutive ranks of the default process group.

    ValueError when there is no process group, or `size` does not divide it.
    """

    def __init__(self, size: int) -> None:
        self.size, self.rank = size, 0
        if size == 1:
            return
        if not dist.is_initialized():
            raise ValueError(f"tensor_parallel_size={size} needs {size} processes that share a torch.distributed group")
        if dist.get_world_size() % size:
            raise ValueError(f"tensor_parallel_size={size} does not divide the {dist.get_world_size()} processes")
        self.rank = dist.get_rank() % size

    def of_first(self, value: int) -> int:
        """The value of the replica's first process. All processes of the group must ask."""
        if self.size == 1:
            return value
        values: list[int] = [0] * dist.get_world_size()
        dist.all_gather_object(values, value)
        return values[dist.get_rank() - self.rank]

    def refuse_different(self, call: Any) -> None:
        """ValueError when the replica's processes were given different calls, which would wait for each other."""
        if self.size == 1:
            return
        from vllm.distributed.parallel_state import get_tp_group

        digests = [0] * self.size
        dist.all_gather_object(digests, zlib.crc32(repr(call).encode()), group=get_tp_group().cpu_group)
        if len(set(digests)) > 1:
            raise ValueError(
                f"the {self.size} processes of a replica were given different prompts, sampling or seeds: "
                "tensor-parallel generation needs the same on each of them"
            )
