"""Filling in and checking the configs of training without rollouts. Pure, like `verl.config.validate`."""

import copy
import logging
from collections.abc import Callable, Collection, Iterator
from typing import Any, TypeVar

from verl.config.errors import ConfigError
from verl.config.facts import Facts
from verl.config.offline import RewardModelTrainingConfig, SFTConfig
from verl.config.preference import PreferenceConfig
from verl.config.ranges import out_of_range
from verl.config.resolve import resolve_log_probs
from verl.config.tree import leaves, value_at
from verl.config.validate import LOGGERS, check_betas, check_resume, check_validation
from verl.config.validate_layout import check_processes

logger = logging.getLogger(__name__)

OfflineConfig = SFTConfig | RewardModelTrainingConfig | PreferenceConfig
Config = TypeVar("Config", bound=OfflineConfig)


def resolve_offline(config: Config) -> Config:
    """A copy in which no null means "as that other key says". Resolving it again changes nothing."""
    config = copy.deepcopy(config)
    if config.data.seed is None:
        config.data.seed = config.trainer.seed
    if isinstance(config, PreferenceConfig):
        policy = config.actor_rollout_ref
        if policy.actor.ppo_mini_batch_size is None:
            policy.actor.ppo_mini_batch_size = config.data.train_batch_size
        resolve_log_probs(policy.ref, policy.actor)
        optim = policy.actor.optim
    else:
        optim = config.optim
    optim.lr_warmup_steps = max(optim.lr_warmup_steps, 0)
    return config


def validate_offline(config: OfflineConfig, *, pairs_only: bool = True, given: Collection[str] = ()) -> None:
    """Refuse contradictions and impossible sizes.

    Args:
        config: resolved or not.
        pairs_only: whether the preference loss takes pairs (it lives in verl.algorithms).
        given: keys whose object the caller hands over: `data.train_files`, `data.val_files`, `model.path`.

    Raises:
        ConfigError: lists everything that is wrong.
    """
    config = resolve_offline(config)
    facts = Facts(given=given)
    problems = list(out_of_range(config))
    checks: list[Callable[[Any, Facts], Iterator[str]]] = [check_validation, check_resume, _inputs, _names, _optimizer]
    if not problems:  # with a number out of its range the arithmetic would be wrong as well
        checks += [check_processes, _sizes]
    problems += [problem for check in checks for problem in check(config, facts)]
    problems += _preference_problems(config, pairs_only) if isinstance(config, PreferenceConfig) else []
    if isinstance(config, RewardModelTrainingConfig) and config.model.use_remove_padding:
        problems.append("model.use_remove_padding=True: reward models read one text a row; leave it out")
    if problems:
        raise ConfigError(problems)
    for switch, size in _cuts(config):
        if value_at(config, switch) and value_at(config, size) is not None:
            logger.warning("%s has no effect: %s=True cuts micro-batches by tokens", size, switch)


def _cuts(config: OfflineConfig) -> list[tuple[str, str]]:
    """(cut by tokens, rows of a micro-batch): keys of which the first overrules the second."""
    if isinstance(config, PreferenceConfig):
        actor, ref = "actor_rollout_ref.actor.", "actor_rollout_ref.ref.log_prob_"
        return [
            (f"{actor}use_dynamic_bsz", f"{actor}ppo_micro_batch_size_per_gpu"),
            (f"{ref}use_dynamic_bsz", f"{ref}micro_batch_size_per_gpu"),
        ]
    return [("data.use_dynamic_bsz", "data.micro_batch_size_per_gpu")]


def _inputs(config: OfflineConfig, facts: Facts) -> Iterator[str]:
    if "data.train_files" not in facts.given and not config.data.train_files:
        yield "data.train_files is missing: set it to a parquet or JSON-lines file, or to a list of them"
    section = "actor_rollout_ref.model" if isinstance(config, PreferenceConfig) else "model"
    if "model.path" not in facts.given and not value_at(config, f"{section}.path"):
        yield f"{section}.path is missing: set it to a Hugging Face id, a local folder or a .gguf file"


def _names(config: OfflineConfig, facts: Facts) -> Iterator[str]:
    chosen: list[tuple[str, str, Collection[str]]] = [
        ("trainer.logger", name, LOGGERS) for name in config.trainer.logger
    ]
    chosen += [
        (path, value_at(config, path), leaf.choices) for path, leaf in leaves(type(config)).items() if leaf.choices
    ]
    for path, name, known in chosen:
        if name not in known:
            yield f"{path}={name}: expected one of {', '.join(known)}"


def _optimizer(config: OfflineConfig, facts: Facts) -> Iterator[str]:
    if isinstance(config, PreferenceConfig):
        yield from check_betas("actor_rollout_ref.actor.optim", config.actor_rollout_ref.actor.optim)
    else:
        yield from check_betas("optim", config.optim)


def _sizes(config: OfflineConfig, facts: Facts) -> Iterator[str]:
    batch, world = config.data.train_batch_size, config.trainer.nnodes * config.trainer.n_gpus_per_node
    path, size = "data.train_batch_size", batch
    if isinstance(config, PreferenceConfig):
        assert config.actor_rollout_ref.actor.ppo_mini_batch_size is not None
        path, size = "actor_rollout_ref.actor.ppo_mini_batch_size", config.actor_rollout_ref.actor.ppo_mini_batch_size
        if size > batch or batch % size:
            yield (
                f"{path}={size} must divide data.train_batch_size={batch}: "
                f"{batch} = {batch // size} x {size} + {batch % size}"
            )
    if size < world:
        yield f"{path}={size} rows for {world} processes: some would have nothing to train on"


def _preference_problems(config: PreferenceConfig, pairs_only: bool) -> Iterator[str]:
    name = config.algorithm.name
    if config.algorithm.precompute_ref_log_probs and not pairs_only:
        yield (
            f"algorithm.precompute_ref_log_probs=True, but algorithm.name={name} puts answers after the prompts of "
            "other rows of the batch, which are not known ahead: leave it out"
        )
    if config.actor_rollout_ref.ref.unload and config.algorithm.precompute_ref_log_probs:
        yield (
            "actor_rollout_ref.ref.unload=True reads the reference from disk for every batch, and "
            "algorithm.precompute_ref_log_probs=True needs it only once: leave the first one out"
        )
