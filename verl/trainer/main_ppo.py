"""`python -m verl.trainer.main_ppo key=value ... [--config file.yaml] [--dry-run]`: one run from the command line."""

import argparse
import logging
import sys
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from verl.algorithms.advantages import get_adv_estimator
from verl.config import PPOConfig
from verl.config.loader import load_config, to_yaml
from verl.config.validate import resolve, validate
from verl.models.loading import check_model_folder, load_model_tokenizer
from verl.trainer.ray_ppo import RayPPOTrainer
from verl.trainer.roles import default_roles
from verl.utils.backends import resolve_device
from verl.workers import LocalWorkerGroup
from verl.workers.ray import RayWorkerGroup, ResourcePoolManager, ensure_ray


def main(argv: Sequence[str] | None = None) -> dict[str, float]:
    """Parse, check, run. Returns the final metrics."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="see docs/config.md")
    parser.add_argument("--config", help="YAML file with the same keys; key=value overrides it")
    parser.add_argument("--dry-run", action="store_true", help="print the resolved config and stop")
    args = parser.parse_args(argv)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s: %(message)s", datefmt="%H:%M:%S")
    config = check(load_config(args.overrides, args.config))
    if args.dry_run:
        print(to_yaml(config), end="")
        return {}
    return run(config)


def check(config: PPOConfig) -> PPOConfig:
    """The resolved config. ValueError lists everything that is wrong with it; no model is loaded for that."""
    estimator = get_adv_estimator(config.algorithm.adv_estimator)
    config = resolve(config, needs_critic=estimator.needs_critic)
    validate(config, needs_critic=estimator.needs_critic, needs_groups=estimator.needs_groups)
    return config


def check_models(config: PPOConfig) -> None:
    """ValueError, without loading anything, when a model that the run needs cannot be read from where it should be."""
    models = [config.actor_rollout_ref.model]
    if config.critic.enable:
        models.append(config.critic.model)
    if config.reward.reward_model.enable:
        models.append(config.reward.reward_model.model)
    for path in dict.fromkeys(model.path for model in models):
        assert path is not None, "resolve() and validate() leave no model without a path"
        check_model_folder(path)


def placement(config: PPOConfig, roles: Iterable[str]) -> dict[str, Any]:
    """RayPPOTrainer's arguments that say where `roles` live: one pool shared by all, or this process."""
    if config.trainer.worker_group == "local":
        return {"ray_worker_group_cls": LocalWorkerGroup}
    pools = ResourcePoolManager(
        resource_pool_spec={"global_pool": [config.trainer.n_gpus_per_node] * config.trainer.nnodes},
        mapping=dict.fromkeys(map(str, roles), "global_pool"),
        use_gpu=resolve_device(config.trainer.device) == "cuda",
    )
    return {"resource_pool_manager": pools, "ray_worker_group_cls": RayWorkerGroup}


def session(config: PPOConfig) -> AbstractContextManager[Any]:
    """Ray while the block runs: a running session is used and left alone, one started here ends with the block."""
    if config.trainer.worker_group == "local":
        return nullcontext()
    return ensure_ray(num_cpus=config.trainer.n_gpus_per_node if config.trainer.nnodes == 1 else None)


def run(config: PPOConfig) -> dict[str, float]:
    """Build the trainer for a resolved config, train, and end what was started. Returns the final metrics."""
    check_models(config)
    tokenizer = load_model_tokenizer(config.actor_rollout_ref.model, chat_template=config.data.chat_template)
    roles = default_roles(config)
    # The trainer reads the data and tells its faults before Ray starts and models load.
    trainer = RayPPOTrainer(config, tokenizer, roles, **placement(config, roles))
    with session(config):
        trainer.init_workers()
        return trainer.fit()


if __name__ == "__main__":
    try:
        main()
    except (ValueError, FileNotFoundError) as error:
        # The user's own mistake: its message says what to do, the traceback does not.
        sys.exit(f"error: {error}")
