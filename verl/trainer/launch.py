"""What every run shares: its command line, where its processes live, and how they start."""

import argparse
import logging
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, TypeVar

from torch import nn

from verl.config import RunConfig
from verl.config.loader import load, to_yaml
from verl.utils.backends import resolve_device
from verl.workers import LocalWorkerGroup
from verl.workers.ray import (
    RayClassWithInitArgs,
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
) -> dict[str, float]:
    """Parse `argv` (None: the process's own) into a config, check it, run it. Returns the final metrics."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="see docs/config.md")
    parser.add_argument("--config", help="YAML file with the same keys; key=value overrides it")
    parser.add_argument("--dry-run", action="store_true", help="print the resolved config and stop")
    args = parser.parse_args(argv)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s: %(message)s", datefmt="%H:%M:%S")
    config = check(load(root, args.overrides, args.config))
    if args.dry_run:
        print(to_yaml(config), end="")
        return {}
    return run(config)


def exit_with(main: Callable[[], Any]) -> None:
    """Run a `main`. A user's own mistake ends it with its message (it says what to do) and no traceback."""
    try:
        main()
    except (ValueError, FileNotFoundError) as error:
        sys.exit(f"error: {error}")


def placement(config: RunConfig, roles: Iterable[str]) -> dict[str, Any]:
    """A trainer's arguments that say where `roles` live: one pool shared by all, or this process."""
    if config.trainer.worker_group == "local":
        return {"ray_worker_group_cls": LocalWorkerGroup}
    pools = ResourcePoolManager(
        resource_pool_spec={"global_pool": [config.trainer.n_gpus_per_node] * config.trainer.nnodes},
        mapping=dict.fromkeys(map(str, roles), "global_pool"),
        use_gpu=resolve_device(config.trainer.device) == "cuda",
        timeout_s=config.trainer.ray_wait_register_center_timeout,
    )
    return {"resource_pool_manager": pools, "ray_worker_group_cls": RayWorkerGroup}


def session(config: RunConfig, address: str | None = None) -> AbstractContextManager[Any]:
    """Ray while the block runs: a running session is used and left alone, one started here ends with the block."""
    if config.trainer.worker_group == "local":
        return nullcontext()
    return ensure_ray(
        num_cpus=config.trainer.n_gpus_per_node if config.trainer.nnodes == 1 and address is None else None,
        address=address,
        timeout_s=config.trainer.ray_wait_register_center_timeout,
    )


@contextmanager
def running(trainer: Any, address: str | None = None) -> Iterator[None]:
    """The trainer's workers with their models, in a Ray session if it needs one; all that was started here ends."""
    with session(trainer.config, address):
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
    modules: Mapping[str, nn.Module],
) -> dict[str, Any]:
    """A worker group for each role (role -> Worker subclass), pool by pool; their models are still to be loaded."""
    if resource_pool_manager is not None:
        resource_pool_manager.create_resource_pool()
    pools: dict[int, tuple[Any, dict[str, RayClassWithInitArgs]]] = {}
    for role, worker_cls in roles.items():
        pool = resource_pool_manager and resource_pool_manager.get_resource_pool(role)
        given = {"module": modules[role]} if role in modules else {}
        init = RayClassWithInitArgs(worker_cls, config=config, role=role, **given)
        pools.setdefault(id(pool), (pool, {}))[1][role] = init
    groups: dict[str, Any] = {}
    for pool, class_dict in pools.values():
        group = ray_worker_group_cls(
            resource_pool=pool,
            ray_cls_with_init=create_colocated_worker_cls(class_dict=class_dict),
            timeout_s=config.trainer.worker_timeout_s,
        )
        groups |= group.spawn(prefix_set=class_dict.keys())
    return groups


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
