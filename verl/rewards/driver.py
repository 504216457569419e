"""Calls that are made in the driver: functions that hold what lives there, or wait for a server."""

import asyncio
from collections.abc import Callable, Sequence
from threading import Thread
from typing import Any

from verl.rewards.calls import Call, Outcome, call_now, call_together
from verl.rewards.functions import RewardFunction


def run_in_driver(functions: Sequence[RewardFunction], calls: list[Call]) -> list[Outcome]:
    """Call one after the other; async functions of rows all at once, functions of a batch with a deadline."""
    outcomes: list[Outcome | None] = [None] * len(calls)
    for number, function in enumerate(functions):
        mine = [place for place, call in enumerate(calls) if call.function == number]
        if mine and function.is_async and function.kind == "row":

            def done(position: int, outcome: Outcome, mine: list[int] = mine) -> None:
                outcomes[mine[position]] = outcome

            asyncio.run(call_together(function.fn, [calls[place] for place in mine], done))
            continue
        for place in mine:
            run = call_now if function.kind == "row" else _call_within
            outcomes[place] = run(function.fn, calls[place])
    return [outcome for outcome in outcomes if outcome is not None]


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
