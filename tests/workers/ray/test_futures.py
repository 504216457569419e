"""Futures between groups, and failures that leave a group whole: every rank raised."""

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from verl.protocol import DataProto, DataProtoFuture
from verl.worker import Dispatch, Worker, register
from verl.workers.ray import RayClassWithInitArgs, RayResourcePool


def unpack(folder: str, text: str) -> "Traced":
    (Path(folder) / str(os.getpid())).touch()
    return Traced(folder, text)


class Traced:
    """A value that leaves a file named after each process that unpickles it."""

    def __init__(self, folder: str, text: str) -> None:
        self.folder = folder
        self.text = text

    def __reduce__(self) -> tuple[Any, ...]:
        return unpack, (self.folder, self.text)


class HasTwoArguments(Exception):
    def __init__(self, what: str, why: str) -> None:
        super().__init__(f"{what} because {why}")


class Own(Exception):
    pass


class Producer(Worker):
    @register(Dispatch.DP_COMPUTE_PROTO, blocking=False)
    def make(self, batch: DataProto, folder: str, seconds: float = 0.0) -> DataProto:
        time.sleep(seconds)
        column = [Traced(folder, f"row {i}") for i in batch.batch["x"].tolist()]
        return DataProto.from_dict({"y": batch.batch["x"] * 10}, {"traced": column}, batch.meta_info)

    @register(Dispatch.DP_COMPUTE_PROTO, blocking=False)
    def make_more(self, future: DataProto) -> DataProto:
        return DataProto.from_dict({"y": future.batch["y"] + 1}, {"traced": future.non_tensor_batch["traced"]})

    @register(Dispatch.DP_COMPUTE_PROTO, blocking=False)
    def fail(self, batch: DataProto) -> DataProto:
        raise KeyError("missing")

    @register(Dispatch.ONE_TO_ALL)
    def raise_own(self, kind: str) -> None:
        if kind == "own":
            raise Own("of the test file")
        if kind == "two":
            raise HasTwoArguments("no", "reasons")
        error = ValueError("holds a lock")
        error.lock = threading.Lock()  # type: ignore[attr-defined]
        raise error

    @register(Dispatch.ONE_TO_ALL)
    def return_lock(self) -> Any:
        return threading.Lock()

    @register(Dispatch.ONE_TO_ALL, blocking=False)
    def pid(self) -> int:
        return os.getpid()


class Consumer(Worker):
    @register(Dispatch.DP_COMPUTE_PROTO)
    def read(self, batch: DataProto) -> DataProto:
        texts = [value.text for value in batch.non_tensor_batch["traced"]]
        return DataProto.from_dict(
            {"y": batch.batch["y"], "rank": torch.full((len(batch),), self.rank)}, {"text": texts}, batch.meta_info
        )

    @register(Dispatch.DP_COMPUTE_PROTO, blocking=False)
    def read_both(self, batch: DataProto, other: DataProto) -> DataProto:
        return DataProto.from_dict({"sum": batch.batch["y"] + other.batch["x"]})

    @register(Dispatch.DP_COMPUTE_METRIC)
    def shares(self, batch: DataProto) -> list[int]:
        return batch.batch["y"].tolist()

    @register(Dispatch.ONE_TO_ALL)
    def rows(self, batch: DataProto) -> int:
        return len(batch)

    @register(Dispatch.ONE_TO_ALL)
    def pid(self) -> int:
        return os.getpid()


@pytest.fixture(scope="module")
def pool() -> RayResourcePool:
    """Two groups share its places: on GPUs, each process of both would have half a device."""
    return RayResourcePool([2], use_gpu=False, max_colocate_count=2, timeout_s=20)


@pytest.fixture(scope="module")
def producer(start: Callable[..., Any], pool: RayResourcePool) -> Any:
    return start(RayClassWithInitArgs(Producer), pool=pool, name_prefix="producer")


@pytest.fixture(scope="module")
def consumer(start: Callable[..., Any], pool: RayResourcePool) -> Any:
    return start(RayClassWithInitArgs(Consumer), pool=pool, name_prefix="consumer")


def batch(rows: int, **meta: Any) -> DataProto:
    return DataProto.from_dict({"x": torch.arange(rows)}, meta_info=meta)


def seen_by(folder: Path) -> set[int]:
    return {int(path.name) for path in folder.iterdir()}


def test_a_call_that_does_not_wait(producer: Any, tmp_path: Path) -> None:
    started = time.monotonic()
    future = producer.make(batch(3), str(tmp_path), seconds=1.5)
    assert time.monotonic() - started < 1.0
    assert type(future) is DataProtoFuture and not future.done()
    with pytest.raises(TimeoutError, match=r"waited 0.1 s for producer.make on rank 0 \(node .*no rank has answered"):
        future.get(timeout_s=0.1)
    assert future.get().batch["y"].tolist() == [0, 10, 20]
    assert future.done()
    assert len(set(producer.pid().get())) == 2  # running late for one `get` did not end the group


def test_shards_go_from_worker_to_worker(producer: Any, consumer: Any, tmp_path: Path) -> None:
    future = producer.make(batch(4), str(tmp_path))
    result = consumer.read(future)
    assert result.batch["y"].tolist() == [0, 10, 20, 30]
    assert result.batch["rank"].tolist() == [0, 0, 1, 1]
    assert result.non_tensor_batch["text"].tolist() == [f"row {i}" for i in range(4)]
    # Each shard was unpacked where it was used, and not here.
    assert seen_by(tmp_path) == set(consumer.pid())
    assert future.get().batch["y"].tolist() == [0, 10, 20, 30]
    assert os.getpid() in seen_by(tmp_path)
    # That the driver has it now changes nothing: it is not sent from here.
    assert consumer.read(future).batch["rank"].tolist() == [0, 0, 1, 1]


@pytest.mark.parametrize(
    ("rows", "meta", "shares"),
    [
        (3, {}, [[0, 10], [20, 0]]),  # padded there, so padded here
        (4, {"mini_batch_size": 2}, [[0, 20], [10, 30]]),
        (5, {"mini_batch_size": 3}, [[0, 10, 30], [20, 0, 40]]),
    ],
)
def test_shards_that_do_not_fit_are_split_again_by_the_consumers(
    producer: Any, consumer: Any, tmp_path: Path, rows: int, meta: dict[str, Any], shares: list[list[int]]
) -> None:
    future = producer.make(batch(rows, **meta), str(tmp_path))
    result = consumer.read(future)
    assert result.batch["y"].tolist() == [10 * i for i in range(rows)]
    assert consumer.shares(future) == shares
    assert os.getpid() not in seen_by(tmp_path)


def test_a_chain_of_futures(producer: Any, consumer: Any, tmp_path: Path) -> None:
    chained = producer.make_more(producer.make_more(producer.make(batch(3), str(tmp_path))))
    assert consumer.read(chained).batch["y"].tolist() == [2, 12, 22]
    assert consumer.rows(chained) == [3, 3]


def test_a_future_beside_a_batch(producer: Any, consumer: Any, tmp_path: Path) -> None:
    for rows in (4, 3):
        future = consumer.read_both(producer.make(batch(rows), str(tmp_path)), other=batch(rows))
        assert future.get().batch["sum"].tolist() == [11 * i for i in range(rows)]
    with pytest.raises(ValueError, match="positional argument 0 has 4, argument 'other' has 3"):
        consumer.read_both(producer.make(batch(4), str(tmp_path)), other=batch(3)).get()


def test_the_producers_error_reaches_the_consumers_caller(producer: Any, consumer: Any) -> None:
    future = producer.fail(batch(2))
    with pytest.raises(KeyError) as caught:
        consumer.read(future)
    notes = "\n".join(caught.value.__notes__)
    assert str(caught.value) == "'missing'"
    assert "raised by producer.fail on rank " in notes and 'raise KeyError("missing")' in notes
    assert "and reached consumer.read on rank " in notes
    with pytest.raises(KeyError):
        future.get()


def test_a_type_of_the_drivers_script_survives(producer: Any) -> None:
    with pytest.raises(Own) as caught:
        producer.raise_own("own")
    assert str(caught.value) == "of the test file"
    assert "rank 1 failed too: Own: of the test file" in caught.value.__notes__[-1].replace("rank 0", "rank 1")


@pytest.mark.parametrize(
    ("kind", "text"),
    [("two", "HasTwoArguments: no because reasons"), ("lock", "ValueError: holds a lock")],
)
def test_exceptions_that_cannot_travel(producer: Any, kind: str, text: str) -> None:
    with pytest.raises(RuntimeError) as caught:
        producer.raise_own(kind)
    assert str(caught.value) == text
    assert caught.value.raised_by.method == "raise_own"  # type: ignore[attr-defined]
    assert any("raised by producer.raise_own on rank" in note for note in caught.value.__notes__)


def test_a_result_that_cannot_travel(producer: Any) -> None:
    with pytest.raises(TypeError, match="cannot pickle '_thread.lock'") as caught:
        producer.return_lock()
    assert any("producer.return_lock on rank" in note for note in caught.value.__notes__)
    assert len(producer.pid().get()) == 2
