"""The actors behind one group, or behind the groups of several roles."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from threading import Lock
from typing import Any

import ray
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from verl.protocol import DataProtoFuture
from verl.worker.messages import Call, CallSite
from verl.workers.classes import ClassWithInitArgs
from verl.workers.errors import GroupStoppedError
from verl.workers.group import Pending
from verl.workers.ray.actor import Place, WorkerActor
from verl.workers.ray.resource_pool import RayResourcePool, Slot
from verl.workers.ray.waiting import GroupCall, Limits, RemoteCall, Waiting, all_done

_SMALL = (bool, int, float, str, type(None), DataProtoFuture)


class RayProcesses:
    """One actor per slot of a pool, with a worker for each role in it.

    The first failure that leaves ranks behind ends all actors; later calls are refused with that reason. A pool that is
    their own (`own_pool`) gives its resources back then.
    """

    def __init__(
        self,
        pool: RayResourcePool,
        classes: Mapping[str, ClassWithInitArgs],
        label: str,
        limits: Limits,
        start: Limits,
        own_pool: bool = False,
    ) -> None:
        self.world_size = pool.world_size
        self._pool = pool
        self._own_pool = own_pool
        self._label = label
        self._limits = limits
        self._stopped: GroupStoppedError | None = None
        self._actors: list[Any] = []
        self._places = [Place("", "", 0, 0)] * pool.world_size
        self._unfinished: list[GroupCall] = []
        # Threads of the driver may call at the same time. All ranks must get their calls in the same order, or they
        # would wait for each other in different collectives.
        self._lock = Lock()
        pool.claim()
        try:
            slots = pool.slots()
            self._actors = [self._actor(rank, slot) for rank, slot in enumerate(slots)]
            # The actors' own nodes and ids come first, so that every later message can name them.
            self._places = self._await([actor.place.options(num_returns=2).remote() for actor in self._actors], start)
            packed = (ray.put({role: (c.cls, c.args, c.kwargs) for role, c in classes.items()}),)
            self._await(
                [
                    actor.start.options(num_returns=2).remote(self._env(rank, slot), packed)
                    for rank, (actor, slot) in enumerate(zip(self._actors, slots, strict=True))
                ],
                start,
            )
        except BaseException as error:
            self._stop(error)
            raise

    def submit(self, role: str, method: str, calls: Mapping[int, Call], sources: Sequence[int]) -> Pending:
        with self._lock:
            return self._submit(role, method, calls, sources)

    def _submit(self, role: str, method: str, calls: Mapping[int, Call], sources: Sequence[int]) -> Pending:
        if self._stopped is not None:
            raise GroupStoppedError(f"{role}.{method}: {self._stopped}") from self._stopped.__cause__
        sent: list[RemoteCall] = []
        try:
            for rank, call in _put_shared(calls).items():
                value, status = self._actors[rank].call.options(num_returns=2).remote(role, method, call)
                sent.append(RemoteCall(status, self._site(role, method, rank), value))
        except Exception as error:
            if sent:  # some ranks run and would wait for the others for ever
                self._stop(error)
            raise
        self._unfinished = [calls for calls in self._unfinished if not all_done(calls)]
        waiting = Waiting(tuple(sent), len(sources), self._limits, tuple(self._unfinished), self._stop)
        self._unfinished.append(tuple(replace(call, value=None) for call in sent))  # results need not live on
        values = {call.site.rank: call.value for call in sent}
        return Pending([values[rank] for rank in sources], waiting, waiting.ready)

    def shutdown(self) -> None:
        self._stop(None)

    def _stop(self, reason: BaseException | None) -> None:
        """Kill all actors and refuse further calls."""
        if self._stopped is not None:
            return
        why = "was shut down" if reason is None else f"was ended after {type(reason).__name__}: {reason}"
        self._stopped = GroupStoppedError(f"the group {self._label!r} {why}")
        self._stopped.__cause__ = reason
        self._unfinished = []
        if ray.is_initialized():
            for actor in self._actors:
                ray.kill(actor)
        self._pool.release()
        if self._own_pool:
            self._pool.close()

    def _actor(self, rank: int, slot: Slot) -> Any:
        return WorkerActor.options(  # type: ignore[attr-defined]
            num_cpus=1,
            num_gpus=1 / self._pool.max_colocate_count if self._pool.use_gpu else 0,
            scheduling_strategy=PlacementGroupSchedulingStrategy(slot.group, slot.bundle),
            lifetime="detached" if self._pool.detached else None,
            name=f"{self._pool.name}:{self._label}:{rank}" if self._pool.detached else None,
        ).remote(self._label, rank, self._limits.timeout_s)

    def _env(self, rank: int, slot: Slot) -> dict[str, str]:
        return {
            "RANK": str(rank),
            "WORLD_SIZE": str(self.world_size),
            "LOCAL_RANK": str(slot.local_rank),
            "LOCAL_WORLD_SIZE": str(slot.local_world_size),
            "MASTER_ADDR": self._places[0].address,
            "MASTER_PORT": str(self._places[0].port),
        }

    def _await(self, refs: Sequence[tuple[ray.ObjectRef, ray.ObjectRef]], limits: Limits) -> list[Any]:
        sites = [self._site(self._label, "__init__", rank) for rank in range(self.world_size)]
        calls = tuple(RemoteCall(status, site, value) for (value, status), site in zip(refs, sites, strict=True))
        return Waiting(calls, len(calls), limits)([value for value, _ in refs], None)

    def _site(self, role: str, method: str, rank: int) -> CallSite:
        place = self._places[rank]
        return CallSite(role, method, rank, place.node, place.pid)


def _put_shared(calls: Mapping[int, Call]) -> dict[int, Call]:
    """The calls with what several ranks get put into the object store once, instead of once for each of them."""
    values = [value for call in calls.values() for _, value in call.named() if not isinstance(value, _SMALL)]
    uses = Counter(map(id, values))
    shared = {id(value): value for value in values if uses[id(value)] > 1}
    refs = {key: ray.put(value) for key, value in shared.items()}
    return {rank: call.map(lambda value: refs.get(id(value), value)) for rank, call in calls.items()}
