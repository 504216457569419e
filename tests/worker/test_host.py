import logging
import os

import pytest

from verl.utils.activity import activities, doing
from verl.worker import Dispatch, Worker, register
from verl.worker.host import Host
from verl.worker.messages import Call


class Busy(Worker):
    @register(Dispatch.ONE_TO_ALL)
    def look(self) -> list[tuple[str, int | None, str, int | None]]:
        return seen()

    @register(Dispatch.ONE_TO_ALL)
    def fail(self) -> None:
        raise KeyError("x")


def seen() -> list[tuple[str, int | None, str, int | None]]:
    return [(a.role, a.rank, a.name, a.step) for a in activities() if a.pid == os.getpid() and a.role == "busy"]


def test_what_a_worker_does_is_seen_logged_and_measured(caplog: pytest.LogCaptureFixture) -> None:
    host = Host.build("busy", Busy, (), {}, "node")
    with doing("gen", step=5):
        call = Call()  # it knows the driver's step
    with caplog.at_level(logging.DEBUG, "verl"):
        assert host.invoke("look", call).value == [("busy", 0, "look", 5)]
        assert seen() == []
        with pytest.raises(KeyError):
            host.invoke("fail", Call())
        assert seen() == []
        host.invoke("mesh_position", Call(("train",)))
    names = [(record.name, record.getMessage()) for record in caplog.records]
    assert names[0] == ("verl.worker.busy", "[Step 5] look begins")
    assert names[1][1].startswith("[Step 5] look completed, 0.")
    assert [text for _, text in names[2:]] == ["fail begins"]
    assert caplog.records[1].duration < 60 and caplog.records[1].rank == 0  # type: ignore[attr-defined]
    measured = {key.rpartition("/")[2] for key in host.worker.peak_memory.take()}
    assert measured in ({"peak_rss_gib", "look", "fail"}, {"peak_rss_gib"})  # the latter where no mark can be reset
    assert host.invoke("memory_usage", Call()).value.pid == os.getpid()


def test_a_call_keeps_its_origin_when_its_arguments_change() -> None:
    with doing("gen", step=5):
        call = Call((1,), {"x": 2})
    assert call.map(str) == Call(("1",), {"x": "2"}) and call.map(str).origin.step == 5
