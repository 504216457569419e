import os
from collections.abc import Callable
from typing import Any

import pytest
import torch.distributed as dist

from verl.worker import MeshPosition, Worker

PLACE = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


@pytest.fixture(autouse=True)
def no_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in PLACE:
        monkeypatch.delenv(name, raising=False)


def test_alone_without_a_launcher() -> None:
    worker = Worker()
    assert (worker.rank, worker.world_size, worker.local_rank, worker.local_world_size) == (0, 1, 0, 1)
    assert worker.mesh_position("train") == MeshPosition(0, 1)
    worker.init_distributed("cpu", timeout_s=1)
    assert not dist.is_initialized()


def test_the_place_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in zip(PLACE, ("5", "8", "1", "4"), strict=False):
        monkeypatch.setenv(name, value)
    worker = Worker()
    assert (worker.rank, worker.world_size, worker.local_rank, worker.local_world_size) == (5, 8, 1, 4)
    assert worker.mesh_position("train") == MeshPosition(5, 8)
    with pytest.raises(RuntimeError, match="rank 5 of 8 cannot find rank 0: set MASTER_ADDR, MASTER_PORT"):
        worker.init_distributed("cpu", timeout_s=1)


def test_an_environment_that_cannot_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "2")
    with pytest.raises(ValueError, match="RANK=2 but WORLD_SIZE=1"):
        Worker()


def test_meshes() -> None:
    worker = Worker()
    worker.register_mesh("rollout", dp_rank=1, dp_size=2, collect=False)
    assert worker.mesh_position("rollout") == MeshPosition(1, 2, False)
    with pytest.raises(ValueError, match=r"has no mesh 'rolout', only \['rollout', 'train'\]"):
        worker.mesh_position("rolout")


def test_a_mesh_in_use_cannot_change() -> None:
    worker = Worker()
    worker.register_mesh("rollout", 0, 2)
    worker.register_mesh("rollout", 1, 2)
    assert worker.mesh_position("rollout") == MeshPosition(1, 2)
    worker.register_mesh("rollout", 1, 2)
    with pytest.raises(ValueError, match="mesh 'rollout' is already in use"):
        worker.register_mesh("rollout", 0, 2)


def test_megatron_ranks_say_who_collects() -> None:
    collects = {}
    for tp_rank in range(2):
        for pp_rank in range(2):
            worker = Worker()
            worker.register_megatron_mesh(tp_rank, 2, pp_rank, 2, dp_rank=0, dp_size=1)
            collects[tp_rank, pp_rank] = worker.mesh_position("train").collect
    assert collects == {(0, 0): False, (1, 0): False, (0, 1): True, (1, 1): False}


def join_twice() -> tuple[int, int, str]:
    os.environ |= {"LOCAL_WORLD_SIZE": os.environ["WORLD_SIZE"]}
    first, second = Worker(), Worker()
    for worker in (first, second):
        worker.init_distributed("cpu", timeout_s=30)
    os.environ["WORLD_SIZE"] = "3"
    with pytest.raises(RuntimeError, match="already has 2 processes here, but the group of this worker has 3"):
        Worker().init_distributed("cpu", timeout_s=1)
    return first.rank, dist.get_world_size(), dist.get_backend()


def test_workers_of_one_process_share_its_group(run_distributed: Callable[..., list[Any]]) -> None:
    assert run_distributed(join_twice, 2) == [(0, 2, "gloo"), (1, 2, "gloo")]


def test_a_meeting_that_nobody_comes_to(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in zip(PLACE, ("1", "2", "1", "2", "127.0.0.1", "1"), strict=True):
        monkeypatch.setenv(name, value)
    with pytest.raises(RuntimeError) as caught:
        Worker().init_distributed("cpu", timeout_s=1)
    assert "rank 1 of 2 tried for up to 1 s to meet the others at 127.0.0.1:1" in caught.value.__notes__[0]
