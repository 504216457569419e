"""The processes that hold one copy of the model together while generating."""

import uuid
import zlib
from pathlib import Path
from typing import Any

import torch.distributed as dist


class Replica:
    """This process's place in its replica: `size` consecutive ranks of the default process group.

    ValueError when there is no process group, or `size` does not divide it.

    Attributes:
        name: one that no other job has, and all processes of this one. vLLM 0.32 names the shared memory of a CPU
            tensor-parallel group after the part of its init method behind the last colon, which in its own "env://" is
            the same for every job on a machine: two jobs, or one beside the leftovers of a killed one, fail with
            `create shm ... errno: 17`. To be dropped when vLLM makes that name unique.
    """

    def __init__(self, size: int) -> None:
        self.size, self.rank, self.name = size, 0, ""
        if size == 1:
            return
        if not dist.is_initialized():
            raise ValueError(f"tensor_parallel_size={size} needs {size} processes that share a torch.distributed group")
        if dist.get_world_size() % size:
            raise ValueError(f"tensor_parallel_size={size} does not divide the {dist.get_world_size()} processes")
        self.rank = dist.get_rank() % size
        names = [uuid.uuid4().hex[:12]]
        dist.broadcast_object_list(names, src=0)
        self.name = names[0]

    def unlink_shared_memory(self) -> None:
        """Take the names of vLLM's shared memory away once all have opened it: it then goes with its last process.

        Under its name it would stay when the processes are killed, which is how Ray ends them.
        """
        if self.size == 1:
            return
        from vllm.distributed.parallel_state import get_tp_group

        dist.barrier()
        for file in Path("/dev/shm").glob(f"{self.name}-*"):
            file.unlink(missing_ok=True)
        queue = get_tp_group().mq_broadcaster
        if queue is not None and queue.buffer.is_creator:
            queue.buffer.shared_memory.unlink()
            queue.buffer.is_creator = False  # so that it does not try again at its end

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
