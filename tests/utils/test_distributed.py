"""The process group of a process that is alone."""

import gc
from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist

from verl.utils.distributed import all_reduce_sum, group_of_one, rank, world_size


@pytest.fixture(autouse=True)
def alone() -> Iterator[None]:
    gc.collect()  # what other tests left
    assert not dist.is_initialized()
    yield
    assert not dist.is_initialized()


def test_it_is_shared_and_ends_with_its_last_holder() -> None:
    first = group_of_one("cpu")
    second = group_of_one("cpu")
    assert first is second is not None and dist.get_backend() == "gloo"
    assert (rank(), world_size(), all_reduce_sum(2.5)) == (0, 1, 2.5)
    total = torch.tensor([1.0, 2.0])
    dist.all_reduce(total)
    assert total.tolist() == [1.0, 2.0]
    del first
    assert dist.is_initialized()
    del second
    assert not dist.is_initialized()
    third = group_of_one("cpu")
    assert third is not None and dist.is_initialized()


def test_what_stands_on_it_ends_before_it_the_latest_first() -> None:
    ended = []
    group = group_of_one("cpu")
    assert group is not None
    for name in ("one", "two"):
        group.at_end.callback(lambda name=name: ended.append((name, dist.is_initialized())))
    del group
    assert ended == [("two", True), ("one", True)]


def test_the_group_of_others_is_left_alone() -> None:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    assert group_of_one("cpu") is None
    assert dist.is_initialized()
    dist.destroy_process_group()


def test_a_group_that_others_ended_stays_ended() -> None:
    group = group_of_one("cpu")
    dist.destroy_process_group()
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    del group
    assert dist.is_initialized()
    dist.destroy_process_group()
