"""Scoring beside the driver's own work."""

from collections.abc import Callable
from threading import Thread

from verl.protocol import DataProto
from verl.rewards.scores import RewardResult

RewardFn = Callable[[DataProto], RewardResult]


def launch(reward_fn: RewardFn, batch: DataProto, timeout_s: float) -> RewardFn:
    """Start scoring `batch` in a thread; the function that is returned waits for it, and takes the batch once more.

    What it returns or raises is what `reward_fn(batch)` does, or a TimeoutError after `timeout_s` of waiting.
    """
    results: list[RewardResult] = []
    errors: list[BaseException] = []

    def score() -> None:
        try:
            results.append(reward_fn(batch))
        except BaseException as error:
            errors.append(error)

    # A daemon: a function that cannot be stopped must not keep a failed run from ending.
    thread = Thread(target=score, name="rewards", daemon=True)
    thread.start()

    def collect(_: DataProto) -> RewardResult:
        thread.join(timeout_s)
        if errors:
            raise errors[0]
        if not results:
            raise TimeoutError(f"the driver waited {timeout_s:g} s for rewards (reward.launch_async)")
        return results[0]

    return collect
