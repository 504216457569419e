import threading
import time
from typing import Any

import pytest

from verl.worker import Dispatch, Worker, register
from verl.workers import ClassWithInitArgs, LocalWorkerGroup, Task, create_colocated_worker_cls, run_together
from verl.workers.errors import WorkerDiedError


class Idle(Worker):
    @register(Dispatch.ONE_TO_ALL)
    def nothing(self) -> None: ...


def group() -> Any:
    return LocalWorkerGroup(ray_cls_with_init=ClassWithInitArgs(Idle))


def test_groups_apart_run_at_the_same_time() -> None:
    # Each of the three waits until all are there: one after another they would never be.
    meeting = threading.Barrier(3, timeout=10)
    tasks = [
        Task("ref", lambda: (meeting.wait(), "r")[1], group()),
        Task("values", lambda: (meeting.wait(), "v")[1], group()),
        Task("reward", lambda: (meeting.wait(), "s")[1]),
    ]
    assert run_together(tasks, timeout_s=20) == ["r", "v", "s"]


def test_roles_of_one_process_take_turns_in_order() -> None:
    classes = create_colocated_worker_cls({"ref": ClassWithInitArgs(Idle), "critic": ClassWithInitArgs(Idle)})
    roles = LocalWorkerGroup(ray_cls_with_init=classes).spawn(["ref", "critic"])
    done: list[str] = []
    busy = threading.Lock()

    def work(name: str) -> None:
        assert busy.acquire(blocking=False), f"{name} began while another was running"
        done.append(name)
        busy.release()

    tasks = [Task(name, lambda name=name: work(name), roles[name]) for name in ("ref", "critic")]  # type: ignore[misc]
    run_together([*tasks, Task("reward", lambda: None)], timeout_s=20)
    assert done == ["ref", "critic"]


def test_the_first_error_comes_at_once_and_as_it_is() -> None:
    release = threading.Event()

    def fail() -> None:
        raise ValueError("no such row")

    tasks = [Task("slow", lambda: release.wait(30), group()), Task("bad", fail, group())]
    with pytest.raises(ValueError, match="no such row"):
        run_together(tasks, timeout_s=30)
    release.set()


@pytest.mark.parametrize("cause", [WorkerDiedError, TimeoutError])
def test_the_process_to_blame_explains_the_connection_that_it_broke(cause: type[Exception]) -> None:
    broken = threading.Event()

    def lose_connection() -> None:
        broken.set()
        raise RuntimeError("connection reset\nby peer")

    def fail() -> None:
        broken.wait(10)
        time.sleep(0.1)  # the news of it comes last
        raise cause("actor.send_weights on rank 0")

    tasks = [Task("rollout.receive_weights", lose_connection, group()), Task("actor.send_weights", fail, group())]
    with pytest.raises(cause, match="actor.send_weights on rank 0") as caught:
        run_together(tasks, timeout_s=30)
    assert caught.value.__notes__ == ["rollout.receive_weights failed too: RuntimeError: connection reset"]


def test_what_is_late_is_named() -> None:
    release = threading.Event()
    tasks = [Task("values", lambda: release.wait(30), group()), Task("reward", lambda: 1)]
    with pytest.raises(TimeoutError, match="the driver waited 0.2 s for values"):
        run_together(tasks, timeout_s=0.2)
    release.set()


def test_each_task_has_the_whole_time_to_itself() -> None:
    classes = create_colocated_worker_cls({"ref": ClassWithInitArgs(Idle), "critic": ClassWithInitArgs(Idle)})
    roles = LocalWorkerGroup(ray_cls_with_init=classes).spawn(["ref", "critic"])
    # Three turns of 0.8 s, where a call that is alone would be late after 1.5 + 0.5 s.
    tasks = [Task(name, lambda: time.sleep(0.8), roles[name]) for name in ("ref", "critic", "ref")]
    assert run_together([*tasks, Task("reward", lambda: 1)], timeout_s=1.5) == [None, None, None, 1]


def test_only_what_is_late_is_named() -> None:
    release = threading.Event()
    classes = create_colocated_worker_cls({"ref": ClassWithInitArgs(Idle), "critic": ClassWithInitArgs(Idle)})
    roles = LocalWorkerGroup(ray_cls_with_init=classes).spawn(["ref", "critic"])
    tasks = [Task(name, lambda: release.wait(30), roles[name]) for name in ("ref", "critic")]
    with pytest.raises(TimeoutError, match=r"the driver waited 0.2 s for ref$"):
        run_together([*tasks, Task("reward", lambda: 1)], timeout_s=0.2)
    release.set()


def test_no_tasks() -> None:
    assert run_together([], timeout_s=1) == []
