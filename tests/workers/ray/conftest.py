import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import ray
from ray import cloudpickle

from verl.workers.ray import RayResourcePool, RayWorkerGroup, ensure_ray

# Ray kills actors when the machine as a whole is short of memory, whoever uses it.
os.environ["RAY_memory_monitor_refresh_ms"] = "0"  # noqa: SIM112


@pytest.fixture(scope="session", autouse=True)
def ray_session() -> Iterator[None]:
    """One Ray for all tests, with 4 CPUs whatever the machine has."""
    with ensure_ray(num_cpus=4):
        assert ray.is_initialized()
        yield


@contextmanager
def starter(module: str) -> Iterator[Callable[..., Any]]:
    # Actors cannot import test files, so classes in them travel whole.
    cloudpickle.register_pickle_by_value(sys.modules[module])
    groups: list[Any] = []
    pools: list[RayResourcePool] = []

    def start(
        cls: Any,
        processes: int = 2,
        group_cls: type = RayWorkerGroup,
        pool: RayResourcePool | None = None,
        **kwargs: Any,
    ) -> Any:
        pool = pool or RayResourcePool([processes], use_gpu=False, timeout_s=20)
        pools.append(pool)
        groups.append(group_cls(resource_pool=pool, ray_cls_with_init=cls, **kwargs))
        return groups[-1]

    yield start
    for group in groups:
        group.shutdown()
    for pool in pools:
        pool.close()


@pytest.fixture(scope="module")
def start(request: pytest.FixtureRequest) -> Iterator[Callable[..., Any]]:
    """`start(cls_with_args, processes=2, group_cls=RayWorkerGroup, **kwargs)` -> a group, ended after the module."""
    with starter(request.module.__name__) as start:
        yield start


@pytest.fixture
def start_once(request: pytest.FixtureRequest) -> Iterator[Callable[..., Any]]:
    """The same, with groups that end after the test."""
    with starter(request.module.__name__) as start:
        yield start
