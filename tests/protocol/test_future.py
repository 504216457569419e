import pickle
from typing import Any

import pytest
import torch

from verl.protocol import DataProto, DataProtoFuture, unpad_dataproto

STORE = {number: DataProto.from_dict({"x": torch.tensor([2 * number, 2 * number + 1])}) for number in range(2)}


def resolve(handles: list[Any], timeout_s: float | None) -> list[DataProto]:
    return [STORE[handle] for handle in handles]


def collect(shards: list[DataProto]) -> DataProto:
    return unpad_dataproto(DataProto.concat(shards), 1)


def test_get_resolves_once_and_passes_the_time_limit_on() -> None:
    calls: list[tuple[list[int], float | None]] = []

    def counting(handles: list[int], timeout_s: float | None) -> list[DataProto]:
        calls.append((handles, timeout_s))
        return resolve(handles, timeout_s)

    future = DataProtoFuture([0, 1], collect, counting)
    first = future.get(timeout_s=2.5)
    assert first.batch["x"].tolist() == [0, 1, 2]
    assert future.get() is first and calls == [([0, 1], 2.5)]


def test_shards_can_be_handed_on_without_resolving() -> None:
    def never(handles: list[Any], timeout_s: float | None) -> list[DataProto]:
        raise AssertionError("the driver fetched data")

    future = DataProtoFuture([0, 1], collect, never)
    assert future.collect(resolve(future.futures, None)).batch["x"].tolist() == [0, 1, 2]


def test_a_timeout_leaves_the_future_usable() -> None:
    slow = True

    def late(handles: list[Any], timeout_s: float | None) -> list[DataProto]:
        if slow:
            raise TimeoutError("rank 1 of 'actor' did not answer")
        return resolve(handles, timeout_s)

    future = DataProtoFuture([0, 1], collect, late)
    with pytest.raises(TimeoutError, match="rank 1"):
        future.get(0.1)
    slow = False
    assert len(future.get()) == 3


def test_done() -> None:
    ready = False
    future = DataProtoFuture([0, 1], collect, resolve, ready=lambda handles: ready)
    assert not future.done()
    ready = True
    assert future.done()
    silent = DataProtoFuture([0, 1], collect, resolve)
    with pytest.raises(RuntimeError, match="made without `ready`"):
        silent.done()
    silent.get()
    assert silent.done()


def test_a_lost_shard_is_an_error() -> None:
    future = DataProtoFuture([0, 1], collect, lambda handles, timeout_s: [STORE[0]])
    with pytest.raises(ValueError, match="1 shards for 2 futures"):
        future.get()


def test_it_pickles_if_its_parts_do() -> None:
    with pytest.raises((pickle.PicklingError, AttributeError)):
        pickle.dumps(DataProtoFuture([0], lambda shards: shards[0], resolve))
