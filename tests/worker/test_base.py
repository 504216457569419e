import gc
import os
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist

from verl.utils.metrics import Max
from verl.worker import Dispatch, MeshPosition, Worker, register
from verl.workers import ClassWithInitArgs, LocalWorkerGroup, create_colocated_worker_cls

PLACE = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


@pytest.fixture(autouse=True)
def no_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in PLACE:
        monkeypatch.delenv(name, raising=False)
    gc.collect()  # workers of other tests that nobody closed


def test_alone_without_a_launcher() -> None:
    worker = Worker()
    assert (worker.rank, worker.world_size, worker.local_rank, worker.local_world_size) == (0, 1, 0, 1)
    assert worker.mesh_position("train") == MeshPosition(0, 1)


class Joining(Worker):
    @register(Dispatch.ONE_TO_ALL)
    def join(self) -> float:
        self.init_distributed("cpu", timeout_s=1)
        ones = torch.ones(1)
        dist.all_reduce(ones)
        return float(ones)


def joining_group() -> Any:
    return LocalWorkerGroup(ray_cls_with_init=ClassWithInitArgs(Joining))


def test_a_world_of_one_has_a_group_until_its_last_worker_is_closed() -> None:
    both = create_colocated_worker_cls({"a": ClassWithInitArgs(Joining), "b": ClassWithInitArgs(Joining)})
    first, second = LocalWorkerGroup(ray_cls_with_init=both), joining_group()
    roles = first.spawn(["a", "b"])
    assert roles["a"].join() == roles["b"].join() == second.join() == [1.0]
    first.shutdown()
    assert second.join() == [1.0]
    second.shutdown()
    assert not dist.is_initialized()
    third = joining_group()
    assert third.join() == [1.0]
    third.shutdown()


def test_a_world_of_one_leaves_the_users_group_alone() -> None:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    theirs = dist.group.WORLD
    group = joining_group()
    assert group.join() == [1.0]
    group.shutdown()
    assert dist.group.WORLD is theirs
    dist.destroy_process_group()


def test_every_worker_tells_its_peaks() -> None:
    (peaks,) = joining_group().memory()
    assert type(peaks["perf/peak_rss_gib"]) is Max and peaks["perf/peak_rss_gib"].largest > 0


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
