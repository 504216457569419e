"""What a config must fulfil to be spread over processes and devices; part of `verl.config.validate`."""

from collections.abc import Iterator, Mapping

from verl.config.device_map import (
    ACTOR,
    FSDP_SECTIONS,
    ROLLOUT,
    RolePlace,
    default_place,
    implied_keys,
    places_of,
)
from verl.config.facts import Facts
from verl.config.ppo import PPOConfig
from verl.config.trainer import BaseTrainerConfig, RunConfig, TrainerConfig
from verl.config.tree import leaves, value_at


def check_role_processes(config: PPOConfig, facts: Facts) -> Iterator[str]:
    places = places_of(config.trainer)
    if config.trainer.worker_group == "local":
        yield from check_one_process(config)
        if config.trainer.device_map:
            yield "trainer.worker_group=local runs everything in one process; trainer.device_map needs worker_group=ray"
    on_gpus = sorted(role for role, where in places.items() if where.place.kind == "cuda")
    if config.trainer.device == "cpu" and on_gpus:
        yield f"trainer.device=cpu, but trainer.device_map puts {', '.join(on_gpus)} on GPUs: leave one of them out"
    for role, section in FSDP_SECTIONS.items():
        yield from _shards(f"{section}.fsdp_size", config, *_process_sum(role, places, config.trainer))
    world, sum_text = _process_sum(ACTOR, places, config.trainer)
    size, n = config.actor_rollout_ref.actor.ppo_mini_batch_size, config.actor_rollout_ref.rollout.n
    if size * n < world:
        yield (
            f"{sum_text}, but a mini-batch has only ppo_mini_batch_size {size} prompts x n {n} = {size * n} samples: "
            "some processes would have nothing to train on"
        )


def process_count(trainer: BaseTrainerConfig) -> tuple[int, str]:
    """Worker processes of a run without a device map, and how the number comes about."""
    nodes, per_node = trainer.nnodes, trainer.n_gpus_per_node
    return (
        nodes * per_node,
        f"trainer.nnodes {nodes} x trainer.n_gpus_per_node {per_node} = {nodes * per_node} processes",
    )


def _process_sum(role: str, places: Mapping[str, RolePlace], trainer: TrainerConfig) -> tuple[int, str]:
    """Processes of a role, and how the number comes about."""
    place = places[role].place
    if place == default_place(trainer):
        return process_count(trainer)
    nodes, each, world = len(place.nodes), len(place.devices), place.world_size
    where = f"trainer.device_map gives {role} {each} devices"
    return (
        world,
        f"{where} on each of {nodes} nodes = {world} processes" if nodes > 1 else f"{where} = {world} processes",
    )


def check_rollout_engine(config: PPOConfig, facts: Facts) -> Iterator[str]:
    rollout = config.actor_rollout_ref.rollout
    path, size = "actor_rollout_ref.rollout.tensor_model_parallel_size", rollout.tensor_model_parallel_size
    world, sum_text = _process_sum(ROLLOUT, places_of(config.trainer), config.trainer)
    if world % size:
        yield f"{path}={size} does not divide the number of processes: {sum_text}"
    if rollout.name == "hf" and size > 1:
        yield f"{path}={size}: transformers generates with the whole model in each process; use rollout.name=vllm"
    prompt, response, limit = rollout.prompt_length, rollout.response_length, rollout.max_model_len
    assert prompt is not None and response is not None and limit is not None
    if limit < prompt + response:
        yield (
            f"actor_rollout_ref.rollout.max_model_len={limit}: a sequence may take data.max_prompt_length {prompt} + "
            f"data.max_response_length {response} = {prompt + response} tokens"
        )
    unknown = sorted(set(rollout.engine_kwargs) - {"vllm"})
    if unknown:
        yield f"actor_rollout_ref.rollout.engine_kwargs.{unknown[0]}: the one engine that takes arguments is vllm"


def check_processes(config: RunConfig, facts: Facts) -> Iterator[str]:
    """For runs whose roles all share the same processes."""
    if config.trainer.worker_group == "local":
        yield from check_one_process(config)
    for path in leaves(type(config)):
        if path.endswith(".fsdp_size"):
            yield from _shards(path, config, *process_count(config.trainer))


def check_one_process(config: RunConfig) -> Iterator[str]:
    world, sum_text = process_count(config.trainer)
    if world > 1:
        yield f"trainer.worker_group=local runs in one process, but {sum_text}: use worker_group=ray"


def _shards(path: str, config: RunConfig, world: int, sum_text: str) -> Iterator[str]:
    shards = value_at(config, path)
    if shards != -1 and world % shards:
        yield f"{path}={shards} does not divide the number of processes: {sum_text}"


def check_device_map(config: PPOConfig, facts: Facts) -> Iterator[str]:
    for path, value in implied_keys(config.trainer.device_map).items():
        if value_at(config, path) != value:
            yield f"trainer.device_map means {path}={value}, but {path}={value_at(config, path)} is set: leave one out"
