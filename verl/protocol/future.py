"""A batch that is still being computed, in shards, somewhere else."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from verl.protocol.data_proto import DataProto


@dataclass
class DataProtoFuture:
    """The result of a non-blocking call on a group of workers.

    Another group can take `futures` (one handle per data-parallel shard, such as a Ray object reference) and `collect`
    and fetch the shards itself, so that the data never passes through the driver. It can be pickled if its parts can.

    Attributes:
        futures: one opaque handle per shard.
        collect: joins the resolved shards: drops pad rows, restores the order of the rows that went in.
        resolve: (handles, seconds or None) -> shards, in the order of the handles. It raises TimeoutError when the
            time passes and the worker's own exception when it failed.
        ready: (handles) -> whether all shards are there; never waits. Without it `done` is a RuntimeError.
    """

    futures: list[Any]
    collect: Callable[[list[DataProto]], DataProto]
    resolve: Callable[[list[Any], float | None], list[DataProto]]
    ready: Callable[[list[Any]], bool] | None = None
    _result: DataProto | None = field(default=None, init=False, repr=False)

    def get(self, timeout_s: float | None = None) -> DataProto:
        """Wait for all shards, `timeout_s` seconds at most, and join them. Later calls return the same object."""
        if self._result is None:
            shards = self.resolve(self.futures, timeout_s)
            if len(shards) != len(self.futures):
                raise ValueError(f"resolve returned {len(shards)} shards for {len(self.futures)} futures")
            self._result = self.collect(shards)
        return self._result

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_result": None}  # who receives it fetches what it needs, by the handles

    def done(self) -> bool:
        """Whether `get` would return at once."""
        if self._result is not None:
            return True
        if self.ready is None:
            raise RuntimeError("this DataProtoFuture cannot tell whether it is done: it was made without `ready`")
        return self.ready(self.futures)
