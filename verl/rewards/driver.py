"""Calls that are made in the driver: functions that hold what lives there, or wait for a server."""

import asyncio
from collections.abc import Callable, Sequence
from threading import Event, Thread
from typing import Any

from verl.rewards.calls import Call, Outcome, call_now, call_together
from verl.rewards.functions import RewardFunction

_LOOK_S = 0.5


def run_in_driver(
    functions: Sequence[RewardFunction], calls: list[Call], stop: Event, stop_at_failure: bool = False
) -> list[Outcome | None]:
    """Call one after the other; async functions of rows all at once, functions of a batch with a deadline.

    None stands for calls given up since `stop` was set, which with `stop_at_failure` a failure here does as well.
    """
    outcomes: list[Outcome | None] = [None] * len(calls)

    def done(place: int, outcome: Outcome) -> None:
        outcomes[place] = outcome
        if stop_at_failure and outcome.failure is not None:
            stop.set()

    for number, function in enumerate(functions):
        mine = [place for place, call in enumerate(calls) if call.function == number]
        if mine and function.is_async and function.kind == "row":

            def ended(position: int, outcome: Outcome, mine: list[int] = mine) -> None:
                done(mine[position], outcome)

            asyncio.run(_call_together(function.fn, [calls[place] for place in mine], ended, stop))
            continue
        for place in mine:
            if not stop.is_set():
                run = call_now if function.kind == "row" else _call_within
                done(place, run(function.fn, calls[place]))
    return outcomes


async def _call_together(
    fn: Callable[..., Any], calls: Sequence[Call], done: Callable[[int, Outcome], None], stop: Event
) -> None:
    work = asyncio.ensure_future(call_together(fn, calls, done))
    while not work.done() and not stop.is_set():
        await asyncio.wait([work], timeout=_LOOK_S)
    if work.done():
        work.result()
    # Else the end of asyncio.run cancels it.


def _call_within(fn: Callable[..., Any], call: Call) -> Outcome:
    """Call in a thread of its own: Python cannot stop it, but the run ends with an error instead of waiting for ever.

    Raises TimeoutError.
    """
    found: list[Outcome] = []
    thread = Thread(target=lambda: found.append(call_now(fn, call)), daemon=True)
    thread.start()
    thread.join(call.timeout_s)
    if not found:
        name = getattr(fn, "__name__", type(fn).__name__)
        raise TimeoutError(
            f"the reward function {name}, which scores whole batches, took longer than reward.batch_timeout_s="
            f"{call.timeout_s:g} s"
        )
    return found[0]
