import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from verl.utils import activity
from verl.utils.activity import Activity, Awaited, activities, current, deeds, doing, waiting

HERE = socket.gethostname()
ME = os.getpid()


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setattr(activity, "folder", lambda: tmp_path)
    yield tmp_path


def seen() -> list[tuple[str, int | None, str, int | None]]:
    return [(a.role, a.rank, a.name, a.step) for a in activities()]


def test_a_driver_is_seen_while_it_does_something_and_its_threads_apart() -> None:
    assert current() is None and seen() == []
    with doing("step", step=3):
        with doing("gen"):
            assert seen() == [("driver", None, "gen", 3)]
            beside: list[Any] = []

            def work() -> None:
                with doing("values"):
                    beside.append((current(), seen()))

            thread = threading.Thread(target=work)
            thread.start()
            thread.join()
            assert beside[0][0].name == "values"
            assert sorted(name for _, _, name, _ in beside[0][1]) == ["gen", "values"]
        assert seen() == [("driver", None, "step", 3)]
    assert current() is None and seen() == []


def test_a_worker_stays_and_is_idle_and_its_driver_is_told_apart() -> None:
    with doing("update", role="driver"), doing("update_actor", role="actor", rank=1, step=2, job="host:7"):
        assert seen() == [("actor", 1, "update_actor", 2), ("driver", None, "update", None)]
        assert {a.job for a in activities()} == {"host:7", f"{HERE}:{ME}"}
    (idle,) = activities()
    assert (idle.name, idle.role, idle.rank) == ("", "actor", 1)
    with doing("update_actor", role="in the driver's process", rank=0):
        assert len(seen()) == 2
    assert activities() == [idle]


def test_waiting_is_part_of_what_one_does() -> None:
    one, two = Awaited("actor.make", 0, "far", 5), Awaited("actor.make", 1, "far", 6)
    with doing("read", role="critic", rank=0, job="host:7"), waiting([one, two]) as show:
        assert activities()[0].waits_for == (one, two)
        show([two])
        assert activities()[0].waits_for == (two,) and activities()[0].name == "read"
        assert current() is not None and current().who == "critic on rank 0"  # type: ignore[union-attr]
    assert activities()[0].waits_for == ()
    with waiting([one]):
        assert [(a.role, a.name, a.waits_for) for a in activities() if a.rank is None] == [("driver", "", (one,))]


def test_what_dead_processes_and_other_versions_left_is_not_seen(own_folder: Path) -> None:
    done = subprocess.Popen([sys.executable, "-c", ""])
    done.wait()
    with doing("update", role="actor", rank=0):
        (mine,) = activities()
        for name, left in {"dead": replace(mine, pid=done.pid), "reused": replace(mine, process_started=1.0)}.items():
            (own_folder / f"{name}.json").write_text(json.dumps(asdict(left)))
        (own_folder / "other.json").write_text('{"version": 9}')
        far = replace(mine, pid=done.pid, node="a-container")  # which has the folder, and process ids of its own
        (own_folder / "far.json").write_text(json.dumps(asdict(far)))
        assert activities() == [mine]
        assert sorted(path.stem for path in own_folder.glob("*.json")) == [f"{ME}-actor-0", "far", "other"]


def write(folder: Path, pid: int, **fields: object) -> None:
    base = Activity("actor", 0, "make", time.time() - 30, None, "job", pid=pid)
    entry = replace(base, process_started=psutil.Process(pid).create_time(), **fields)  # type: ignore[arg-type]
    (folder / f"{pid}-{entry.role}-{entry.rank}.json").write_text(json.dumps(asdict(entry)))


def test_the_deeds_of_an_awaited_process_follow_the_chain(own_folder: Path) -> None:
    parent = os.getppid()
    me, other = Awaited("critic.read", 0, HERE, ME), Awaited("actor.make", 0, HERE, parent)
    assert deeds(me) == "" and deeds(Awaited("x", 0, "another-node", ME)) == ""
    write(own_folder, parent)
    write(own_folder, ME, role="critic", name="read", waits_for=(other,), waits_since=time.time() - 20)
    assert deeds(other) == " [in actor.make for 30 s]"
    assert deeds(me) == (
        f" [in critic.read for 30 s, of which it has waited 20 s for actor.make on rank 0 (node {HERE}, pid {parent}) "
        "[in actor.make for 30 s]]"
    )
    write(own_folder, parent, waits_for=(me,), waits_since=time.time() - 10)
    assert deeds(me).endswith(f"10 s for critic.read on rank 0 (node {HERE}, pid {ME}) [which waits in a circle]]]")
    write(own_folder, parent, name="")
    assert deeds(other) == " [idle]"


def test_a_folder_that_cannot_be_written_ends_no_run(own_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(activity, "folder", lambda: own_folder / "missing")
    with pytest.warns(UserWarning, match="cannot see what this process does: .*missing"), doing("x"):
        pass


def test_the_folder_is_the_users_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    folder = activity.folder()
    assert folder.name == f"verl-{os.getuid()}" and folder.stat().st_mode & 0o777 == 0o700
