"""Failures that leave some ranks behind: all processes are ended, and the driver learns of it in time."""

import logging
import os
import re
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist

from verl.worker import Dispatch, Worker, register
from verl.workers.ray import GroupStoppedError, RayClassWithInitArgs, RayResourcePool, RayWorkerGroup, WorkerDiedError


class Fragile(Worker):
    def __init__(self, broken: bool = False) -> None:
        super().__init__()
        if broken:
            raise ValueError("no such model")

    @register(Dispatch.ONE_TO_ALL)
    def pids(self) -> int:
        return os.getpid()

    @register(Dispatch.ONE_TO_ALL)
    def meet(self) -> int:
        self.init_distributed("cpu", timeout_s=60)
        return os.getpid()

    @register(Dispatch.ONE_TO_ALL)
    def last_one(self, does: str) -> None:
        """The last rank fails in its own way, while the others wait for it in a collective."""
        if self.rank == self.world_size - 1:
            if does == "raise":
                raise ValueError("x")
            os._exit(1)
        dist.all_reduce(torch.zeros(1))

    @register(Dispatch.ONE_TO_ALL, blocking=False)
    def last_one_later(self) -> None:
        self.last_one("raise")

    @register(Dispatch.ONE_TO_ALL)
    def sleep_if_last(self) -> None:
        if self.rank == self.world_size - 1:
            time.sleep(600)


def running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def ended_within(pids: list[int], seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while any(map(running, pids)) and time.monotonic() < deadline:
        time.sleep(0.1)
    return not any(map(running, pids))


def test_h2_an_exception_of_one_rank(start_once: Callable[..., Any]) -> None:
    wg = start_once(RayClassWithInitArgs(Fragile), name_prefix="actor")
    pids = wg.meet()
    started = time.monotonic()
    with pytest.raises(ValueError) as caught:
        wg.last_one("raise")
    assert time.monotonic() - started < 5
    assert str(caught.value) == "x" and type(caught.value) is ValueError
    site = caught.value.raised_by  # type: ignore[attr-defined]
    assert (site.role, site.method, site.rank, site.pid) == ("actor", "last_one", 1, pids[1])
    origin, trace = caught.value.__notes__[:2]
    assert origin == f"raised by actor.last_one on rank 1 (node {os.uname().nodename}, pid {pids[1]})"
    assert trace.startswith("traceback of the worker:") and 'raise ValueError("x")' in trace
    assert ended_within(pids, 10)
    with pytest.raises(GroupStoppedError, match="actor.meet: the group 'actor' was ended after ValueError: x") as later:
        wg.meet()
    assert later.value.__cause__ is caught.value


def test_an_exception_of_a_call_that_nobody_waits_for(start_once: Callable[..., Any]) -> None:
    wg = start_once(RayClassWithInitArgs(Fragile), name_prefix="actor")
    wg.meet()
    future = wg.last_one_later()
    started = time.monotonic()
    # Rank 0 hangs in the first call and never comes to this one.
    with pytest.raises(ValueError, match="x") as caught:
        wg.pids()
    assert time.monotonic() - started < 5
    assert caught.value.raised_by.method == "last_one_later"  # type: ignore[attr-defined]
    with pytest.raises((ValueError, WorkerDiedError)):
        future.get()


def test_h2_a_process_that_dies(start_once: Callable[..., Any]) -> None:
    wg = start_once(RayClassWithInitArgs(Fragile), name_prefix="actor")
    pids = wg.meet()
    started = time.monotonic()
    # The collective of rank 0 fails because of it, and may do so first; the death is what gets reported.
    with pytest.raises(WorkerDiedError) as caught:
        wg.last_one("exit")
    assert time.monotonic() - started < 5
    node = os.uname().nodename
    assert str(caught.value).startswith(
        f"actor.last_one on rank 1 (node {node}, pid {pids[1]}): the process died. The actor is dead because its "
        f"worker process has died."
    )
    assert caught.value.raised_by.rank == 1  # type: ignore[attr-defined]
    assert ended_within(pids, 10)
    with pytest.raises(GroupStoppedError, match="was ended after WorkerDiedError"):
        wg.meet()


def test_a_rank_that_never_answers(start_once: Callable[..., Any], caplog: pytest.LogCaptureFixture) -> None:
    wg = start_once(RayClassWithInitArgs(Fragile), name_prefix="actor", timeout_s=3.0, log_every_s=1.0)
    pids = wg.pids()
    with caplog.at_level(logging.WARNING, "verl.workers"), pytest.raises(TimeoutError) as caught:
        wg.sleep_if_last()
    assert re.fullmatch(
        rf"the driver waited 3 s for actor.sleep_if_last on rank 1 \(node {os.uname().nodename}, pid {pids[1]}\) \[in "
        r"actor.sleep_if_last for \d s\], without an answer; answers came from ranks \[0\]",
        str(caught.value),
    )
    assert "the driver is waiting for actor.sleep_if_last on rank 1" in caplog.text
    assert ended_within(pids, 10)
    with pytest.raises(GroupStoppedError, match="was ended after TimeoutError: the driver waited 3 s"):
        wg.meet()


def test_a_worker_that_cannot_be_made() -> None:
    pool = RayResourcePool([1], use_gpu=False)
    try:
        with pytest.raises(ValueError, match="no such model") as caught:
            RayWorkerGroup(pool, RayClassWithInitArgs(Fragile, broken=True), name_prefix="critic")
        assert "raised by critic.__init__ on rank 0 (node " in caught.value.__notes__[0]
        pool.claim()  # the failed group has given its place back
    finally:
        pool.close()
