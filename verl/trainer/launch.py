"""What every run shares: its command line, where its processes live, and how they start."""

import argparse
import logging
import sys
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import Any, Literal, TypeVar

from verl.config import RunConfig
from verl.config.device_map import ACTOR, Place, RolePlace, default_place, places_of
from verl.config.loader import load, to_yaml
from verl.config.trainer import TrainerConfig
from verl.utils.activity import activities
from verl.utils.backends import resolve_device
from verl.workers import LocalWorkerGroup
from verl.workers.ray import (
    RayClassWithInitArgs,
    RayResourcePool,
    RayWorkerGroup,
    ResourcePoolManager,
    create_colocated_worker_cls,
    ensure_ray,
)

logger = logging.getLogger("verl.trainer")

Config = TypeVar("Config", bound=RunConfig)


def command_line(
    root: type[Config],
    check: Callable[[Config], Config],
    run: Callable[[Config], dict[str, float]],
    description: str | None,
    argv: Sequence[str] | None,
    defaults: Sequence[str] = (),
) -> dict[str, float]:
    """Parse `argv` (None: the process's own) into a config, check it, run it. Returns the final metrics.

    `defaults`, as `key=value`, give way to a file's keys and to those of the command line.
    """
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="see docs/config.md")
    parser.add_argument("--config", help="YAML file with the same keys; key=value overrides it")
    parser.add_argument("--dry-run", action="store_true", help="print the resolved config and stop")
    args = parser.parse_intermixed_args(argv)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s: %(message)s", datefmt="%H:%M:%S")
    config = check(load(root, args.overrides, args.config, defaults=defaults))
    if args.dry_run:
        print(to_yaml(config), end="")
        return {}
    return run(config)


def exit_with(main: Callable[[], Any]) -> None:
    """Run a `main`. A user's own mistake ends it with its message (it says what to do) and no traceback, but for that
    of a reward function. What a worker raised keeps its own, and the role, rank and node where it happened."""
    try:
        main()
    except (ValueError, FileNotFoundError) as error:
        if hasattr(error, "raised_by"):
            raise
        # Of a scoring process there is a traceback as text, which is the user's own function's.
        details = f"{error.__cause__}\n" if isinstance(error.__cause__, RuntimeError) else ""
        sys.exit(f"{details}error: {error}")


def placement(config: RunConfig, roles: Iterable[str], pools: Any = None, group_cls: Any = None) -> tuple[Any, Any]:
    """(resource pool manager, class of worker groups) that say where `roles` live; what is given stays.

    By default as `config.trainer` says: in this process, which needs no pool, or on the pools of `trainer.device_map`;
    without a map, one pool is shared by all.
    """
    if group_cls is None:
        group_cls = LocalWorkerGroup if config.trainer.worker_group == "local" else RayWorkerGroup
    if pools is None and group_cls is not LocalWorkerGroup:
        pools = pools_for(config, [str(role) for role in roles])
    return pools, group_cls


def pools_for(config: RunConfig, roles: Iterable[str]) -> ResourcePoolManager:
    """A pool for each place that `roles` have. Roles that the device map does not know live with the actor."""
    places = {role: role_place(config, role) for role in roles}
    own = [role for role, where in places.items() if where.own_process]
    by_place: dict[Place, list[str]] = {}
    for role, where in places.items():
        by_place.setdefault(where.place, []).append(role)
    pools: dict[str, RayResourcePool] = {}
    mapping: dict[Hashable, str] = {}
    for place, members in by_place.items():
        name = "global_pool" if len(by_place) == 1 else "+".join(members)
        shared = len([role for role in members if role not in own])
        pools[name] = RayResourcePool(
            [len(place.devices)] * len(place.nodes),
            use_gpu=place.kind == "cuda" or (place.kind == "auto" and resolve_device() == "cuda"),
            max_colocate_count=len(members) - shared + bool(shared),
            name_prefix=name,
            placement_strategy=place.strategy,
            timeout_s=config.trainer.placement_timeout_s,
            nodes=place.nodes,
        )
        mapping |= dict.fromkeys(members, name)
    return ResourcePoolManager(pools, mapping, own_process=own)


def role_place(config: RunConfig, role: str) -> RolePlace:
    """Where a role's processes run. Raises ConfigError for a wrong `trainer.device_map`."""
    if not isinstance(config.trainer, TrainerConfig):
        return RolePlace(default_place(config.trainer))
    places = places_of(config.trainer)
    return places.get(role, RolePlace(places[ACTOR].place))


def session(config: RunConfig, pools: ResourcePoolManager | None, address: str | None = None) -> Any:
    """Ray while the block runs: a running session is used and left alone, one started here ends with the block."""
    activities()  # removes what the killed processes of former runs left
    if config.trainer.worker_group == "local":
        return nullcontext()
    # Ray on this machine alone is told of as many CPUs as there are processes, since each of them takes one.
    return ensure_ray(
        num_cpus=pools.cpus_on_one_node() if pools is not None and address is None else None,
        address=address,
        timeout_s=config.trainer.ray_wait_register_center_timeout,
    )


@contextmanager
def running(trainer: Any, address: str | None = None) -> Iterator[None]:
    """The trainer's workers with their models, in a Ray session if it needs one; all that was started here ends."""
    with session(trainer.config, trainer.resource_pool_manager, address):
        try:
            trainer.init_workers()
            yield
        finally:
            trainer.shutdown()


def start_worker_groups(
    config: RunConfig,
    roles: Mapping[str, Any],
    resource_pool_manager: Any,
    ray_worker_group_cls: Any,
    given: Mapping[str, Mapping[str, Any]],
) -> dict[str, Any]:
    """A worker group for each role (role -> Worker subclass), pool by pool; their models are still to be loaded.

    `given` are further arguments of a role's workers, by name. When a group fails to start, those before it end.
    """
    if resource_pool_manager is not None:
        resource_pool_manager.create_resource_pool()
        resource_pool_manager.reserve()
    together: dict[Hashable, tuple[Any, dict[str, RayClassWithInitArgs]]] = {}
    for role, worker_cls in roles.items():
        pool = resource_pool_manager and resource_pool_manager.get_resource_pool(role)
        further = given.get(role, {})
        init = RayClassWithInitArgs(worker_cls, config=_role_config(config, pool), role=role, **further)
        alone = pool is not None and role in resource_pool_manager.own_process
        together.setdefault((id(pool), role if alone else None), (pool, {}))[1][role] = init
    groups: dict[str, Any] = {}
    try:
        for pool, class_dict in together.values():
            group = ray_worker_group_cls(
                resource_pool=pool,
                ray_cls_with_init=create_colocated_worker_cls(class_dict=class_dict),
                timeout_s=config.trainer.worker_timeout_s,
            )
            groups |= group.spawn(prefix_set=class_dict.keys())
    except BaseException:
        shut_down(groups, resource_pool_manager)
        raise
    return groups


def _role_config(config: RunConfig, pool: RayResourcePool | None) -> RunConfig:
    """The config as the workers of a pool see it: on the pool's devices."""
    if pool is None:
        return config
    device: Literal["cpu", "cuda"] = "cuda" if pool.use_gpu else "cpu"
    return replace(config, trainer=replace(config.trainer, device=device))  # type: ignore[type-var]


def load_models(groups: Mapping[str, Any]) -> None:
    """Load each role's model, one role after another."""
    for role, group in groups.items():
        logger.info("loading the model of role %s", role)
        group.init_model()


def shut_down(groups: Mapping[str, Any], resource_pool_manager: Any) -> None:
    """End the worker groups and give their resources back; the models are gone with them."""
    for group in groups.values():
        group.shutdown()
    if resource_pool_manager is not None:
        resource_pool_manager.close()


def due(frequency: int, step: int, last: bool) -> bool:
    """Whether what happens every `frequency` steps, and at the end, happens after `step`; -1 never, 0 at the end."""
    return frequency >= 0 and (last or (frequency > 0 and step % frequency == 0))
