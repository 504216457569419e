"""Runs a group's calls on one worker: brings its share of unfinished batches, calls, and wraps the result."""

import logging
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from verl.protocol import DataProto, DataProtoFuture
from verl.utils.activity import doing
from verl.utils.events import event
from verl.worker.base import Worker
from verl.worker.dispatch import JoinRows, registered_methods, split_rows_for
from verl.worker.layout import MeshPosition
from verl.worker.messages import Call, CallSite, Reply
from verl.worker.rows import RowPlan, has_columns, same_rows, wants_own_split

QUESTIONS = ("mesh_position", "memory", "memory_usage")
"""Methods that tell something and do nothing: neither the log nor the memory's figures mention them."""


@dataclass(frozen=True)
class Host:
    """A worker under the name of its role, on a node."""

    role: str
    worker: Worker
    node: str

    @staticmethod
    def build(role: str, cls: type[Worker], args: tuple[Any, ...], kwargs: Mapping[str, Any], node: str) -> "Host":
        """Make the worker. TypeError if its `__init__` forgot that of `Worker`."""
        worker = cls(*args, **kwargs)
        if not hasattr(worker, "rank"):
            raise TypeError(f"role {role!r}: {cls.__name__}.__init__ must call super().__init__()")
        return Host(role, worker, node)

    def site(self, method: str) -> CallSite:
        return CallSite(self.role, method, self.worker.rank, self.node, os.getpid())

    def invoke(self, method: str, call: Call) -> Reply:
        """Run a registered method. Ranks that do not collect on its mesh reply with None: nobody reads their value.

        What the worker does meanwhile is seen in the log (`verl.worker.<role>`, DEBUG), by `verl.utils.debug.who_waits`
        and in the worker's `peak_memory`.
        """
        if method in QUESTIONS:
            return self._invoke(method, call)
        logger, started, origin = logging.getLogger(f"verl.worker.{self.role}"), time.perf_counter(), call.origin
        with (
            doing(method, self.role, self.worker.rank, origin.step, origin.job),
            self.worker.peak_memory.phase(method),
        ):
            event(logger, f"{method} begins", level=logging.DEBUG)
            reply = self._invoke(method, call)
            event(logger, f"{method} completed", seconds=time.perf_counter() - started, level=logging.DEBUG)
        return reply

    def _invoke(self, method: str, call: Call) -> Reply:
        spec = registered_methods(type(self.worker))[method]
        position = self.worker.mesh_position(spec.mesh) if spec.dispatcher.mesh else None
        splits = position if spec.dispatcher.splits_rows else None
        call, plan = _with_batches(call, splits)
        value = getattr(self.worker, method)(*call.args, **call.kwargs)
        if spec.dispatcher.collectors_only and position is not None and not position.collect:
            value = None
        return Reply(value, plan)


def _with_batches(call: Call, position: MeshPosition | None) -> tuple[Call, RowPlan | None]:
    """The call with this rank's shards (or, without a position, whole results) in place of futures."""
    if not any(isinstance(value, DataProtoFuture) for _, value in call.named()):
        return call, None
    if position is None:
        return call.map(_resolved), None
    shards = _finished_shards(call, position)
    if shards is not None:
        return shards, None
    sent = split_rows_for([position.dp_rank], position.dp_size, call.map(_resolved))
    return sent.calls[0], sent.plan


def _resolved(value: Any) -> Any:
    return value.get() if isinstance(value, DataProtoFuture) else value


def _finished_shards(call: Call, position: MeshPosition) -> Call | None:
    """The call with shard d of every future for rank d, if that is what a split of the whole would give.

    It is when both groups have the same number of shards, the futures hold their rows in input order without padding,
    and no batch wants another split. Then the other shards are never fetched. All ranks come to the same answer.
    """
    if any(has_columns(value) for _, value in call.named()):
        return None
    futures = [value for _, value in call.named() if isinstance(value, DataProtoFuture)]
    if any(len(future.futures) != position.dp_size for future in futures):
        return None
    shards: dict[int, Any] = {}
    for future in futures:
        if not isinstance(future.collect, JoinRows):
            return None
        reply: Any
        (reply,) = future.resolve([future.futures[position.dp_rank]], None)
        plan = future.collect.plan_of(reply)
        if plan is not None and not plan.in_order:
            return None
        if isinstance(reply.value, DataProto) and wants_own_split(reply.value):
            return None
        shards[id(future)] = reply.value
    local = call.map(lambda value: shards[id(value)] if isinstance(value, DataProtoFuture) else value)
    batches = {name: value for name, value in local.named() if has_columns(value)}
    if batches:
        same_rows(batches)
    return local
