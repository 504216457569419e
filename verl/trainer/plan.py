"""What a run is about to start, before it starts: which role runs where, and what it needs there.

Memory is in bytes per process, and counts what stays: weights, gradients and the optimizer's two moments, and the KV
cache that vLLM reserves. Activations come on top.
"""

import logging
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from verl.config import FSDPConfig, ModelConfig, PPOConfig
from verl.config.device_map import ACTOR, ROLE_NAMES, default_place
from verl.models.size import parameter_count
from verl.trainer.launch import role_place
from verl.trainer.roles import Role
from verl.utils.backends import resolve_device, resolve_dtype
from verl.utils.memory import GIB, gpu_memory, total_memory
from verl.utils.text import aligned
from verl.workers.ray.cluster import alive_nodes, gpus_of

logger = logging.getLogger("verl.trainer")

PROCESS_BYTES = 400 * 2**20
"""What a worker process on the CPU takes before it has a model: Python, PyTorch and Ray."""


@dataclass(frozen=True)
class RolePlan:
    """A line of the plan. `where` is equal for roles that share devices; None is a figure that nobody knows yet."""

    role: str
    worker: str
    processes: int
    devices: str
    node: str
    device: str
    where: str
    weights: int | None = None
    training: int | None = None
    kv_cache: int | None = None

    @property
    def total(self) -> int:
        return sum(size or 0 for size in (self.weights, self.training, self.kv_cache))


def announce(config: PPOConfig, roles: Mapping[str, Any], modules: Mapping[str, nn.Module], pools: Any) -> None:
    """Log the plan of a run and check it: devices that exist, memory that suffices. ValueError says what is wrong.

    Args:
        config: resolved.
        roles: role -> Worker subclass.
        modules: models that are handed over, by role.
        pools: the ResourcePoolManager, with Ray running; None is a run in this process.
    """
    if pools is not None:
        pools.create_resource_pool()
        check_devices(config, roles)
    plans = plan_run(config, roles, modules, pools)
    logger.info("the plan:\n%s", table(plans))
    if pools is None or len(alive_nodes()) == 1:
        check_memory(plans, memory_per_process(plans))
        processes, cores = _processes_on_cpu(plans), os.cpu_count() or 1
        if processes > cores:
            logger.warning("%d worker processes share the %d CPU cores of this machine", processes, cores)


def plan_run(
    config: PPOConfig,
    roles: Mapping[str, Any],
    modules: Mapping[str, nn.Module],
    pools: Any = None,
) -> list[RolePlan]:
    """A line for each role; arguments as in `announce`."""
    return [_role_plan(config, role, worker, modules, pools) for role, worker in roles.items()]


def table(plans: Sequence[RolePlan]) -> str:
    """The plan as text, a line for each role."""
    header = ("role", "class", "processes", "devices", "node", "weights", "gradients + optimizer", "KV cache")
    rows: list[tuple[str, ...]] = [header]
    for plan in plans:
        sizes = [_size(size) for size in (plan.weights, plan.training, plan.kv_cache)]
        rows.append((plan.role, plan.worker, str(plan.processes), plan.devices, plan.node, *sizes))
    return "\n".join(aligned(rows))


def check_memory(plans: Sequence[RolePlan], capacity: Mapping[str, int]) -> None:
    """ValueError when the roles of a device cannot fit on it.

    Args:
        capacity: bytes that one process may have, by device kind ("cuda", "cpu"); a kind that is missing is unknown.
    """
    for where in dict.fromkeys(plan.where for plan in plans):
        members = [plan for plan in plans if plan.where == where]
        limit, needed = capacity.get(members[0].device), sum(plan.total for plan in members)
        if members[0].device == "cpu":
            needed += PROCESS_BYTES
        if limit is not None and needed > limit:
            shares = ", ".join(f"{plan.role} {_size(plan.total)}" for plan in members if plan.total)
            if members[0].device == "cpu":
                shares = f"{shares}{', ' if shares else ''}the process itself {_size(PROCESS_BYTES)}"
            raise ValueError(
                f"the roles on {members[0].devices} need at least {_size(needed)} for each process ({shares}), and "
                f"there are {_size(limit)}: use more devices (trainer.n_gpus_per_node, trainer.device_map), on the CPU "
                "fewer processes, a smaller dtype (fsdp_config.model_dtype), or on CUDA param_offload and "
                "optimizer_offload"
            )


def check_devices(config: PPOConfig, roles: Iterable[str]) -> None:
    """ValueError when `trainer.device_map` asks for a GPU or a node that the cluster does not have. Needs Ray."""
    for role in roles:
        place, named = role_place(config, role).place, _name_in_map(config, role)
        for node in place.nodes:
            numbers = [int(device.rpartition(":")[2]) for device in place.devices if device.startswith("cuda:")]
            count, where = gpus_of(node)  # also for places on CPUs: the node must be there
            missing = [number for number in numbers if number >= count]
            if missing:
                raise ValueError(
                    f"trainer.device_map gives {named} cuda:{missing[0]}, but {where} has {count} GPUs"
                    f"{f' (cuda:0 to cuda:{count - 1})' if count else ''}: name devices that exist"
                )
            default = place == default_place(config.trainer)
            if place.kind == "cuda" and default and not count and len(alive_nodes()) == 1:
                raise ValueError(f"trainer.device=cuda, but {where} has no GPU: use trainer.device=cpu or auto")
            on_one_node = place.strategy == "STRICT_PACK" and not default
            if place.kind == "cuda" and on_one_node and len(place.devices) > count:
                raise ValueError(
                    f"trainer.device_map gives {named} {len(place.devices)} GPUs of one node, but {where} has {count}: "
                    "ask for fewer, for type: cpu, or for several nodes (node: [0, 1], or strategy: PACK)"
                )


def _name_in_map(config: PPOConfig, role: str) -> str:
    """What the map calls a role, or else the actor, with which the role then lives."""
    names = {ROLE_NAMES[name]: name for name in config.trainer.device_map}
    return names.get(role, names.get(ACTOR, ACTOR))


def memory_per_process(plans: Sequence[RolePlan]) -> dict[str, int]:
    """Bytes by device kind, as far as this process can see: of one GPU, and of this machine over its processes.

    Only for runs on this machine alone; elsewhere nodes may be larger.
    """
    capacity = {"cpu": total_memory() // max(_processes_on_cpu(plans), 1)}
    if torch.cuda.is_available():
        capacity["cuda"] = gpu_memory()
    return capacity


def _processes_on_cpu(plans: Sequence[RolePlan]) -> int:
    groups = {plan.where: plan for plan in plans}
    return sum(plan.processes for plan in groups.values() if plan.device == "cpu")


# ---- one role ----


def _role_plan(config: PPOConfig, role: str, worker: Any, modules: Mapping[str, nn.Module], pools: Any) -> RolePlan:
    place = role_place(config, role).place
    pool = pools.get_resource_pool(role) if pools is not None else None
    device = resolve_device(config.trainer.device) if pool is None else "cuda" if pool.use_gpu else "cpu"
    processes = 1 if pool is None else pool.world_size
    named = pool is not None and place != default_place(config.trainer)
    nodes = ["any" if node is None else str(node) for node in (pool.nodes if pool is not None else [0])]
    sizes = _sizes(config, role, modules.get(role), device, processes)
    return RolePlan(
        role=role,
        worker=getattr(worker, "__name__", None) or type(worker).__name__,
        processes=processes,
        devices=", ".join(place.devices) if named else f"{processes} x {device}",
        node=", ".join(nodes),
        device=device,
        where="" if pool is None else pool.name,
        **sizes,
    )


def _sizes(
    config: PPOConfig, role: str, module: nn.Module | None, device: str, processes: int
) -> dict[str, int | None]:
    policy = config.actor_rollout_ref
    known: dict[str, tuple[ModelConfig, FSDPConfig, bool]] = {
        Role.ActorRollout: (policy.model, policy.actor.fsdp_config, True),
        Role.Actor: (policy.model, policy.actor.fsdp_config, True),
        Role.Rollout: (policy.model, policy.actor.fsdp_config, False),
        Role.Critic: (config.critic.model, config.critic.fsdp, True),
        Role.RefPolicy: (policy.model, policy.ref.fsdp_config, False),
        Role.RewardModel: (config.reward.reward_model.model, config.reward.reward_model.fsdp, False),
    }
    if role not in known:
        return {}
    model, fsdp, trains = known[role]
    count = parameter_count(module if module is not None else model.path)
    if count is None:
        return {}
    shards = processes if fsdp.fsdp_size == -1 else fsdp.fsdp_size
    master = count * resolve_dtype(fsdp.model_dtype, device).itemsize // shards
    generating = (
        count * resolve_dtype(policy.rollout.dtype, device).itemsize // policy.rollout.tensor_model_parallel_size
    )
    # What is offloaded is on the CPU while another role works, so it does not add up with that one's.
    weights = 0 if fsdp.param_offload and device == "cuda" else master
    if role == Role.Rollout:
        weights = generating
    elif role == Role.ActorRollout and not (device == "cuda" and policy.rollout.free_cache_engine):
        weights += generating
    offloaded = fsdp.optimizer_offload and device == "cuda"
    sizes: dict[str, int | None] = {"weights": weights, "training": 0}
    if trains:
        sizes["training"] = master if offloaded else 3 * master  # the gradients, and AdamW's two moments
    if role in (Role.Rollout, Role.ActorRollout):
        sizes["kv_cache"] = _kv_cache(config, role, generating, device)
    return sizes


def _kv_cache(config: PPOConfig, role: str, weights: int, device: str) -> int | None:
    """What vLLM reserves on a GPU and keeps while the actor trains; None where it depends on what is free then."""
    rollout = config.actor_rollout_ref.rollout
    if rollout.name != "vllm" or device != "cuda" or not torch.cuda.is_available():
        return None
    if role == Role.ActorRollout and rollout.free_cache_engine:
        return 0
    return max(0, int(rollout.gpu_memory_utilization * gpu_memory()) - weights)


def _size(size: int | None) -> str:
    if size is None:
        return "-"
    return f"{size / GIB:.1f} GiB" if size >= GIB / 10 else f"{size / 2**20:.1f} MiB"
