import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import ray
from ray import cloudpickle

from verl.workers.ray import RayResourcePool, RayWorkerGroup, ensure_ray


@pytest.fixture(scope="session", autouse=True)
def ray_session() -> Iterator[None]:
    """One Ray for all tests, with 4 CPUs whatever the machine has."""
    with ensure_ray(num_cpus=4):
        assert ray.is_initialized()
        yield


@pytest.fixture(scope="module")
def start(request: pytest.FixtureRequest) -> Iterator[Callable[..., Any]]:
    """`start(cls_with_args, processes=2, group_cls=RayWorkerGroup, **kwargs)` -> a group, ended after the module."""
    # Actors cannot import test files, so classes in them travel whole.
    cloudpickle.register_pickle_by_value(sys.modules[request.module.__name__])
    made: list[tuple[Any, RayResourcePool]] = []

    def start(cls: Any, processes: int = 2, group_cls: type = RayWorkerGroup, **kwargs: Any) -> Any:
        pool = RayResourcePool([processes], use_gpu=False, timeout_s=20)
        group = group_cls(resource_pool=pool, ray_cls_with_init=cls, **kwargs)
        made.append((group, pool))
        return group

    yield start
    for group, pool in made:
        group.shutdown()
        pool.close()
