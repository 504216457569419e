"""What a driver and a person at another terminal see of the workers while those work and wait."""

import logging
import os
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

from verl.protocol import DataProto
from verl.utils.activity import Activity, activities, doing
from verl.utils.debug import print_memory_usage
from verl.worker import Dispatch, Worker, register
from verl.workers.ray import RayClassWithInitArgs


class Slow(Worker):
    @register(Dispatch.DP_COMPUTE_PROTO, blocking=False)
    def make(self, batch: DataProto, seconds: float) -> DataProto:
        time.sleep(seconds)
        return batch

    @register(Dispatch.DP_COMPUTE_PROTO, blocking=False)
    def read(self, batch: DataProto) -> DataProto:
        return batch

    @register(Dispatch.ONE_TO_ALL)
    def say(self, text: str) -> None:
        logger = logging.getLogger("verl.worker.slow")
        logger.debug("quiet %s", text)
        logger.info("loud %s", text)
        logging.getLogger().addHandler(logging.StreamHandler())  # of a library's, say
        logger.info("again %s", text)

    @register(Dispatch.ONE_TO_ALL)
    def hold(self, gib: float) -> None:
        self.held = np.ones(int(gib * 2**30) if self.rank == 1 else 1, dtype=np.uint8)

    @register(Dispatch.ONE_TO_ALL)
    def pid(self) -> int:
        return os.getpid()


BATCH = DataProto.from_dict({"x": torch.arange(2)})


@pytest.fixture(autouse=True)
def printing() -> Iterator[None]:
    """The driver's log in a format of its own, which the workers take over; pytest's own handlers are further up."""
    logger = logging.getLogger("verl")
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("<%(name)s> %(message)s"))
    logger.addHandler(handler)
    yield
    logger.removeHandler(handler)


def until(found: Callable[[], Any]) -> Any:
    """What `found` returns as soon as it is true; the test fails after a minute."""
    deadline = time.monotonic() + 60
    while not (result := found()):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return result


def test_who_waits_for_whom_is_seen_from_outside_and_in_the_watchdogs_words(
    start_once: Callable[..., Any], caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    maker = start_once(RayClassWithInitArgs(Slow), processes=1, name_prefix="maker", log_every_s=1.0)
    reader = start_once(RayClassWithInitArgs(Slow), processes=1, name_prefix="reader", log_every_s=1.0)
    pids = {maker.pid()[0]: "maker", reader.pid()[0]: "reader"}

    def state() -> dict[str, Activity]:
        return {a.role: a for a in activities() if a.pid in pids}

    assert {role: a.name for role, a in state().items()} == {"maker": "", "reader": ""}
    with doing("values", step=4):
        future = reader.read(maker.make(BATCH, 600.0))
    waiting = until(lambda: len(state()) == 2 and state()["reader"].waits_for and state())
    assert [(other.name, other.rank) for other in waiting["reader"].waits_for] == [("maker.make", 0)]
    assert (waiting["maker"].name, waiting["maker"].step, waiting["maker"].waits_for) == ("make", 4, ())
    assert {a.job for a in waiting.values()} == {doer.job for doer in own_activity()}

    with caplog.at_level(logging.WARNING, "verl.workers"), pytest.raises(TimeoutError) as late:
        future.get(timeout_s=2.5)
    chain = (
        r"reader.read on rank 0 \(node .*\) \[in reader.read for \d+ s, of which it has waited \d+ s for "
        r"maker.make on rank 0 \(node .*\) \[in maker.make for \d+ s\]\]"
    )
    assert late.match(rf"the driver waited 2.5 s for {chain}, without an answer")
    last = caplog.records[-1]
    assert last.getMessage().startswith("the driver is waiting for reader.read on rank 0 ")
    assert last.role == "driver" and last.duration >= 1.0  # type: ignore[attr-defined]
    # The worker that waits says so as well, and Ray brings its log here.
    said = "<verl.worker.reader> [Step 4] reader on rank 0 is waiting for maker.make on rank 0 (node "
    until(lambda: said in "".join(capfd.readouterr()))


def own_activity() -> list[Activity]:
    with doing("look"):
        return [a for a in activities() if a.pid == os.getpid() and a.rank is None]


def test_workers_log_at_the_drivers_level_each_line_once(
    start_once: Callable[..., Any], caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    group = start_once(RayClassWithInitArgs(Slow), processes=1, name_prefix="slow")
    printed = ""

    def has(text: str) -> bool:
        nonlocal printed
        printed += "".join(capfd.readouterr())
        return text in printed

    with caplog.at_level(logging.INFO, "verl"):
        group.say("one")
        until(lambda: has("again one"))
    with caplog.at_level(logging.DEBUG, "verl"):
        group.say("two")
        until(lambda: has("say completed"))
    lines = [line for line in printed.splitlines() if "<verl.worker.slow> " in line]
    texts = [line.partition("<verl.worker.slow> ")[2] for line in lines]
    assert texts[:6] == ["loud one", "again one", "say begins", "quiet two", "loud two", "again two"]
    assert len(texts) == 7 and all("rank 0" in line for line in lines)


def test_the_memory_of_all_workers(start_once: Callable[..., Any], capfd: pytest.CaptureFixture[str]) -> None:
    group = start_once(RayClassWithInitArgs(Slow), name_prefix="slow")
    group.hold(0.25)
    print_memory_usage("now", {"slow": group})
    own, header, first, second, warning = [
        line for line in capfd.readouterr().out.splitlines() if line.startswith(("[now", "role", "slow", "WARNING"))
    ]
    assert header.split()[:4] == ["role", "rank", "node", "pid"]
    assert [first.split()[1], second.split()[1]] == ["0", "1"]
    assert [int(first.split()[3]), int(second.split()[3])] == group.pid()
    assert warning.startswith("WARNING: slow: resident memory differs by ") and warning.endswith("GiB on rank 1")
