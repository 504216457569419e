"""The training engine on FSDP2: one model, on one process or sharded over many, on CPUs or GPUs."""

import math
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from tensordict import TensorDict
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint as recompute

from verl.config import FSDPConfig, OptimConfig
from verl.engine.base import LossFn, MicroBatching, Outputs
from verl.engine.fsdp import checkpoint, sharding
from verl.engine.fsdp.micro_batches import join_rows, split_rows
from verl.engine.fsdp.optimizer import LearningRate, build_adamw, global_norm, scale_gradients
from verl.models.wrapper import ModelWrapper
from verl.utils.distributed import rank, world_size
from verl.utils.metrics import Metrics, detach_metrics, merge_metrics


class FSDPEngine:
    """A `TrainEngine` over the processes of the default process group (one process when there is none).

    `module` is a PolicyModel, ValueModel or RewardScorer, in the dtype of the master weights; it is sharded in place.
    Without `optim_config` the model is frozen: it keeps no gradients and no optimizer. `total_steps` counts optimizer
    steps, for learning rates that decay.
    """

    def __init__(
        self,
        module: ModelWrapper,
        fsdp_config: FSDPConfig,
        optim_config: OptimConfig | None,
        device: str,
        total_steps: int | None = None,
        gradient_checkpointing: bool = False,
    ) -> None:
        self.module = module
        self.device = device
        # Only where memory has room for full weights may full gradients wait for the last micro-batch.
        self._holds_full_weights = not fsdp_config.reshard_after_forward or fsdp_config.fsdp_size == 1
        self._weights_on = device
        if optim_config is None:
            module.requires_grad_(False)
        elif torch.float16 in sharding.dtypes(module, fsdp_config, device):
            raise ValueError(
                "fp16 cannot be trained in (there is no loss scaling, so gradients vanish): use bf16 or fp32"
            )
        if gradient_checkpointing:
            _recompute_in_backward(module.blocks())
        # Held as long as the module is used.
        self._group = sharding.shard_model(module, module.blocks(), fsdp_config, device)
        self.optimizer = self.schedule = None
        if optim_config is not None:
            self._clip_grad = optim_config.clip_grad
            self.optimizer = build_adamw(module.parameters(), optim_config)
            self.schedule = LearningRate(optim_config, total_steps)

    @torch.no_grad()
    def forward(self, batch: TensorDict, micro: MicroBatching, **model_kwargs: Any) -> Outputs:
        """Outputs for all rows of `batch`, in its order and on its device."""
        pieces = self._pieces(batch, micro)
        parts = []
        try:
            for rows in pieces:
                outputs = self._run(batch, rows, model_kwargs)
                parts.append({name: values[: len(rows)].to(rows.device) for name, values in outputs.items()})
        finally:
            sharding.release_full_weights(self.module)
        return join_rows(parts, pieces)

    def forward_backward(
        self, batch: TensorDict, loss_fn: LossFn, denominator: float, micro: MicroBatching, **model_kwargs: Any
    ) -> Metrics:
        """Add the gradient of (sum of loss_fn over all micro-batches of all processes) / denominator.

        Returns the metrics of this process's micro-batches. A denominator of 0 (no valid token anywhere) adds nothing.
        """
        if self.optimizer is None:
            raise RuntimeError("this model is frozen (it was built without optim_config): it has no gradients")
        # FSDP averages gradients over processes; the law wants their sum over the denominator.
        scale = world_size() / float(denominator) if denominator else 0.0
        pieces = self._pieces(batch, micro)
        metrics: list[Metrics] = []
        try:
            for i, rows in enumerate(pieces):
                sharding.defer_gradient_sync(self.module, self._holds_full_weights and i < len(pieces) - 1)
                metrics.append(self._add_gradient(batch, rows, loss_fn, scale, model_kwargs))
        except BaseException:
            # Half a pass must not leak into the next one, should the caller go on.
            sharding.release_full_weights(self.module)
            self.optimizer.zero_grad(set_to_none=True)
            raise
        return merge_metrics(metrics)

    def optim_step(self) -> dict[str, float]:
        """Clip, step and clear. Returns `grad_norm` (before clipping), `lr` (used) and `skipped` (1 if not finite).

        A gradient that is not finite changes nothing but is cleared. Its norm is that of the whole gradient, so all
        processes agree.
        """
        if self.optimizer is None or self.schedule is None:
            raise RuntimeError("this model is frozen (it was built without optim_config): it cannot make a step")
        gradients = [p.grad for p in self.module.parameters() if p.grad is not None]
        if not gradients:
            raise RuntimeError("optim_step without a gradient: call forward_backward first")
        norm, lr = global_norm(gradients), self.schedule.current
        finite = math.isfinite(norm)
        if finite:
            if 0 < self._clip_grad < norm:
                scale_gradients(gradients, self._clip_grad / norm)
            for group in self.optimizer.param_groups:
                group["lr"] = lr
            self.optimizer.step()
            self.schedule.steps_done += 1
        self.optimizer.zero_grad(set_to_none=True)
        return {"grad_norm": norm, "lr": lr, "skipped": float(not finite)}

    def named_weights(self, dtype: torch.dtype | None = None) -> Iterator[tuple[str, Tensor]]:
        """Full tensors under their Hugging Face names, one at a time; all processes must consume it in step.

        Tied weights come once. Shards are cast before they are gathered, which halves what travels in bf16. Tensors
        of a model that is not sharded may be the live weights themselves: copy them to keep them.
        """
        for name, tensor in sharding.named_tensors(self.module):
            cast = tensor.to(dtype) if dtype is not None and tensor.is_floating_point() else tensor
            yield self.module.hf_name(name), sharding.full_tensor(cast)

    def move(self, device: str, params: bool = True, optimizer: bool = True) -> None:
        """Move weights and optimizer state to `device` ("cpu" or the engine's own). Nothing to do on a CPU."""
        if device not in ("cpu", self.device):
            raise ValueError(f"cannot move to {device!r}: this engine lives on {self.device!r}, and may rest on 'cpu'")
        if self.device == "cpu":
            return
        if params:
            self.module.to(device)
            self._weights_on = device
        if optimizer and self.optimizer is not None:
            for state in self.optimizer.state.values():
                state.update({key: value.to(device) for key, value in state.items() if isinstance(value, Tensor)})
        if device == "cpu":
            torch.cuda.empty_cache()

    def save_checkpoint(self, path: Path) -> None:
        """Save weights, optimizer and schedule, sharded; any number of processes can load them."""
        checkpoint.save(Path(path), self.module, self.optimizer, self.schedule)

    def load_checkpoint(self, path: Path) -> None:
        """Go on from `path`. ValueError when it is no checkpoint or one of another model."""
        checkpoint.load(Path(path), self.module, self.optimizer, self.schedule)

    def save_hf(self, path: Path) -> None:
        """Save the weights as a Hugging Face folder (process 0 writes), in the dtype of the master weights."""
        weights = {}
        for name, tensor in self.named_weights():
            if rank() == 0:
                weights[name] = tensor.cpu()
        if rank() == 0:
            self.module.save_pretrained(Path(path), weights)
        sharding.wait_for_all()

    def _pieces(self, batch: TensorDict, micro: MicroBatching) -> list[Tensor]:
        """Rows of each micro-batch, in equal number on all processes: some may get empty ones at the end."""
        pieces = split_rows(batch["attention_mask"].flatten(1).sum(1), micro)
        if world_size() > 1:
            count = torch.tensor(len(pieces), device=self.device)
            dist.all_reduce(count, dist.ReduceOp.MAX)
            pieces += [pieces[0][:0]] * (int(count) - len(pieces))
        return pieces

    def _add_gradient(
        self, batch: TensorDict, rows: Tensor, loss_fn: LossFn, scale: float, model_kwargs: dict[str, Any]
    ) -> Metrics:
        outputs = self._run(batch, rows, model_kwargs)
        if len(rows):
            loss, metrics = loss_fn(outputs, batch[rows].to(self.device))
        else:
            loss, metrics = torch.stack([values.sum() * 0.0 for values in outputs.values()]).sum(), {}
        if not loss.requires_grad:
            raise TypeError("loss_fn returned a loss that does not depend on the model's outputs")
        (loss * scale).backward()
        return detach_metrics(metrics)

    def _run(self, batch: TensorDict, rows: Tensor, model_kwargs: dict[str, Any]) -> Outputs:
        """The model's outputs for some rows. For none it runs on a row of zeros, to keep step with other processes."""
        if self._weights_on != self.device:
            raise RuntimeError(f"the weights are on {self._weights_on!r}: call move({self.device!r}) before using them")
        inputs = batch.select(*self.module.input_keys)
        part = inputs[rows] if len(rows) else _row_of_zeros(inputs)
        return self.module(part.to(self.device), **model_kwargs)


def _row_of_zeros(inputs: TensorDict) -> TensorDict:
    row = {key: torch.zeros(1, *inputs[key].shape[1:], dtype=inputs[key].dtype) for key in inputs.keys()}  # noqa: SIM118
    return TensorDict(row, batch_size=[1])


def _recompute_in_backward(blocks: list[nn.Module]) -> None:
    """Keep only the inputs of each block and compute the rest again in the backward pass.

    transformers' own switch works in training mode alone, where dropout is on; this one needs no mode.
    """
    for block in blocks:
        block.forward = partial(recompute, block.forward, use_reentrant=False)
