"""The group in the driver's own process. What it shares with Ray groups is tested here, where it is fast."""

import inspect
import os
import subprocess
import sys
from typing import Any

import pytest
import torch

from verl.protocol import DataProto, DataProtoFuture
from verl.worker import Dispatch, Execute, Worker, register
from verl.workers import ClassWithInitArgs, LocalWorkerGroup, WorkerFuture, create_colocated_worker_cls


class Adder(Worker):
    def __init__(self, amount: int, fail_with: type[Exception] | None = None) -> None:
        super().__init__()
        self.amount = amount
        self.fail_with = fail_with
        self.seen: DataProto | None = None

    @register(Dispatch.DP_COMPUTE_PROTO)
    def add(self, batch: DataProto) -> DataProto:
        """Add the amount to x."""
        self.seen = batch
        batch.batch["x"] += self.amount
        batch.pop(batch_keys=["extra"])
        return DataProto.from_dict({"x": batch.batch["x"]}, meta_info=batch.meta_info)

    @register(Dispatch.DP_COMPUTE_PROTO, blocking=False)
    def add_later(self, batch: DataProto) -> DataProto:
        if self.fail_with is not None:
            raise self.fail_with("x")
        return DataProto.from_dict({"x": batch.batch["x"] + self.amount})

    @register(Dispatch.DP_COMPUTE_METRIC)
    def total(self, batch: DataProto) -> dict[str, int]:
        return {"total": int(batch.batch["x"].sum())}

    @register(Dispatch.ONE_TO_ALL, blocking=False)
    def later(self, x: int, y: int = 0) -> int:
        return x + y

    @register(Dispatch.ONE_TO_ALL, Execute.RANK_ZERO)
    def first(self, x: int) -> int:
        return x * self.amount

    @register(Dispatch.RANK_ZERO)
    def zero(self) -> int:
        return self.rank

    @register(Dispatch.ONE_TO_ALL)
    def size(self, batch: DataProto) -> int:
        return len(batch)

    @register(Dispatch.ONE_TO_ALL)
    def fail(self) -> None:
        raise ValueError("x")

    def private(self) -> None: ...


def group(amount: int = 10, **kwargs: Any) -> Any:
    return LocalWorkerGroup(ray_cls_with_init=ClassWithInitArgs(Adder, amount, **kwargs), name_prefix="adder")


def batch(rows: int = 3, **meta: Any) -> DataProto:
    return DataProto.from_dict({"x": torch.arange(rows), "extra": torch.zeros(rows)}, meta_info=meta)


def test_methods_of_the_group_are_those_of_the_worker() -> None:
    wg = group()
    assert wg.world_size == 1
    assert wg.add.__name__ == "add" and wg.add.__doc__ == "Add the amount to x."
    assert list(inspect.signature(wg.later).parameters) == ["x", "y"]
    assert not hasattr(wg, "private")
    with pytest.raises(AttributeError, match="role 'adder' have no registered method 'ad'; did you mean 'add'"):
        wg.ad()
    with pytest.raises(AttributeError, match="registered methods: .*'total', 'zero'"):
        wg.xyzzy()


def test_calls() -> None:
    wg = group()
    assert wg.add(batch()).batch["x"].tolist() == [10, 11, 12]
    assert wg.total(batch()) == [{"total": 3}]
    assert wg.first(3) == 30 and wg.zero() == 0
    assert wg.size(batch()) == [3]


def test_the_worker_gets_a_copy_and_the_driver_too() -> None:
    wg, sent = group(), batch()
    result = wg.add(sent)
    assert sent.batch["x"].tolist() == [0, 1, 2] and "extra" in sent.batch.keys()  # noqa: SIM118
    result.batch["x"] += 100
    assert wg.processes._hosts["adder"].worker.seen.batch["x"].tolist() == [10, 11, 12]


def test_mini_batches_reach_the_worker() -> None:
    assert group().add(batch(4, mini_batch_size=3)).meta_info["local_mini_batch_sizes"] == [3, 1]


def test_futures() -> None:
    wg = group()
    future = wg.later(1, y=2)
    assert isinstance(future, WorkerFuture) and future.done() and future.get() == [3]
    future = wg.add_later(batch())
    assert type(future) is DataProtoFuture
    assert future.get(timeout_s=1).batch["x"].tolist() == [10, 11, 12]


def test_a_future_is_an_argument_like_any_other() -> None:
    wg, other = group(), group(100)
    future = wg.add_later(batch())
    assert other.add_later(future).get().batch["x"].tolist() == [110, 111, 112]
    assert other.total(future) == [{"total": 33}]
    assert other.size(future) == [3]


def test_errors_say_where() -> None:
    wg = group()
    with pytest.raises(ValueError) as caught:
        wg.fail()
    assert str(caught.value) == "x"
    site = caught.value.raised_by  # type: ignore[attr-defined]
    assert (site.role, site.method, site.rank, site.pid) == ("adder", "fail", 0, os.getpid())
    assert caught.value.__notes__ == [f"raised by adder.fail on rank 0 (node {site.node}, pid {os.getpid()})"]
    assert wg.zero() == 0


def test_the_error_of_a_non_blocking_call_waits_for_get_or_for_the_consumer() -> None:
    producer = group(fail_with=KeyError)
    consumer = LocalWorkerGroup(ray_cls_with_init=ClassWithInitArgs(Adder, 1), name_prefix="consumer")
    future = producer.add_later(batch())
    with pytest.raises(KeyError) as caught:
        consumer.total(future)
    assert "raised by adder.add_later on rank 0" in caught.value.__notes__[0]
    assert "and reached consumer.total on rank 0" in caught.value.__notes__[1]
    with pytest.raises(KeyError):
        future.get()


def test_wrong_arguments_never_reach_the_worker() -> None:
    with pytest.raises(TypeError, match="missing a required argument: 'x'") as caught:
        group().later(y=1)
    assert caught.value.__notes__ == ["in the driver's call of adder.later"]


def test_roles_in_one_process() -> None:
    class_dict = {"a": ClassWithInitArgs(Adder, 1), "b": ClassWithInitArgs(Adder, amount=2)}
    wg = LocalWorkerGroup(ray_cls_with_init=create_colocated_worker_cls(class_dict=class_dict))
    roles = wg.spawn(prefix_set=class_dict.keys())
    assert [roles[role].first(5) for role in "ab"] == [5, 10]
    with pytest.raises(ValueError, match=r"no roles \['c'\] in these processes, only \['a', 'b'\]"):
        wg.spawn({"c"})
    with pytest.raises(AttributeError, match=r"holds the roles \['a', 'b'\].*take a role's group out of spawn"):
        wg.first(5)


class NoInit(Worker):
    def __init__(self) -> None:
        self.x = 1


class Shadow(Worker):
    @register(Dispatch.ONE_TO_ALL)
    def spawn(self) -> None: ...


def test_classes_that_do_not_work() -> None:
    with pytest.raises(TypeError, match=r"role 'r': NoInit.__init__ must call super\(\).__init__\(\)"):
        LocalWorkerGroup(ray_cls_with_init=ClassWithInitArgs(NoInit), name_prefix="r")
    with pytest.raises(ValueError, match="registered method 'spawn' has the name of something"):
        LocalWorkerGroup(ray_cls_with_init=ClassWithInitArgs(Shadow))
    with pytest.raises(TypeError, match="expected a subclass of verl.worker.Worker"):
        ClassWithInitArgs(int)
    with pytest.raises(TypeError, match="must be a RayClassWithInitArgs or come from"):
        LocalWorkerGroup(ray_cls_with_init=Adder)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="class_dict is empty"):
        create_colocated_worker_cls({})


def test_one_process_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ValueError, match="WORLD_SIZE=2"):
        group()


def test_no_ray_is_needed() -> None:
    code = "import sys, verl.worker, verl.workers; sys.exit('ray' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60, check=False).returncode == 0
