"""Every mode on layouts of 1 to 4 ranks, as pure functions: split, run a function on each rank, collect."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from verl.protocol import DataProto
from verl.worker import Dispatch, Execute, Worker, register
from verl.worker.dispatch import DISPATCHERS, registered_methods
from verl.worker.layout import Layout, MeshPosition
from verl.worker.messages import Call, Reply

PAIRS = Layout(tuple(MeshPosition(rank // 2, 2, rank % 2 == 0) for rank in range(4)))
"""4 ranks, tensor parallel 2."""

LAYOUTS = [Layout.flat(1), Layout.flat(2), Layout.flat(3), PAIRS]


def run(mode: Dispatch, layout: Layout, on_rank: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """What a group would return if `on_rank(rank, *args, **kwargs)` were its method."""
    dispatcher = DISPATCHERS[mode]
    sent = dispatcher.split(layout, Call(args, kwargs))
    assert len(sent.calls) == layout.world_size
    values = [on_rank(rank, *call.args, **call.kwargs) for rank, call in enumerate(sent.calls)]
    sources = layout.collectors if dispatcher.collectors_only else range(layout.world_size)
    return dispatcher.collect(layout, sent.plan)([Reply(values[rank]) for rank in sources])


@pytest.mark.parametrize("layout", LAYOUTS)
def test_one_to_all(layout: Layout) -> None:
    result = run(Dispatch.ONE_TO_ALL, layout, lambda rank, x, y: (rank, x + y), 1, y=2)
    assert result == [(rank, 3) for rank in range(layout.world_size)]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_all_to_all(layout: Layout) -> None:
    n = layout.world_size
    result = run(Dispatch.ALL_TO_ALL, layout, lambda rank, x, y: x * y, list(range(n)), y=tuple([10] * n))
    assert result == [10 * rank for rank in range(n)]


@pytest.mark.parametrize(
    ("value", "given"), [([1, 2, 3], "3 entries"), ([], "0 entries"), (7, "a int"), ("ab", "a str")]
)
def test_all_to_all_needs_one_entry_per_rank(value: Any, given: str) -> None:
    with pytest.raises(ValueError, match=f"argument 'x' must be a list of 2 entries, one per rank, but it is {given}"):
        run(Dispatch.ALL_TO_ALL, Layout.flat(2), lambda rank, x: x, x=value)


def test_dp_compute_counts_shards_and_not_ranks() -> None:
    result = run(Dispatch.DP_COMPUTE, PAIRS, lambda rank, x: (rank, x), ["a", "b"])
    assert result == [(0, "a"), (2, "b")]
    with pytest.raises(ValueError, match="positional argument 0 .* list of 2 entries, one per data-parallel shard"):
        run(Dispatch.DP_COMPUTE, PAIRS, lambda rank, x: x, ["a"] * 4)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("rows", [1, 4, 5])
def test_dp_compute_proto(layout: Layout, rows: int) -> None:
    seen: dict[int, list[int]] = {}

    def add(rank: int, batch: DataProto, amount: int) -> DataProto:
        seen[rank] = batch.batch["x"].tolist()
        return DataProto.from_dict({"y": batch.batch["x"] + amount}, {"name": batch.non_tensor_batch["name"]})

    names = [f"n{i}" for i in range(rows)]
    batch = DataProto.from_dict({"x": torch.arange(rows)}, {"name": names})
    result = run(Dispatch.DP_COMPUTE_PROTO, layout, add, batch, amount=100)
    assert result.batch["y"].tolist() == [100 + i for i in range(rows)]
    assert result.non_tensor_batch["name"].tolist() == names
    for rank, position in enumerate(layout.positions):  # peers work on the same rows
        assert seen[rank] == seen[layout.collectors[position.dp_rank]]


def test_peers_get_the_same_object() -> None:
    sent = DISPATCHERS[Dispatch.DP_COMPUTE_PROTO].split(PAIRS, Call((DataProto.from_dict({"x": torch.arange(4)}),)))
    batches = [call.args[0] for call in sent.calls]
    assert batches[0] is batches[1] and batches[2] is batches[3] and batches[0] is not batches[2]


def test_dp_compute_proto_joins_batches_or_nothing() -> None:
    batch = DataProto.from_dict({"x": torch.arange(4)})
    assert run(Dispatch.DP_COMPUTE_PROTO, Layout.flat(2), lambda rank, b: None, batch) is None
    with pytest.raises(TypeError, match="shard 1 of 2 returned NoneType.*DP_COMPUTE_METRIC"):
        run(Dispatch.DP_COMPUTE_PROTO, Layout.flat(2), lambda rank, b: b if rank == 0 else None, batch)
    with pytest.raises(TypeError, match="shard 0 of 2 returned dict"):
        run(Dispatch.DP_COMPUTE_PROTO, Layout.flat(2), lambda rank, b: {"loss": 1.0}, batch)


def test_a_call_without_batches() -> None:
    result = run(
        Dispatch.DP_COMPUTE_PROTO, PAIRS, lambda rank: DataProto.from_dict({"rank": torch.tensor([rank, rank])})
    )
    assert result.batch["rank"].tolist() == [0, 0, 2, 2]


def test_dp_compute_proto_with_func() -> None:
    batch = DataProto.from_dict({"x": torch.arange(3)})
    result = run(
        Dispatch.DP_COMPUTE_PROTO_WITH_FUNC,
        Layout.flat(2),
        lambda rank, fn, b: DataProto.from_dict({"y": fn(b.batch["x"])}),
        torch.square,
        batch,
    )
    assert result.batch["y"].tolist() == [0, 1, 4]
    with pytest.raises(TypeError, match="needs a function as the first positional argument, not DataProto"):
        run(Dispatch.DP_COMPUTE_PROTO_WITH_FUNC, Layout.flat(2), lambda rank, b: b, batch)


def test_dp_compute_metric_leaves_merging_to_the_caller() -> None:
    batch = DataProto.from_dict({"x": torch.arange(3), "response_mask": torch.ones(3, 1)})

    def count(rank: int, b: DataProto) -> dict[str, float]:
        return {"rows": float(b.batch["response_mask"].sum())}

    assert run(Dispatch.DP_COMPUTE_METRIC, Layout.flat(2), count, batch) == [{"rows": 2.0}, {"rows": 1.0}]
    assert run(Dispatch.DP_COMPUTE_METRIC, PAIRS, count, batch) == [{"rows": 2.0}, {"rows": 1.0}]


def double_per_rank(layout: Layout, x: int) -> tuple[tuple[list[int]], dict[str, Any]]:
    return ([x * 2] * layout.world_size,), {}


def test_modes_of_ones_own() -> None:
    class Own(Worker):
        @register(dispatch_mode={"dispatch_fn": double_per_rank, "collect_fn": lambda layout, values: sum(values)})
        def f(self, x: int) -> int:
            return x

    dispatcher = registered_methods(Own)["f"].dispatcher
    sent = dispatcher.split(Layout.flat(3), Call((5,)))
    assert [call.args for call in sent.calls] == [(10,)] * 3
    assert dispatcher.collect(Layout.flat(3), None)([Reply(10)] * 3) == 30


def test_modes_that_are_none() -> None:
    with pytest.raises(TypeError, match="must be a Dispatch or a dict of functions, not str"):
        register(dispatch_mode="one_to_all")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"keys dispatch_fn and collect_fn, not \['dispatch_fn'\]"):
        register(dispatch_mode={"dispatch_fn": double_per_rank})
    with pytest.raises(ValueError, match="execute_mode=RANK_ZERO cannot go with it"):
        register(Dispatch.DP_COMPUTE_PROTO, Execute.RANK_ZERO)


def test_an_override_keeps_the_registration() -> None:
    class Base(Worker):
        @register(Dispatch.ONE_TO_ALL, blocking=False)
        def f(self) -> int:
            return 1

    class Sub(Base):
        def f(self) -> int:
            return 2

    class Other(Base):
        @register(Dispatch.RANK_ZERO)
        def f(self) -> int:
            return 3

    assert registered_methods(Sub)["f"] == registered_methods(Base)["f"]
    assert registered_methods(Other)["f"].execute_mode is Execute.RANK_ZERO
    assert registered_methods(Other)["f"].blocking
    assert set(registered_methods(Sub)) == {"f", "memory", "memory_usage", "mesh_position"}
