import time
from typing import Any

import pytest
import ray

from verl.worker import Worker
from verl.workers.ray import RayClassWithInitArgs, RayResourcePool, RayWorkerGroup, ResourcePoolManager, ensure_ray
from verl.workers.ray.cluster import node_id


def test_h1_a_second_start_takes_the_first_and_does_not_stop_it() -> None:
    with ensure_ray(num_cpus=1) as session:
        assert not session.owned
    assert ray.is_initialized() and ray.cluster_resources()["CPU"] == 4


def test_an_address_where_nobody_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    with pytest.raises(ConnectionError, match="no Ray cluster answers at 127.0.0.1:1: "):
        ensure_ray(address="127.0.0.1:1", timeout_s=2)


def test_ranks_follow_the_nodes() -> None:
    pool = RayResourcePool([2, 1], use_gpu=False, max_colocate_count=1)
    try:
        slots = pool.slots()
        # Both reservations are on the one node that there is, so its three ranks count through.
        assert [(slot.local_rank, slot.local_world_size) for slot in slots] == [(0, 3), (1, 3), (2, 3)]
        assert [slot.bundle for slot in slots] == [0, 1, 0] and slots[0].group.id != slots[2].group.id
        assert pool.world_size == 3 and len({slot.node_id for slot in slots}) == 1
    finally:
        pool.close()
    assert free_cpus() == 4


def free_cpus() -> float:
    deadline = time.monotonic() + 10  # Ray counts what comes back a little later
    while ray.available_resources().get("CPU", 0) < 4 and time.monotonic() < deadline:
        time.sleep(0.1)
    return ray.available_resources()["CPU"]


def test_a_group_ends_the_pool_that_it_made_itself() -> None:
    group = RayWorkerGroup(None, RayClassWithInitArgs(Worker))
    assert ray.available_resources()["CPU"] == 3
    group.shutdown()
    assert free_cpus() == 4


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        (
            {"process_on_nodes": [1, 2], "placement_strategy": "STRICT_SPREAD"},
            "STRICT_SPREAD needs 2 nodes with room for a process each, and the cluster has 1.\n"
            "  asked: node 0: 1 CPU; node 1: 2 CPU\n"
            "  strategy: STRICT_SPREAD .trainer.placement_strategy, or strategy in trainer.device_map.\n"
            "  free: node 0, ",
        ),
        (
            {"process_on_nodes": [5]},
            "STRICT_PACK needs room for 5 processes on one node, and there is room for 4 at most",
        ),
        (
            {"process_on_nodes": [3], "max_colocate_count": 2},
            "needs room for 3 processes on one node, .* for 2 at most",
        ),
        (
            {"process_on_nodes": [5], "placement_strategy": "SPREAD", "nodes": [0]},
            "SPREAD needs room for 5 processes on node 0, and there is room for 4 at most",
        ),
        ({"process_on_nodes": [1], "use_gpu": True}, "needs room for 1 processes on one node, and .* for 0 at most"),
    ],
)
def test_what_the_nodes_can_never_hold_is_refused_at_once(kwargs: dict[str, Any], message: str) -> None:
    pool = RayResourcePool(**{"use_gpu": False, "timeout_s": 2, "name_prefix": "main", **kwargs})
    with pytest.raises(ValueError, match=f"resource pool 'main' can never be placed: .*{message}"):
        pool.slots()


def test_a_node_by_its_number_or_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    here = ray.get_runtime_context().get_node_id()
    rows = [(here, "10.0.0.1", "a"), ("id1", "10.0.0.2", "b"), ("id2", "10.0.0.3", "1"), ("id3", "10.0.0.4", "b")]
    keys = ("NodeID", "NodeManagerAddress", "NodeManagerHostname")
    monkeypatch.setattr(ray, "nodes", lambda: [{"Alive": True, **dict(zip(keys, row, strict=True))} for row in rows])
    assert [node_id(node) for node in (0, "0", "a")] == [here] * 3
    assert [node_id(node) for node in (1, "10.0.0.2", "id1")] == ["id1"] * 3
    assert [node_id(node) for node in ("1", 2, "2")] == ["id2"] * 3  # one node is called "1"
    with pytest.raises(ValueError, match="node '4': there is no such node; the cluster has 0: a .10.0.0.1.; 1: b "):
        node_id("4")
    with pytest.raises(ValueError, match="node 'b': 2 nodes are called so: use the number"):
        node_id("b")


def test_more_groups_than_the_pool_has_room_for() -> None:
    pool = RayResourcePool([1], use_gpu=False, max_colocate_count=2, name_prefix="shared")
    pool.claim()
    pool.claim()
    with pytest.raises(ValueError, match="'shared' already holds 2 group.s., as many as max_colocate_count=2 allows"):
        pool.claim()
    pool.release()
    pool.claim()


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"process_on_nodes": []}, "at least one process for each node"),
        ({"process_on_nodes": [2, 0]}, r"but it is \[2, 0\]"),
        ({"process_on_nodes": [1], "max_colocate_count": 0}, "max_colocate_count must be at least 1"),
        ({"process_on_nodes": [1], "placement_strategy": "TIGHT"}, "unknown placement_strategy 'TIGHT'"),
    ],
)
def test_pools_that_cannot_be(kwargs: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        RayResourcePool(**kwargs)


def test_a_device_that_the_pool_does_not_have() -> None:
    pool = RayResourcePool([1], use_gpu=False)
    with pytest.raises(ValueError, match="device_name='cuda' does not go with the resource pool 'pool'"):
        RayWorkerGroup(pool, RayClassWithInitArgs(Worker), device_name="cuda")


def test_a_detached_pool_is_named_and_kept() -> None:
    pool = RayResourcePool([1], use_gpu=False, name_prefix="kept", detached=True)
    try:
        (slot,) = pool.slots()
        assert ray.util.get_placement_group("kept:0").id == slot.group.id
    finally:
        pool.close()


def test_pools_by_role() -> None:
    spec = {"main": [2], "scores": [1]}
    manager = ResourcePoolManager(spec, {"actor_rollout": "main", "critic": "main", "rm": "scores"}, use_gpu=False)
    with pytest.raises(RuntimeError, match="call create_resource_pool"):
        manager.get_resource_pool("critic")
    manager.create_resource_pool()
    assert manager.get_resource_pool("critic") is manager.get_resource_pool("actor_rollout")
    assert manager.get_resource_pool("rm").world_size == 1
    with pytest.raises(ValueError, match="role 'ref' has no resource pool"):
        manager.get_resource_pool("ref")
    with pytest.raises(ValueError, match=r"'rm' is mapped to .*'score', which does not exist; .* \['main', 'scores'\]"):
        ResourcePoolManager(spec, {"rm": "score"})
