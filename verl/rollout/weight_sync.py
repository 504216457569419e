"""From the trainer's weights to those of the rollout engine, and whose turn it is to hold the device's memory."""

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from verl.rollout.base import RolloutEngine
from verl.utils.metrics import Max, Mean, Metrics

Weights = Iterable[tuple[str, Tensor]]
"""Full tensors under their Hugging Face names, made one at a time."""


def in_buckets(weights: Weights, bucket_bytes: int) -> Iterator[list[tuple[str, Tensor]]]:
    """Weights in lists of at most `bucket_bytes`, in order; a larger tensor is a list of its own.

    A list is filled when it is asked for. The caller that wants it freed before the next one must drop it.
    """
    if bucket_bytes < 1:
        raise ValueError(f"bucket_bytes must be at least 1, not {bucket_bytes}")
    bucket: list[tuple[str, Tensor]] = []
    held = 0
    for name, tensor in weights:
        if bucket and held + tensor.nbytes > bucket_bytes:
            full, bucket, held = bucket, [], 0
            yield full
            del full
        bucket.append((name, tensor))
        held += tensor.nbytes
    if bucket:
        yield bucket


def sync_weights(weights: Weights, rollout: RolloutEngine, version: int, bucket_bytes: int) -> Metrics:
    """Bring `rollout` to `weights`, gathering one bucket at a time; never is a second whole model held.

    Returns `perf/sync_bytes` (what the engine was given) and `perf/sync_bytes_per_second`.
    """
    given = 0

    def counted() -> Iterator[tuple[str, Tensor]]:
        nonlocal given
        for bucket in in_buckets(weights, bucket_bytes):
            bucket.reverse()
            while bucket:
                name, tensor = bucket.pop()
                given += tensor.nbytes
                yield name, tensor
                del tensor

    start = time.perf_counter()
    rollout.update_weights(counted(), version)
    seconds = time.perf_counter() - start
    return sync_metrics(given, seconds)


def sync_metrics(sent: int, seconds: float) -> Metrics:
    """What is logged of an update of `sent` bytes that took `seconds`."""
    return {"perf/sync_bytes": Max(float(sent)), "perf/sync_bytes_per_second": Mean(float(sent), seconds)}


def check_weights(weights: Weights, rollout: RolloutEngine, dtype: torch.dtype) -> None:
    """Compare every weight with the engine's own. RuntimeError naming those that differ by more than rounding.

    Costs a second gathering of all weights: for finding faults, not for every day.
    """
    tolerance = 16 * torch.finfo(dtype).eps
    wrong = {name: error for name, error in rollout.weight_errors(weights).items() if not error <= tolerance}
    if wrong:
        # NaN first: it is equal to nothing, and would leave the order to chance.
        worst = sorted(wrong, key=lambda name: (wrong[name] == wrong[name], -wrong[name]))[:5]
        listed = ", ".join(f"{name} ({wrong[name]:.1e})" for name in worst)
        raise RuntimeError(
            f"{len(wrong)} weights of the rollout engine are not the trainer's (relative difference above "
            f"{tolerance:.1e}; nan: not found): {listed}{', ...' if len(wrong) > len(worst) else ''}"
        )


@contextmanager
def generating(rollout: RolloutEngine, sync: Callable[[], object]) -> Iterator[None]:
    """The order in which trainer and rollout engine share the memory of a device.

        weights wake -> sync -> KV cache wakes -> generate (the body) -> sleep

    The KV cache takes what is left, so it comes last: after `sync`, in which the trainer's weights may be on the device
    beside the engine's, and go when the config offloads them.

    Args:
        sync: brings the trainer's weights; called when the engine's were lost in its sleep.
    """
    rollout.wake_up(["weights"])
    if not rollout.has_weights:
        sync()
    rollout.wake_up(["kv_cache"])
    try:
        yield
    finally:
        rollout.sleep()
