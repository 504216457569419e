"""Buckets, what the rollout engine is given, and the order of the steps; with the transformers engine."""

import weakref
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from tests.conftest import build_tiny_model
from verl.rollout.base import Sampling
from verl.rollout.hf_engine import HFRolloutEngine
from verl.rollout.weight_sync import check_weights, generating, in_buckets, sync_weights
from verl.utils.metrics import metric_values


def of_sizes(sizes: list[int]) -> list[tuple[str, Tensor]]:
    """Weights of so many bytes."""
    return [(f"w{i}", torch.zeros(size, dtype=torch.uint8)) for i, size in enumerate(sizes)]


def test_buckets_by_hand() -> None:
    found = [[name for name, _ in bucket] for bucket in in_buckets(of_sizes([4, 6, 1, 20, 3, 3]), 10)]
    assert found == [["w0", "w1"], ["w2"], ["w3"], ["w4", "w5"]]
    assert list(in_buckets([], 10)) == []
    with pytest.raises(ValueError, match="bucket_bytes must be at least 1, not 0"):
        list(in_buckets(of_sizes([1]), 0))


@given(st.lists(st.integers(0, 50)), st.integers(1, 60))
def test_buckets_keep_all_in_order_and_are_full_but_not_over(sizes: list[int], limit: int) -> None:
    weights = of_sizes(sizes)
    buckets = list(in_buckets(weights, limit))
    assert [name for bucket in buckets for name, _ in bucket] == [name for name, _ in weights]
    held = [sum(tensor.nbytes for _, tensor in bucket) for bucket in buckets]
    for i, bucket in enumerate(buckets):
        assert held[i] <= limit or len(bucket) == 1
        if i + 1 < len(buckets):
            assert held[i] + buckets[i + 1][0][1].nbytes > limit


class Receiver:
    """Takes weights and counts how many of the sender's tensors are alive at once."""

    version = -1

    def __init__(self) -> None:
        self.alive: weakref.WeakSet[Tensor] = weakref.WeakSet()
        self.most = 0
        self.names: list[str] = []

    def sender(self, count: int, size: int) -> Iterator[tuple[str, Tensor]]:
        for i in range(count):
            tensor = torch.zeros(size, dtype=torch.uint8)
            self.alive.add(tensor)
            self.most = max(self.most, len(self.alive))
            yield f"w{i}", tensor
            del tensor

    def update_weights(self, weights: Iterator[tuple[str, Tensor]], version: int) -> None:
        for name, tensor in weights:
            self.names.append(name)
            del tensor
        self.version = version


@pytest.mark.parametrize(("limit", "most"), [(1, 2), (10, 2), (40, 5), (10**6, 30)])
def test_never_more_than_a_bucket_and_the_tensor_that_overflows_it(limit: int, most: int) -> None:
    receiver: Any = Receiver()
    metrics = metric_values(sync_weights(receiver.sender(30, 10), receiver, 3, limit))
    assert receiver.names == [f"w{i}" for i in range(30)] and receiver.version == 3
    assert receiver.most <= most and len(receiver.alive) == 0
    assert metrics["perf/sync_bytes"] == 300 and metrics["perf/sync_bytes_per_second"] > 0


@pytest.fixture
def engine() -> HFRolloutEngine:
    return HFRolloutEngine(build_tiny_model(), free_on_sleep=True)


def test_the_engines_weights_can_be_checked(engine: HFRolloutEngine) -> None:
    other = build_tiny_model(seed=1)
    with pytest.raises(
        RuntimeError, match=r"16 weights of the rollout engine are not the trainer's .*gate_proj.weight"
    ):
        check_weights(other.named_parameters(), engine, torch.float32)
    sync_weights(other.named_parameters(), engine, 1, 10**6)
    check_weights(other.named_parameters(), engine, torch.float32)
    errors = engine.weight_errors([("no.such", torch.ones(2)), ("model.norm.weight", torch.ones(3))])
    assert [str(error) for error in errors.values()] == ["nan", "nan"]
    assert engine.weight_errors([("model.norm.weight", torch.full((32,), 4.0))]) == {"model.norm.weight": 0.75}


@pytest.mark.parametrize("fails", [False, True])
def test_the_order_of_the_steps(engine: HFRolloutEngine, fails: bool) -> None:
    calls: list[Any] = []

    class Recorder:
        def __getattr__(self, name: str) -> Any:
            value = getattr(engine, name)
            return value if not callable(value) else lambda *args: (calls.append((name, *args)), value(*args))[1]

    weights = list(build_tiny_model(seed=1).named_parameters())
    rollout: Any = Recorder()
    engine.sleep()
    assert not engine.has_weights
    try:
        with generating(rollout, lambda: rollout.update_weights(weights, 1)):
            rollout.generate([[5, 6]], Sampling(2))
            if fails:
                raise OSError("out of luck")
    except OSError:
        assert fails
    assert [call[0] for call in calls] == ["wake_up", "update_weights", "wake_up", "generate", "sleep"]
    assert [call[1] for call in calls if call[0] == "wake_up"] == [["weights"], ["kv_cache"]]
    with pytest.raises(RuntimeError, match="sleeps"):
        engine.generate([[5, 6]], Sampling(2))
