"""One sender and two receivers, as threads of one process: gloo does not mind."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from verl.rollout.weight_channel import WeightChannel, fit_for_nccl

WEIGHTS = {
    "embed": torch.arange(12.0).view(4, 3),
    "odd": torch.tensor([1, 2, 3], dtype=torch.int8),  # what follows must be aligned all the same
    "half": torch.tensor([0.5, 1.5], dtype=torch.bfloat16),
    "empty": torch.empty(0, 2),
    "scalar": torch.tensor(7.0),
}


@pytest.fixture
def run() -> Iterator[Callable[..., list[Any]]]:
    """`run(send, receive)` -> what each member's function of its channel returned, or the error that it raised."""
    store = dist.TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False)

    def member(rank: int, size: int, act: Callable[[WeightChannel], Any]) -> Any:
        mine = dist.TCPStore("127.0.0.1", store.port, None, False)
        try:
            return act(WeightChannel(mine, rank, size, "cpu", timeout_s=10))
        except Exception as error:
            return error

    def execute(*acts: Callable[[WeightChannel], Any]) -> list[Any]:
        with ThreadPoolExecutor(len(acts)) as pool:
            futures = [pool.submit(member, rank, len(acts), act) for rank, act in enumerate(acts)]
            return [future.result() for future in futures]

    yield execute


def take(channel: WeightChannel) -> tuple[int, dict[str, Tensor]]:
    version, weights = channel.receive()
    return version, dict(weights)


@pytest.mark.parametrize("bucket_bytes", [1, 50, 64, 10_000])
def test_every_tensor_arrives_whatever_the_bucket(run: Callable[..., list[Any]], bucket_bytes: int) -> None:
    sent, *received = run(lambda channel: channel.send(WEIGHTS.items(), 3, bucket_bytes), take, take)
    assert sent == 48 + 3 + 4 + 0 + 4
    for version, weights in received:
        assert version == 3
        assert list(weights) == list(WEIGHTS)
        for name, tensor in WEIGHTS.items():
            assert weights[name].dtype == tensor.dtype
            assert torch.equal(weights[name], tensor)


def test_one_update_after_another(run: Callable[..., list[Any]]) -> None:
    def send_two(channel: WeightChannel) -> None:
        for version in (1, 2):
            channel.send([("w", torch.full((2,), float(version)))], version, 8)

    _, got = run(send_two, lambda channel: [take(channel), take(channel)])
    assert [(version, weights["w"].tolist()) for version, weights in got] == [(1, [1.0, 1.0]), (2, [2.0, 2.0])]


def test_a_failing_trainer_is_told_to_the_engines(run: Callable[..., list[Any]]) -> None:
    def broken() -> Iterator[tuple[str, Tensor]]:
        yield "fine", torch.ones(2)
        raise ValueError("no such layer")

    sender, receiver = run(lambda channel: channel.send(broken(), 1, 100), take)
    assert isinstance(sender, ValueError)
    assert isinstance(receiver, RuntimeError)
    assert "the trainer stopped sending its weights: ValueError: no such layer" in str(receiver)


def test_an_engine_that_refuses_a_weight_does_not_hold_the_trainer_up(run: Callable[..., list[Any]]) -> None:
    def refuse_first(channel: WeightChannel) -> str:
        _, weights = channel.receive()
        name, _ = next(weights)
        channel.drain(weights)
        _, again = take(channel)
        return f"{name}, then {len(again)}"

    def send_twice(channel: WeightChannel) -> int:
        channel.send(WEIGHTS.items(), 1, 16)
        return channel.send(WEIGHTS.items(), 2, 16)

    assert run(send_twice, refuse_first) == [59, "embed, then 5"]


@pytest.mark.parametrize(
    ("members", "fit"),
    [
        (["GPU-1", "GPU-2", "GPU-3"], True),
        (["GPU-1", "GPU-2", "GPU-1"], False),  # a rollout with processes of its own on an actor's GPU
        (["cpu", "GPU-2"], False),
        (["cpu", "cpu"], False),
    ],
)
def test_nccl_wants_a_gpu_for_each_member(members: list[str], fit: bool) -> None:
    assert fit_for_nccl(members) is fit


def test_a_bucket_needs_a_size(run: Callable[..., list[Any]]) -> None:
    (error,) = run(lambda channel: channel.send(WEIGHTS.items(), 1, 0))
    assert str(error) == "bucket_bytes must be at least 1, not 0"
