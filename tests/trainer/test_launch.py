"""How runs start and how they end."""

import sys

import pytest
from ray import cloudpickle

from verl.config.loader import load_config
from verl.protocol import DataProto
from verl.trainer.launch import exit_with, start_worker_groups
from verl.worker.base import Worker
from verl.worker.dispatch import Dispatch, register
from verl.workers import LocalWorkerGroup
from verl.workers.classes import ClassWithInitArgs
from verl.workers.ray import RayResourcePool, RayWorkerGroup, ResourcePoolManager, ensure_ray


class Host(Worker):
    def __init__(self, config: object, role: str, fail: bool = False) -> None:
        super().__init__()
        if fail:
            raise OSError("no place left")

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def look(self) -> int:
        return int("one")


def test_when_a_group_cannot_start_those_before_it_end() -> None:
    cloudpickle.register_pickle_by_value(sys.modules[__name__])  # actors cannot import test files
    pools = {name: RayResourcePool([1], use_gpu=False, name_prefix=name) for name in ("one", "two")}
    manager = ResourcePoolManager(pools, {"first": "one", "second": "two"})
    roles = {"first": Host, "second": Host}
    with ensure_ray(num_cpus=2):
        with pytest.raises(OSError, match="no place left"):
            start_worker_groups(load_config(), roles, manager, RayWorkerGroup, {"second": {"fail": True}})
        groups = start_worker_groups(load_config(), roles, manager, RayWorkerGroup, {})
        assert list(groups) == ["first", "second"]
        for group in groups.values():
            group.shutdown()
        manager.close()


def test_a_users_mistake_ends_in_one_line() -> None:
    def main() -> None:
        raise ValueError("data.train_files is missing: set it")

    with pytest.raises(SystemExit, match="^error: data.train_files is missing: set it$"):
        exit_with(main)


def test_a_mistake_in_a_reward_function_comes_with_its_own_traceback() -> None:
    def main() -> None:
        raise ValueError("row 0: no score") from RuntimeError("in a scoring process:\n  mine.py, line 2")

    with pytest.raises(SystemExit, match="^in a scoring process:\n  mine.py, line 2\nerror: row 0: no score$"):
        exit_with(main)


def test_what_a_worker_raised_keeps_its_traceback_and_place() -> None:
    group = LocalWorkerGroup(ray_cls_with_init=ClassWithInitArgs(Host, DataProto(), "host"), name_prefix="host")
    with pytest.raises(ValueError, match="invalid literal for int") as caught:
        exit_with(group.look)
    assert "raised by host.look on rank 0" in caught.value.__notes__[0]
