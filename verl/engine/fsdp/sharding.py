"""Sharding of a model over processes with FSDP2, and the way back to full tensors."""

from collections.abc import Iterator

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor

from verl.config import FSDPConfig
from verl.utils.backends import resolve_dtype
from verl.utils.distributed import GroupOfOne, group_of_one, world_size


def wait_for_all() -> None:
    if world_size() > 1:
        dist.barrier()


def dtypes(module: nn.Module, config: FSDPConfig, device: str) -> tuple[torch.dtype, torch.dtype]:
    """(dtype of the weights, dtype of compute)."""
    return next(module.parameters()).dtype, resolve_dtype(config.mixed_precision.param_dtype, device)


def shard_model(module: nn.Module, blocks: list[nn.Module], config: FSDPConfig, device: str) -> GroupOfOne | None:
    """Shard `module` in place, each of `blocks` as a unit of its own.

    Returns the process group if it is one of this process alone, to be held as long as the module is used.

    One process that computes in the dtype of its weights has nothing to shard, and is spared the copies. One that
    computes in another dtype (bf16 over fp32 weights) uses FSDP for its mixed precision alone. Modules may come in on
    the CPU: units move to `device` one by one as they are sharded, so that the whole model never has to fit on it.
    """
    weights, compute = dtypes(module, config, device)
    if world_size() == 1 and compute == weights:
        module.to(device)
        return None
    group = group_of_one(device)
    if world_size() > 1:
        _agree_on_weights(module)
    mesh = _build_mesh(device, config.fsdp_size)
    policy = MixedPrecisionPolicy(
        param_dtype=compute if compute != weights else None,
        reduce_dtype=resolve_dtype(config.mixed_precision.reduce_dtype, device),
    )
    for block in blocks:
        fully_shard(block, mesh=mesh, reshard_after_forward=config.reshard_after_forward, mp_policy=policy)
    # The root's own weights (embeddings, output layer) are needed again as soon as the backward pass begins.
    fully_shard(module, mesh=mesh, reshard_after_forward=False, mp_policy=policy)
    return group


def named_tensors(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Parameters and persistent buffers, sharded ones as they are; tied weights come once, under their first name."""
    seen: set[int] = set()
    for name, tensor in module.state_dict(keep_vars=True).items():
        if id(tensor) not in seen:
            seen.add(id(tensor))
            yield name, tensor.detach()


def full_tensor(tensor: Tensor) -> Tensor:
    """The whole tensor; every process of its mesh must ask for it."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def release_full_weights(module: nn.Module) -> None:
    """Free what a forward pass without backward pass left gathered, so that the weights are seen as shards again."""
    if isinstance(module, FSDPModule):
        module.reset_iter_state()


def defer_gradient_sync(module: nn.Module, defer: bool) -> None:
    """Keep full gradients and full weights from this micro-batch to the next, instead of communicating them."""
    if isinstance(module, FSDPModule):
        module.set_requires_gradient_sync(not defer)
        module.set_reshard_after_backward(not defer)


def _build_mesh(device: str, fsdp_size: int) -> DeviceMesh:
    world = world_size()
    if fsdp_size in (-1, world):
        return init_device_mesh(device, (world,), mesh_dim_names=("shard",))
    if fsdp_size < 1 or world % fsdp_size:
        raise ValueError(f"fsdp_config.fsdp_size={fsdp_size} must be -1 or divide the number of processes, {world}")
    return init_device_mesh(device, (world // fsdp_size, fsdp_size), mesh_dim_names=("replicate", "shard"))


@torch.no_grad()
def _agree_on_weights(module: nn.Module) -> None:
    """Give all processes the weights of process 0, if they differ: a random new layer may be seeded by rank."""
    tensors = [tensor for _, tensor in named_tensors(module)]
    sums = torch.stack([tensor.sum(dtype=torch.float64).cpu() for tensor in tensors])
    lowest, highest = sums.clone(), sums.clone()
    dist.all_reduce(lowest, dist.ReduceOp.MIN)
    dist.all_reduce(highest, dist.ReduceOp.MAX)
    if not torch.equal(lowest, highest):
        for tensor in tensors:
            dist.broadcast(tensor, src=0)
