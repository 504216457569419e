"""Where processes stand: their data-parallel position on a mesh, and what that means for a whole group."""

from collections import Counter
from dataclasses import dataclass


@dataclass(frozen=True)
class MeshPosition:
    """One process's place on a mesh.

    Attributes:
        dp_rank: which data-parallel shard it works on; tensor- or pipeline-parallel peers share one.
        dp_size: number of shards.
        collect: whether its result counts: true on exactly one process of each shard.
    """

    dp_rank: int
    dp_size: int
    collect: bool = True

    def __post_init__(self) -> None:
        if not 0 <= self.dp_rank < self.dp_size:
            raise ValueError(f"dp_rank {self.dp_rank} is outside [0, dp_size={self.dp_size})")


@dataclass(frozen=True)
class MegatronPosition(MeshPosition):
    """A place on a mesh of tensor, pipeline and data parallelism; the last stage's first tensor rank collects."""

    tp_rank: int = 0
    tp_size: int = 1
    pp_rank: int = 0
    pp_size: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        for axis, rank, size in (("tp", self.tp_rank, self.tp_size), ("pp", self.pp_rank, self.pp_size)):
            if not 0 <= rank < size:
                raise ValueError(f"{axis}_rank {rank} is outside [0, {axis}_size={size})")


@dataclass(frozen=True)
class Layout:
    """The positions of all ranks of a group on one mesh. ValueError, naming ranks, if they do not fit together."""

    positions: tuple[MeshPosition, ...]

    def __post_init__(self) -> None:
        sizes = {position.dp_size for position in self.positions}
        if len(sizes) != 1:
            raise ValueError(f"the ranks disagree on the data-parallel size: {self._by_rank('dp_size')}")
        collecting = Counter(position.dp_rank for position in self.positions if position.collect)
        wrong = [shard for shard in range(self.dp_size) if collecting[shard] != 1]
        if wrong:
            raise ValueError(
                f"each data-parallel shard needs exactly one rank that collects, but shards {wrong} have "
                f"{[collecting[shard] for shard in wrong]}; dp_rank {self._by_rank('dp_rank')}, "
                f"collect {self._by_rank('collect')}"
            )

    @staticmethod
    def flat(world_size: int) -> "Layout":
        """Every rank is a shard of its own."""
        return Layout(tuple(MeshPosition(rank, world_size) for rank in range(world_size)))

    @property
    def world_size(self) -> int:
        return len(self.positions)

    @property
    def dp_size(self) -> int:
        return self.positions[0].dp_size

    @property
    def collectors(self) -> tuple[int, ...]:
        """The rank whose result counts, for shard 0, 1, ..."""
        ranks = {position.dp_rank: rank for rank, position in enumerate(self.positions) if position.collect}
        return tuple(ranks[shard] for shard in range(self.dp_size))

    def _by_rank(self, name: str) -> str:
        return ", ".join(f"{getattr(position, name)} on rank {rank}" for rank, position in enumerate(self.positions))
