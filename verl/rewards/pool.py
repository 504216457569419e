"""Scoring processes: reward functions run there side by side, and one that hangs is ended for real."""

import pickle
import time
import weakref
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from multiprocessing.connection import wait
from threading import Lock
from typing import Any

import cloudpickle

from verl.rewards.calls import Call, Outcome, timed_out
from verl.rewards.functions import RewardFunction
from verl.utils.processes import end_python, start_python

START_TIMEOUT_S = 120.0
ASYNC_GRACE_S = 5.0
"""What an async call gets beyond its limit before its process, whose event loop must be stuck, is ended."""
_CHUNK = 32
_LOOK_S = 0.5

Chunk = list[int]


class ScoringPool:
    """Up to `num_workers` processes that hold `functions`. They start at the first call and stay.

    Functions travel by cloudpickle, so lambdas and functions of a script work; what they change in their surroundings
    is not seen here. Calls of an async function are sent many at a time and run together.

    Raises ValueError for a function that cannot be sent.
    """

    def __init__(self, functions: Sequence[RewardFunction], num_workers: int) -> None:
        self._asynchronous = [function.is_async for function in functions]
        self._payload = _pickled(functions)
        self._num_workers = num_workers
        self._workers: list[_Process] = []
        self._lock = Lock()
        weakref.finalize(self, _end_all, self._workers)

    def run(self, calls: Sequence[Call], stop_at_failure: bool = False) -> list[Outcome | None]:
        """The outcome of each call, by position, whatever order they end in.

        A call that takes longer than its limit, or whose process dies, fails alone: its process is ended (with all that
        it started) and the other calls go on in a new one. None stands for calls given up, with `stop_at_failure`.

        Raises RuntimeError when a new process cannot load the functions.
        """
        with self._lock:
            try:
                return self._run(calls, stop_at_failure)
            finally:
                # After an error: also what did not start, else the next run would begin with it.
                for worker in [worker for worker in self._workers if worker.pending or not worker.loaded]:
                    self._drop(worker)

    def close(self) -> None:
        """End all processes. The next `run` starts new ones."""
        _end_all(self._workers)

    def _run(self, calls: Sequence[Call], stop_at_failure: bool) -> list[Outcome | None]:
        outcomes: list[Outcome | None] = [None] * len(calls)
        queue = deque(self._chunks(calls))
        while queue or any(worker.pending for worker in self._workers):
            if stop_at_failure and any(outcome and outcome.failure for outcome in outcomes):
                return outcomes
            self._assign(queue, calls)
            busy = [worker for worker in self._workers if worker.pending]
            if not busy:  # all had died between two runs: start new ones
                continue
            remaining = min(worker.deadline for worker in busy) - time.monotonic()
            wait([worker.connection for worker in busy], timeout=min(max(remaining, 0), _LOOK_S))
            for worker in busy:
                for number, outcome in worker.answers():
                    outcomes[number] = outcome
                    worker.pending.remove(number)
                    worker.deadline = self._deadline(worker.pending, calls)
                failure = self._failure(worker, calls)
                if failure is not None:
                    self._replace(worker, failure, outcomes, queue)
        return outcomes

    def _chunks(self, calls: Sequence[Call]) -> list[Chunk]:
        """Calls of one function that one process takes at once."""
        chunks = []
        for function, is_async in enumerate(self._asynchronous):
            numbers = [number for number, call in enumerate(calls) if call.function == function]
            share = -(-len(numbers) // (self._num_workers if is_async else 4 * self._num_workers))
            size = max(share if is_async else min(share, _CHUNK), 1)
            chunks += [numbers[start : start + size] for start in range(0, len(numbers), size)]
        return chunks

    def _assign(self, queue: deque[Chunk], calls: Sequence[Call]) -> None:
        idle = [worker for worker in self._workers if not worker.pending]
        wanted = min(self._num_workers - len(self._workers), len(queue) - len(idle))
        started = [_Process(self._payload) for _ in range(wanted)]  # all before the first is waited for
        self._workers += started
        idle += started
        while queue and idle:
            worker, chunk = idle.pop(), queue.popleft()
            if not worker.give([(number, calls[number]) for number in chunk]):
                self._drop(worker)  # it died between two runs
                queue.appendleft(chunk)
                continue
            worker.deadline = self._deadline(worker.pending, calls)

    def _deadline(self, pending: Chunk, calls: Sequence[Call]) -> float:
        """When the process must have answered next."""
        if not pending:
            return float("inf")
        call = calls[pending[0]]
        grace = ASYNC_GRACE_S if self._asynchronous[call.function] else 0.0
        return time.monotonic() + call.timeout_s + grace

    def _failure(self, worker: "_Process", calls: Sequence[Call]) -> Outcome | None:
        if not worker.pending:
            return None
        code = worker.process.poll()
        if code is not None:
            how = f"signal {-code}" if code < 0 else f"exit code {code}"
            return Outcome(failure="crash", message=f"the scoring function ended its process ({how})")
        overdue = time.monotonic() >= worker.deadline
        return timed_out(calls[worker.pending[0]].timeout_s) if overdue else None

    def _replace(
        self, worker: "_Process", failure: Outcome, outcomes: list[Outcome | None], queue: deque[Chunk]
    ) -> None:
        """End a process; the call to blame fails, the others that it held are asked again."""
        self._drop(worker)
        for number, outcome in worker.answers():  # what it had still said
            outcomes[number] = outcome
            worker.pending.remove(number)
        if not worker.pending:
            return
        together = worker.together and len(worker.pending) > 1
        if together:  # they ran at the same time: ask one by one to find the one
            queue.extend([number] for number in worker.pending)
        else:
            outcomes[worker.pending[0]] = failure
            if worker.pending[1:]:
                queue.appendleft(worker.pending[1:])
        worker.pending = []

    def _drop(self, worker: "_Process") -> None:
        worker.end()
        self._workers.remove(worker)


class _Process:
    """One scoring process and what it has been asked."""

    def __init__(self, payload: tuple[bytes, list[bool]]) -> None:
        functions, asynchronous = payload
        self.process, self.connection = start_python("verl.rewards.pool_worker:main")
        self.pending: Chunk = []
        self.deadline = float("inf")
        self.together = False
        self.loaded = False
        self._asynchronous = asynchronous
        with suppress(OSError):  # it is gone already: the wait for its answer says so
            self.connection.send_bytes(functions)

    def give(self, calls: list[tuple[int, Call]]) -> bool:
        """Send calls; False when the process is gone."""
        self._wait_until_loaded()
        try:
            self.connection.send_bytes(pickle.dumps(calls))
        except OSError:
            return False
        self.pending = [number for number, _ in calls]
        self.together = self._asynchronous[calls[0][1].function]
        return True

    def answers(self) -> list[tuple[int, Outcome]]:
        """What has arrived since the last look."""
        found: list[tuple[int, Outcome]] = []
        try:
            while self.connection.poll():
                found.append(pickle.loads(self.connection.recv_bytes()))
        except (EOFError, OSError):
            pass  # the process is gone; poll() of it says how
        return found

    def end(self) -> None:
        """End the process and whatever it started."""
        end_python(self.process)

    def _wait_until_loaded(self) -> None:
        if self.loaded:
            return
        problem = f"did not start within {START_TIMEOUT_S:g} s"
        try:
            if self.connection.poll(START_TIMEOUT_S):
                loaded: Outcome = pickle.loads(self.connection.recv_bytes())
                problem = loaded.message
        except (EOFError, OSError):
            problem = "ended while it started"
        if problem:
            raise RuntimeError(
                f"a scoring process cannot load the reward functions: {problem}; functions of a module must be "
                "importable from there, or set reward.num_workers=0 to score in the driver, without time limits"
            )
        self.loaded = True


def _end_all(workers: list[_Process]) -> None:
    while workers:
        workers.pop().end()


def _pickled(functions: Sequence[RewardFunction]) -> tuple[bytes, list[bool]]:
    asynchronous = [function.is_async for function in functions]
    for function in functions:
        try:
            cloudpickle.dumps(function.fn)
        except Exception as error:
            raise ValueError(
                f"the reward function {function.name!r} cannot be sent to a scoring process ({error}): keep files, "
                "locks and devices out of it, or set reward.num_workers=0 to score in the driver, without time limits"
            ) from error
    pairs: list[tuple[Any, bool]] = [(function.fn, function.is_async) for function in functions]
    return cloudpickle.dumps(pairs), asynchronous
