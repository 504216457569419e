import pytest

from verl.worker.layout import Layout, MegatronPosition, MeshPosition


def test_tensor_parallel_pairs() -> None:
    layout = Layout(tuple(MeshPosition(rank // 2, 2, rank % 2 == 0) for rank in range(4)))
    assert (layout.world_size, layout.dp_size, layout.collectors) == (4, 2, (0, 2))


def test_collectors_follow_the_shards_and_not_the_ranks() -> None:
    assert Layout((MeshPosition(1, 2), MeshPosition(0, 2))).collectors == (1, 0)


def test_flat() -> None:
    assert Layout.flat(3).collectors == (0, 1, 2) and Layout.flat(3).dp_size == 3


@pytest.mark.parametrize(("rank", "size"), [(2, 2), (-1, 2), (0, 0)])
def test_a_position_outside_of_its_mesh(rank: int, size: int) -> None:
    with pytest.raises(ValueError, match=f"dp_rank {rank} is outside"):
        MeshPosition(rank, size)
    with pytest.raises(ValueError, match=f"pp_rank {rank} is outside"):
        MegatronPosition(0, 1, pp_rank=rank, pp_size=size)


def test_layouts_that_do_not_fit_together() -> None:
    with pytest.raises(ValueError, match="disagree on the data-parallel size: 2 on rank 0, 1 on rank 1"):
        Layout((MeshPosition(0, 2), MeshPosition(0, 1)))
    with pytest.raises(ValueError, match=r"shards \[1\] have \[0\]"):
        Layout((MeshPosition(0, 2), MeshPosition(1, 2, collect=False)))
    with pytest.raises(ValueError, match=r"shards \[0\] have \[2\]"):
        Layout((MeshPosition(0, 1), MeshPosition(0, 1)))
