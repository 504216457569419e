"""Healthy groups: three roles in four processes, with three meshes."""

import os
from collections.abc import Callable
from typing import Any

import pytest
import ray
import torch
import torch.distributed as dist

from verl.protocol import DataProto
from verl.worker import Dispatch, Execute, Worker, register
from verl.workers.ray import (
    MegatronRayWorkerGroup,
    RayClassWithInitArgs,
    RayResourcePool,
    RayWorkerGroup,
    create_colocated_worker_cls,
)


class Role(Worker):
    def __init__(self, amount: int, tensor_parallel: int = 1, megatron: bool = False) -> None:
        super().__init__()
        self.amount = amount
        self.tp = tensor_parallel
        self.megatron = megatron

    @register(Dispatch.ONE_TO_ALL)
    def init_model(self) -> tuple[int, int]:
        """Meet the others; the sum of all ranks says that all came."""
        self.init_distributed("cpu", timeout_s=60)
        if self.megatron:  # tp fastest, then dp, then pp, as Megatron orders its ranks
            self.register_megatron_mesh(self.rank % 2, 2, self.rank // 2, 2, 0, 1)
        else:
            dp_rank, tp_rank = divmod(self.rank, self.tp)
            self.register_mesh("rollout", dp_rank, self.world_size // self.tp, collect=tp_rank == 0)
        total = torch.tensor(self.rank)
        dist.all_reduce(total)
        return int(total), os.getpid()

    @register(Dispatch.DP_COMPUTE_PROTO, mesh="rollout")
    def generate(self, batch: DataProto) -> DataProto:
        return DataProto.from_dict(
            {"y": batch.batch["x"] + self.amount, "rank": torch.full((len(batch),), self.rank)},
            {"name": batch.non_tensor_batch["name"]},
        )

    @register(Dispatch.DP_COMPUTE_PROTO)
    def train(self, batch: DataProto) -> DataProto:
        return DataProto.from_dict({"y": batch.batch["x"], "rank": torch.full((len(batch),), self.rank)})

    @register(Dispatch.DP_COMPUTE_METRIC)
    def count(self, batch: DataProto) -> dict[str, Any]:
        return {"rank": self.rank, "valid": int(batch.batch["response_mask"].sum()), "rows": len(batch)}

    @register(Dispatch.ALL_TO_ALL)
    def scale(self, x: int) -> int:
        return x * self.amount

    @register(Dispatch.DP_COMPUTE, mesh="rollout")
    def per_shard(self, x: str) -> str:
        return f"{x}{self.rank}"

    @register(Dispatch.ONE_TO_ALL, Execute.RANK_ZERO)
    def first(self, fn: Callable[[int], int]) -> int:
        return fn(self.rank)

    @register(Dispatch.DP_COMPUTE_PROTO_WITH_FUNC)
    def apply(self, fn: Callable[[torch.Tensor], torch.Tensor], batch: DataProto) -> DataProto:
        return DataProto.from_dict({"y": fn(batch.batch["x"])})

    @register(Dispatch.ONE_TO_ALL)
    def place(self) -> tuple[int, int, int, int, str, int]:
        return (
            self.rank,
            self.world_size,
            self.local_rank,
            self.local_world_size,
            os.environ["OMP_NUM_THREADS"],
            torch.get_num_threads(),
        )

    @register(Dispatch.ONE_TO_ALL)
    def write_into(self, batch: DataProto) -> int:
        batch.batch["x"] += 1 + self.rank
        return int(batch.batch["x"].sum())


@pytest.fixture(scope="module")
def roles(start: Callable[..., Any]) -> dict[str, Any]:
    class_dict = {
        "actor_rollout": RayClassWithInitArgs(ray.remote(Role), amount=10, tensor_parallel=2),
        "critic": RayClassWithInitArgs(Role, amount=100),
        "megatron": RayClassWithInitArgs(Role, 1, megatron=True),
    }
    wg = start(create_colocated_worker_cls(class_dict=class_dict), 4, MegatronRayWorkerGroup)
    all_wg = wg.spawn(prefix_set=class_dict.keys())
    pids = [all_wg[role].init_model() for role in class_dict]
    # All ranks met, and a rank of each role is in the same process.
    assert [total for total, _ in pids[0]] == [6] * 4
    assert pids[0] == pids[1] == pids[2] and len({pid for _, pid in pids[0]}) == 4
    return all_wg


def batch(rows: int, **meta: Any) -> DataProto:
    return DataProto.from_dict(
        {"x": torch.arange(rows), "response_mask": torch.ones(rows, 1)}, {"name": [f"r{i}" for i in range(rows)]}, meta
    )


def test_the_snippet() -> None:
    class_dict = {"actor_rollout": RayClassWithInitArgs(cls=ray.remote(Role), amount=3)}
    pool = RayResourcePool([1], use_gpu=False)
    wg = RayWorkerGroup(resource_pool=pool, ray_cls_with_init=create_colocated_worker_cls(class_dict=class_dict))
    try:
        all_wg = wg.spawn(prefix_set=class_dict.keys())
        assert all_wg["actor_rollout"].scale([5]) == [15]
    finally:
        wg.shutdown()
        pool.close()


def test_places_and_threads(roles: dict[str, Any]) -> None:
    threads = max(1, len(os.sched_getaffinity(0)) // 4)
    expected = [(rank, 4, rank, 4, str(threads), threads) for rank in range(4)]
    assert roles["critic"].place() == expected


@pytest.mark.parametrize("rows", [1, 4, 5])
def test_batches_go_out_and_come_back_in_order(roles: dict[str, Any], rows: int) -> None:
    result = roles["actor_rollout"].generate(batch(rows))
    assert result.batch["y"].tolist() == [10 + i for i in range(rows)]
    assert result.non_tensor_batch["name"].tolist() == [f"r{i}" for i in range(rows)]


def test_one_group_has_several_meshes(roles: dict[str, Any]) -> None:
    pairs, flat = roles["actor_rollout"], roles["critic"]
    assert pairs.generate(batch(4)).batch["rank"].tolist() == [0, 0, 2, 2]
    assert pairs.train(batch(4)).batch["rank"].tolist() == [0, 1, 2, 3]
    assert flat.generate(batch(4)).batch["rank"].tolist() == [0, 1, 2, 3]
    assert pairs.per_shard(["a", "b"]) == ["a0", "b2"]


def test_pad_rows_count_in_no_metric(roles: dict[str, Any]) -> None:
    counts = roles["critic"].count(batch(5))
    assert [count["rows"] for count in counts] == [2, 2, 2, 2]
    assert [count["valid"] for count in counts] == [2, 2, 1, 0]


def test_megatron_group(roles: dict[str, Any]) -> None:
    wg = roles["megatron"]
    assert (wg.tp_size, wg.pp_size, wg.dp_size) == (2, 2, 1)
    # One copy of the model: the last stage's first tensor rank answers for all four.
    assert wg.train(batch(2)).batch["rank"].tolist() == [2, 2]
    assert wg.count(batch(3)) == [{"rank": 2, "valid": 3, "rows": 3}]
    with pytest.raises(TypeError, match="'critic' have not called register_megatron_mesh"):
        roles["critic"].tp_size  # noqa: B018


def test_the_other_modes(roles: dict[str, Any]) -> None:
    wg = roles["critic"]
    assert wg.scale([1, 2, 3, 4]) == [100, 200, 300, 400]
    assert wg.first(lambda rank: rank + 7) == 7
    assert wg.apply(lambda x: x * x, batch(3)).batch["y"].tolist() == [0, 1, 4]


def test_each_rank_may_write_into_its_batch(roles: dict[str, Any]) -> None:
    # One copy lies in shared memory for all four; each must still have its own.
    sent = DataProto.from_dict({"x": torch.zeros(100_000, dtype=torch.int64)})
    assert roles["critic"].write_into(sent) == [100_000 * (rank + 1) for rank in range(4)]
    assert int(sent.batch["x"].sum()) == 0


def test_arguments_are_checked_before_they_are_sent(roles: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="must be a list of 4 entries, one per rank, but it is 3 entries") as caught:
        roles["critic"].scale([1, 2, 3])
    assert caught.value.__notes__ == ["in the driver's call of critic.scale"]
    assert roles["critic"].scale([1, 1, 1, 1]) == [100] * 4
