"""The base of everything that runs in a worker process."""

import os
from datetime import timedelta

import torch
import torch.distributed as dist

from verl.utils.backends import communication_backend
from verl.utils.distributed import GroupOfOne, group_of_one
from verl.utils.memory import MemoryUsage, PeakMemory
from verl.utils.metrics import Max, Metrics
from verl.worker.dispatch import Dispatch, register
from verl.worker.layout import MegatronPosition, MeshPosition


class Worker:
    """One process of a group. It knows its rank and its meshes, and nothing of who calls it.

    A subclass calls `super().__init__()` and marks with `register` the methods that a group may call. Several workers
    (roles) can live in one process; they share its rank and its `torch.distributed` process group.

    Attributes:
        rank, world_size: this process in its group, from the environment (RANK, WORLD_SIZE); 0 and 1 without it.
        local_rank, local_world_size: the same among the group's processes on this node.
        peak_memory: peaks of this process while the role's methods run.

    Raises ValueError when the environment holds a rank outside of its world.
    """

    def __init__(self) -> None:
        self.rank, self.world_size = _place("RANK", "WORLD_SIZE")
        self.local_rank, self.local_world_size = _place("LOCAL_RANK", "LOCAL_WORLD_SIZE")
        self._meshes: dict[str, MeshPosition] = {"train": MeshPosition(self.rank, self.world_size)}
        self._told: set[str] = set()
        self.peak_memory = PeakMemory()
        self._group_of_one: GroupOfOne | None = None

    @register(Dispatch.ONE_TO_ALL)
    def mesh_position(self, mesh: str) -> MeshPosition:
        """This process's position on a mesh. "train" is data-parallel over all processes unless registered otherwise.

        Raises ValueError, with the known names, for a mesh that was not registered.
        """
        if mesh not in self._meshes:
            raise ValueError(
                f"{type(self).__name__} has no mesh {mesh!r}, only {sorted(self._meshes)}: call "
                f"self.register_mesh({mesh!r}, ...) first, such as in the method that builds the model"
            )
        self._told.add(mesh)
        return self._meshes[mesh]

    def register_mesh(self, mesh: str, dp_rank: int, dp_size: int, collect: bool = True) -> None:
        """Say which shard this process works on when a method runs on `mesh`, and whether its result counts.

        For generation with tensor parallel 2 on 4 processes: dp_rank = rank // 2, dp_size = 2, collect = rank % 2 == 0.
        Raises ValueError when a position that the driver may already have used would change.
        """
        self._set_mesh(mesh, MeshPosition(dp_rank, dp_size, collect))

    def register_megatron_mesh(
        self, tp_rank: int, tp_size: int, pp_rank: int, pp_size: int, dp_rank: int, dp_size: int, mesh: str = "train"
    ) -> None:
        """Take the positions of a Megatron layout. Results come from the last pipeline stage's first tensor rank."""
        collect = tp_rank == 0 and pp_rank == pp_size - 1
        self._set_mesh(mesh, MegatronPosition(dp_rank, dp_size, collect, tp_rank, tp_size, pp_rank, pp_size))

    def init_distributed(self, device: str, timeout_s: float) -> None:
        """Join the process group of all processes of the group, once per process, whichever role comes first.

        `timeout_s` bounds the meeting and every later collective. On CUDA it also selects this process's device. Needs
        MASTER_ADDR and MASTER_PORT in the environment. A world of one needs neither: it gets a group of its own, which
        ends when the last of the process's workers is closed, unless the process has one already. Engines would
        make one themselves, but each for its own kind of tensors.
        Raises RuntimeError without the address, and when the process group that is already there has another size.
        """
        if device == "cuda":
            # A process may see all devices of the node, or only its own.
            torch.cuda.set_device(self.local_rank % torch.cuda.device_count())
        if dist.is_initialized() and dist.get_world_size() != self.world_size:
            raise RuntimeError(
                f"torch.distributed already has {dist.get_world_size()} processes here, but the group of this "
                f"worker has {self.world_size}"
            )
        if self.world_size == 1:
            self._group_of_one = group_of_one(device)
        elif not dist.is_initialized():
            self._meet_others(device, timeout_s)

    def _meet_others(self, device: str, timeout_s: float) -> None:
        missing = [name for name in ("MASTER_ADDR", "MASTER_PORT") if name not in os.environ]
        if missing:
            raise RuntimeError(f"rank {self.rank} of {self.world_size} cannot find rank 0: set {', '.join(missing)}")
        try:
            dist.init_process_group(
                communication_backend(device),
                rank=self.rank,
                world_size=self.world_size,
                timeout=timedelta(seconds=timeout_s),
            )
        except RuntimeError as error:
            error.add_note(
                f"rank {self.rank} of {self.world_size} tried for up to {timeout_s:g} s to meet the others at "
                f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
            )
            raise

    @register(Dispatch.ONE_TO_ALL)
    def memory_usage(self) -> MemoryUsage:
        """What this process and its device use now."""
        return MemoryUsage.here()

    @register(Dispatch.ONE_TO_ALL)
    def memory(self) -> Metrics:
        """Peak memory of this process and device, in GiB: of all time, and in each method since this was last asked."""
        return {name: Max(value) for name, value in self.peak_memory.take().items()}

    def close(self) -> None:
        """End what would stay when the worker goes and its process does not."""
        self._group_of_one = None

    def _set_mesh(self, mesh: str, position: MeshPosition) -> None:
        if mesh in self._told and self._meshes[mesh] != position:
            raise ValueError(
                f"mesh {mesh!r} is already in use as {self._meshes[mesh]}, so it cannot become {position}: register it "
                f"before the first call that is split over it"
            )
        self._meshes[mesh] = position


def _place(rank_name: str, size_name: str) -> tuple[int, int]:
    rank, size = (int(os.environ.get(name, default)) for name, default in ((rank_name, "0"), (size_name, "1")))
    if not 0 <= rank < size:
        raise ValueError(f"the environment says {rank_name}={rank} but {size_name}={size}")
    return rank, size
