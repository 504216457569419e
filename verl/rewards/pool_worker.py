"""A scoring process: receives functions once, then calls, and answers each call as it ends.

It is started by `verl.rewards.pool` as a new Python (not a fork: the driver has threads and devices), without the
user's script being imported again.
"""

import asyncio
import os
import pickle
import signal
import sys
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from typing import Any

from verl.rewards.calls import Call, Outcome, call_now, call_together, failed

GRACE_S = 10.0
"""How long after its limit a call ends by itself, should the driver be gone and not end it."""

Numbered = Sequence[tuple[int, Call]]


def main(descriptor: int) -> None:
    """Serve the driver at the other end of `descriptor` until it closes it."""
    connection = Connection(descriptor)
    try:
        functions = pickle.loads(connection.recv_bytes())
    except Exception as error:
        connection.send_bytes(pickle.dumps(failed(error, keep_cause=False)))
        return
    connection.send_bytes(pickle.dumps(Outcome()))
    while True:
        try:
            calls: Numbered = pickle.loads(connection.recv_bytes())
        except EOFError:
            return
        _serve(connection, functions, calls)


def _serve(connection: Connection, functions: Sequence[tuple[Callable[..., Any], bool]], calls: Numbered) -> None:
    fn, is_async = functions[calls[0][1].function]
    process = os.getpid()

    def answer(position: int, outcome: Outcome) -> None:
        if os.getpid() != process:
            os._exit(0)  # the function forked, and this is the child coming back
        number = calls[position][0]
        connection.send_bytes(_packed(number, outcome))

    if is_async:
        _limit(max(call.timeout_s for _, call in calls))
        asyncio.run(call_together(fn, [call for _, call in calls], answer))
    else:
        for position, (_, call) in enumerate(calls):
            _limit(call.timeout_s)
            answer(position, call_now(fn, call))
    signal.setitimer(signal.ITIMER_REAL, 0)


def _packed(number: int, outcome: Outcome) -> bytes:
    sys.stdout.flush()
    sent = Outcome(outcome.value, outcome.failure, outcome.message, outcome.details)
    try:
        return pickle.dumps((number, sent))
    except Exception as error:
        return pickle.dumps((number, failed(error, keep_cause=False)))


def _limit(seconds: float) -> None:
    # The default action ends the process even while C code (a regex) holds the interpreter.
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, seconds + GRACE_S)
