"""One call of a reward function and what came of it. Imports no torch: scoring processes start sooner."""

import asyncio
import inspect
import traceback
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

Failure = Literal["error", "timeout", "crash"]


@dataclass(frozen=True)
class Call:
    """`functions[function](*args, **kwargs)`, to be done within `timeout_s` seconds."""

    function: int
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)
    timeout_s: float = 30.0


@dataclass(frozen=True)
class Outcome:
    """What a call returned, or why it did not: `failure` with a `message`, and the traceback or cause of an error."""

    value: Any = None
    failure: Failure | None = None
    message: str = ""
    details: str = ""
    cause: BaseException | None = None


def failed(error: BaseException, keep_cause: bool = True) -> Outcome:
    """The outcome of a call that raised `error`."""
    return Outcome(
        failure="error",
        message=f"the scoring function raised {type(error).__name__}: {error}",
        details="".join(traceback.format_exception(error)),
        cause=error if keep_cause else None,
    )


def timed_out(seconds: float) -> Outcome:
    return Outcome(failure="timeout", message=f"the scoring function took longer than {seconds:g} s and was stopped")


def call_now(fn: Callable[..., Any], call: Call) -> Outcome:
    """Call `fn` in this thread; a coroutine is run to its end, or cancelled at the call's time limit."""
    try:
        value = fn(*call.args, **call.kwargs)
        if inspect.isawaitable(value):
            return asyncio.run(_limited(value, call))
        return Outcome(value)
    except (Exception, SystemExit) as error:
        return failed(error)


async def call_together(fn: Callable[..., Any], calls: Sequence[Call], done: Callable[[int, Outcome], None]) -> None:
    """Run an async function for all calls at once; `done(position, outcome)` follows each as it ends."""

    async def one(position: int, call: Call) -> None:
        done(position, await _limited(fn(*call.args, **call.kwargs), call))

    await asyncio.gather(*(one(position, call) for position, call in enumerate(calls)))


async def _limited(awaitable: Awaitable[Any], call: Call) -> Outcome:
    work = asyncio.ensure_future(awaitable)
    done, _ = await asyncio.wait([work], timeout=call.timeout_s)
    if not done:
        work.cancel()
        return timed_out(call.timeout_s)
    error = work.exception()
    return Outcome(work.result()) if error is None else failed(error)
