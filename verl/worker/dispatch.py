"""How a method of a group becomes calls on its ranks, and how their results become one value.

Each mode is a pair of pure functions in `DISPATCHERS`: `split(layout, call)` gives one call per rank, `collect(layout,
plan)` gives a function from the replies to the value. That function can be pickled, so that another process can join
the shards of a result itself.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import Any, TypeVar

from verl.protocol import DataProto, DataProtoFuture
from verl.worker.layout import Layout
from verl.worker.messages import Call, Reply
from verl.worker.rows import RowPlan, has_columns, plan_batches

Method = TypeVar("Method", bound=Callable[..., Any])
Collect = Callable[[list[Any]], Any]
"""Joins replies, in the order in which they were asked for."""
_SPEC = "__verl_method__"


class Dispatch(Enum):
    """How arguments are split and results joined. "List of n" means that every argument is a list of n entries."""

    RANK_ZERO = "rank_zero"
    """Rank 0 alone runs, with the arguments as they are; the result is its value."""
    ONE_TO_ALL = "one_to_all"
    """Every rank gets the same arguments; the result is the list of all values."""
    ALL_TO_ALL = "all_to_all"
    """Lists of world_size: rank r gets entry r; the result is the list of all values."""
    DP_COMPUTE = "dp_compute"
    """Lists of dp_size: shard d gets entry d; the result is the list with one value per shard."""
    DP_COMPUTE_PROTO = "dp_compute_proto"
    """`DataProto`s are split over the shards, other arguments go to all; the results are joined in input order."""
    DP_COMPUTE_PROTO_WITH_FUNC = "dp_compute_proto_with_func"
    """As DP_COMPUTE_PROTO, with a function for the first argument, which goes to all."""
    DP_COMPUTE_METRIC = "dp_compute_metric"
    """Arguments as in DP_COMPUTE_PROTO; the result is the list with one value per shard, for the caller to merge."""


class Execute(Enum):
    """Which ranks run: all, or rank 0 alone; its value is then the result."""

    ALL = "all"
    RANK_ZERO = "rank_zero"


@dataclass(frozen=True)
class Sent:
    """One call per rank, and how the rows of the batches in it were split, if they were."""

    calls: list[Call]
    plan: RowPlan | None = None


@dataclass(frozen=True)
class Dispatcher:
    """A mode.

    Attributes:
        split: (layout, call) -> what each rank gets.
        collect: (layout, plan) -> (replies -> value).
        mesh: whether the layout is that of the method's mesh; else all that matters is the number of ranks.
        collectors_only: whether replies come from one rank of each shard only, in the order of the shards.
        splits_rows: whether batches are split over the shards; a batch that is still a future is split by the ranks.
    """

    split: Callable[[Layout, Call], Sent]
    collect: Callable[[Layout, RowPlan | None], Collect]
    mesh: bool = False
    collectors_only: bool = False
    splits_rows: bool = False


@dataclass(frozen=True)
class JoinRows:
    """The collector of split batches. `plan` is None if the ranks split for themselves, or if nothing was split."""

    plan: RowPlan | None

    def __call__(self, replies: list[Any]) -> Any:
        parts = [reply.value for reply in replies]
        if all(part is None for part in parts):
            return None
        for shard, part in enumerate(parts):
            if not isinstance(part, DataProto):
                raise TypeError(
                    f"the rank that collects for shard {shard} of {len(parts)} returned {type(part).__name__}, but "
                    f"DP_COMPUTE_PROTO joins DataProto (or None from all): use DP_COMPUTE_METRIC for other values"
                )
        plan = self.plan_of(replies[0])
        return DataProto.concat(parts) if plan is None else plan.join(parts)

    def plan_of(self, reply: Reply) -> RowPlan | None:
        return reply.plan if self.plan is None else self.plan


@dataclass(frozen=True)
class MethodSpec:
    """What `register` says about a method."""

    dispatcher: Dispatcher
    execute_mode: Execute
    blocking: bool
    mesh: str
    checks_arguments: bool
    """Whether the group's method takes the arguments of the worker's; a user's own `dispatch_fn` may take others."""


def register(
    dispatch_mode: Dispatch | Mapping[str, Callable[..., Any]] = Dispatch.ALL_TO_ALL,
    execute_mode: Execute = Execute.ALL,
    blocking: bool = True,
    mesh: str = "train",
) -> Callable[[Method], Method]:
    """Make a method of a `Worker` callable on a whole group. An override of it in a subclass need not repeat this.

    Args:
        dispatch_mode: a mode, or `{"dispatch_fn": f, "collect_fn": g}`: `f(layout, *args, **kwargs)` returns (args,
            kwargs) in which every argument is a list with one entry per rank, `g(layout, values)` gets all values.
        execute_mode: `Execute.RANK_ZERO` runs on rank 0 alone.
        blocking: if false, the group's method returns a future at once (`DataProtoFuture` or `WorkerFuture`). It can
            be handed to a method of another group, and then the data does not pass through the driver.
        mesh: the mesh whose data-parallel ranks share the work, see `Worker.register_mesh`.

    Raises ValueError for a combination that has no meaning, TypeError for a mode that is not one.
    """
    dispatcher = _dispatcher(dispatch_mode)
    if dispatch_mode is Dispatch.RANK_ZERO:
        execute_mode = Execute.RANK_ZERO
    if execute_mode is Execute.RANK_ZERO and dispatcher.collectors_only:
        raise ValueError(f"{dispatch_mode} shares the work out over ranks, so execute_mode=RANK_ZERO cannot go with it")
    spec = MethodSpec(dispatcher, execute_mode, blocking, mesh, isinstance(dispatch_mode, Dispatch))

    def decorate(method: Method) -> Method:
        setattr(method, _SPEC, spec)
        return method

    return decorate


def registered_methods(worker_cls: type) -> dict[str, MethodSpec]:
    """The registered methods of a class, by name. An override without `register` has the spec of what it overrides."""
    specs: dict[str, MethodSpec] = {}
    for cls in worker_cls.__mro__:
        for name, attribute in vars(cls).items():
            if hasattr(attribute, _SPEC):
                specs.setdefault(name, getattr(attribute, _SPEC))
    return specs


def split_rows_for(shards: Sequence[int], dp_size: int, call: Call) -> Sent:
    """The calls of the named shards out of `dp_size`: batches split as `RowPlan` says, everything else whole."""
    batches = {name: value for name, value in call.named() if has_columns(value)}
    if not batches:
        return Sent([call] * len(shards))
    plan = plan_batches(batches, dp_size)
    padded = call.map(lambda value: plan.pad(value) if has_columns(value) else value)

    def take(dp_rank: int, value: Any) -> Any:
        return plan.take(value, dp_rank) if has_columns(value) else value

    return Sent([padded.map(partial(take, shard)) for shard in shards], plan)


# ---- splitting ----


def _same(layout: Layout, call: Call) -> Sent:
    return Sent([call] * layout.world_size)


def _entry_per_rank(layout: Layout, call: Call) -> Sent:
    return Sent(_entries(call, layout.world_size, "rank"))


def _entry_per_shard(layout: Layout, call: Call) -> Sent:
    calls = _entries(call, layout.dp_size, "data-parallel shard")
    return Sent([calls[position.dp_rank] for position in layout.positions])


def _rows(layout: Layout, call: Call) -> Sent:
    if any(isinstance(value, DataProtoFuture) for _, value in call.named()):
        return _same(layout, call)
    sent = split_rows_for(range(layout.dp_size), layout.dp_size, call)
    return Sent([sent.calls[position.dp_rank] for position in layout.positions], sent.plan)


def _function_and_rows(layout: Layout, call: Call) -> Sent:
    if not call.args or not callable(call.args[0]):
        given = type(call.args[0]).__name__ if call.args else "nothing"
        raise TypeError(f"DP_COMPUTE_PROTO_WITH_FUNC needs a function as the first positional argument, not {given}")
    return _rows(layout, call)


def _by_user(dispatch_fn: Callable[..., Any], layout: Layout, call: Call) -> Sent:
    args, kwargs = dispatch_fn(layout, *call.args, **call.kwargs)
    return _entry_per_rank(layout, Call(tuple(args), dict(kwargs)))


def _entries(call: Call, size: int, what: str) -> list[Call]:
    for name, value in call.named():
        given = f"{len(value)} entries" if isinstance(value, list | tuple) else f"a {type(value).__name__}"
        if given != f"{size} entries":
            raise ValueError(f"{name} must be a list of {size} entries, one per {what}, but it is {given}")
    return [call.map(lambda values, i=i: values[i]) for i in range(size)]  # type: ignore[misc]


# ---- collecting ----


def _list(layout: Layout, plan: RowPlan | None) -> Collect:
    return _values


def _joined_rows(layout: Layout, plan: RowPlan | None) -> Collect:
    return JoinRows(plan)


def _values(replies: Sequence[Reply]) -> list[Any]:
    return [reply.value for reply in replies]


def only_value(replies: list[Any]) -> Any:
    """The value of the one rank that ran."""
    (reply,) = replies
    return reply.value


def _collect_by_user(collect_fn: Callable[..., Any], layout: Layout, plan: RowPlan | None) -> Collect:
    return partial(_call_user, collect_fn, layout)


def _call_user(collect_fn: Callable[..., Any], layout: Layout, replies: Sequence[Reply]) -> Any:
    return collect_fn(layout, _values(replies))


def _per_shard(
    split: Callable[[Layout, Call], Sent],
    collect: Callable[[Layout, RowPlan | None], Collect],
    splits_rows: bool = True,
) -> Dispatcher:
    return Dispatcher(split, collect, mesh=True, collectors_only=True, splits_rows=splits_rows)


DISPATCHERS: dict[Dispatch, Dispatcher] = {
    Dispatch.RANK_ZERO: Dispatcher(_same, _list),
    Dispatch.ONE_TO_ALL: Dispatcher(_same, _list),
    Dispatch.ALL_TO_ALL: Dispatcher(_entry_per_rank, _list),
    Dispatch.DP_COMPUTE: _per_shard(_entry_per_shard, _list, splits_rows=False),
    Dispatch.DP_COMPUTE_PROTO: _per_shard(_rows, _joined_rows),
    Dispatch.DP_COMPUTE_PROTO_WITH_FUNC: _per_shard(_function_and_rows, _joined_rows),
    Dispatch.DP_COMPUTE_METRIC: _per_shard(_rows, _list),
}


def _dispatcher(mode: Dispatch | Mapping[str, Callable[..., Any]]) -> Dispatcher:
    if isinstance(mode, Dispatch):
        return DISPATCHERS[mode]
    if not isinstance(mode, Mapping):
        raise TypeError(f"dispatch_mode must be a Dispatch or a dict of functions, not {type(mode).__name__}")
    if mode.keys() != {"dispatch_fn", "collect_fn"}:
        raise ValueError(f"a dispatch_mode of one's own has the keys dispatch_fn and collect_fn, not {sorted(mode)}")
    return Dispatcher(partial(_by_user, mode["dispatch_fn"]), partial(_collect_by_user, mode["collect_fn"]), mesh=True)
