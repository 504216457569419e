"""One model in one process: it loads, computes, trains, saves. Each role is a small setting of it.

actor_rollout   ActorRolloutWorker      generate_sequences, compute_log_prob, update_actor, sync_weights
critic          CriticWorker            compute_values, update_critic
ref             ReferencePolicyWorker   compute_ref_log_prob
rm              RewardModelWorker       compute_rm_score

Without rollouts (verl.worker.offline): SFTWorker, RewardTrainingWorker, PreferenceWorker: update, evaluate
"""

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from verl.algorithms.aggregation import loss_denominator
from verl.config import (
    CriticConfig,
    FSDPConfig,
    ModelConfig,
    OptimConfig,
    PolicyTrainingConfig,
    RefConfig,
    RolloutConfig,
    RunConfig,
)
from verl.engine.base import LossFn, MicroBatching, Outputs, TrainEngine
from verl.engine.fsdp import FSDPEngine
from verl.models.policy import PolicyModel
from verl.models.wrapper import ModelWrapper, copy_with_dtype
from verl.protocol import DataProto
from verl.utils.backends import resolve_device, resolve_dtype
from verl.utils.distributed import rank, world_size
from verl.utils.metrics import Mean, Metrics, Sum, detach_metrics, merge_metrics
from verl.utils.seeding import seed_everything
from verl.worker.base import Worker
from verl.worker.dispatch import Dispatch, register
from verl.worker.losses import local_mini_batches, over_all_ranks
from verl.worker.objective import Objective
from verl.worker.rows import LOCAL_MINI_BATCHES


@dataclass(frozen=True)
class ModelSettings:
    """What a role says about its model."""

    model: ModelConfig
    fsdp: FSDPConfig
    optim: OptimConfig | None = None
    optimizer_steps: int | None = None
    """Optimizer steps of the whole run, for the learning-rate schedule."""


class ModelWorker(Worker):
    """Base of the roles. `config` must be resolved (verl.config.validate.resolve, or resolve_offline).

    `module`, when given, is the model itself (its weights as they are); otherwise it is loaded from the settings.
    """

    def __init__(self, config: RunConfig, role: str, module: nn.Module | None = None) -> None:
        super().__init__()
        self.config = config
        self.role = role
        self.device = resolve_device(config.trainer.device)
        self._given_module = module
        self._engine: TrainEngine | None = None

    def given_module(self) -> nn.Module | None:
        """A copy, in the master weights' dtype, of the module that the driver handed over; None without one.

        A copy, because roles of one process may have been handed the same object, and the user's own stays as it is.
        """
        if self._given_module is None:
            return None
        return copy_with_dtype(self._given_module, self.master_dtype()).requires_grad_(True)

    def load_policy(self) -> PolicyModel:
        """The language model of the settings, or the one that was handed over."""
        given = self.given_module()
        return PolicyModel.load(self.settings().model, self.master_dtype()) if given is None else PolicyModel(given)

    def settings(self) -> ModelSettings:
        """The role's model, sharding and optimizer."""
        raise TypeError(f"{type(self).__name__} must say which model it hosts: define settings()")

    def build_module(self) -> ModelWrapper:
        """The module to train or run, on the CPU, with full weights."""
        raise TypeError(f"{type(self).__name__} must build its module: define build_module()")

    @property
    def engine(self) -> TrainEngine:
        if self._engine is None:
            raise RuntimeError(f"role {self.role}: init_model() must be called before anything else")
        return self._engine

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def init_model(self) -> None:
        """Load the model and, if the role trains, its optimizer."""
        self.init_distributed(self.device, timeout_s=self.config.trainer.worker_timeout_s)
        seed_everything(self.config.trainer.seed)
        settings = self.settings()
        self._engine = FSDPEngine(
            self.build_module(),
            settings.fsdp,
            settings.optim,
            self.device,
            settings.optimizer_steps,
            gradient_checkpointing=settings.model.enable_gradient_checkpointing,
        )
        self._offload()

    def master_dtype(self) -> torch.dtype:
        """The dtype of the weights that the optimizer updates."""
        return resolve_dtype(self.settings().fsdp.model_dtype, self.device)

    @contextmanager
    def engine_in_use(self, optimizer: bool = False) -> Iterator[TrainEngine]:
        """The engine on its device; afterwards what the config offloads goes back to the CPU."""
        self.engine.move(self.device, params=True, optimizer=optimizer)
        try:
            yield self.engine
        finally:
            self._offload()

    def drop_engine(self) -> None:
        """Free the model; `init_model` loads it again."""
        self._engine = None
        # What FSDP and recomputation put into the modules refers back to them: only the collector frees those.
        gc.collect()
        if self.device == "cuda":
            torch.cuda.empty_cache()

    def _offload(self) -> None:
        fsdp = self.settings().fsdp
        if fsdp.param_offload or fsdp.optimizer_offload:
            self.engine.move("cpu", params=fsdp.param_offload, optimizer=fsdp.optimizer_offload)

    def train_on(
        self,
        batch: DataProto,
        loss_fn: LossFn,
        *,
        agg_mode: str,
        epochs: int,
        micro: MicroBatching,
        prefix: str,
        **model_kwargs: object,
    ) -> Metrics:
        """`train_with` a loss of tokens that `agg_mode` aggregates."""
        objective = Objective(
            loss_fn, lambda mini: loss_denominator(mini["response_mask"], agg_mode, parts=world_size())
        )
        return self.train_with(batch, objective, epochs=epochs, micro=micro, prefix=prefix, **model_kwargs)

    def train_with(
        self,
        batch: DataProto,
        objective: Objective,
        *,
        epochs: int,
        micro: MicroBatching,
        prefix: str,
        **model_kwargs: object,
    ) -> Metrics:
        """`epochs` passes over the mini-batches that the driver cut (`LOCAL_MINI_BATCHES`), a step for each."""
        parts: list[Metrics] = []
        with self.engine_in_use(optimizer=True) as engine:
            rows = batch.batch.to(self.device)
            for _ in range(epochs):
                for mini in local_mini_batches(rows, batch.meta_info[LOCAL_MINI_BATCHES]):
                    denominator = over_all_ranks(objective.count(mini))
                    mini = objective.prepare(engine, mini, micro)
                    parts.append(engine.forward_backward(mini, objective.loss_fn, denominator, micro, **model_kwargs))
                    parts.append(_step_metrics(prefix, engine.optim_step()))
        return detach_metrics(merge_metrics(parts))

    def forward_rows(self, batch: DataProto, micro: MicroBatching, **model_kwargs: object) -> Outputs:
        """The model's outputs for all rows, on the CPU, in the order of `batch`."""
        with self.engine_in_use() as engine:
            outputs = engine.forward(batch.batch.to(self.device), micro, **model_kwargs)
        return {name: value.cpu() for name, value in outputs.items()}

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def save_checkpoint(self, path: str, save_hf: bool = False) -> None:
        """Save weights, optimizer and schedule under `path`; with `save_hf` also a Hugging Face folder there."""
        with self.engine_in_use(optimizer=True) as engine:
            engine.save_checkpoint(Path(path))
            if save_hf:
                engine.save_hf(Path(path) / "huggingface")

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def load_checkpoint(self, path: str) -> None:
        with self.engine_in_use(optimizer=True) as engine:
            engine.load_checkpoint(Path(path))


def micro_batching(rows: int | None, use_tokens: bool | None, max_tokens: int | None) -> MicroBatching:
    """The config's two ways of cutting micro-batches as one value."""
    return MicroBatching(max_tokens=max_tokens) if use_tokens else MicroBatching(rows=rows)


def log_prob_micro_batching(section: RolloutConfig | RefConfig) -> MicroBatching:
    """How a batch is cut for the forward passes that compute log-probs."""
    return micro_batching(
        section.log_prob_micro_batch_size_per_gpu,
        section.log_prob_use_dynamic_bsz,
        section.log_prob_max_token_len_per_gpu,
    )


def update_micro_batching(section: PolicyTrainingConfig | CriticConfig) -> MicroBatching:
    """How a mini-batch is cut for its forward and backward passes."""
    return micro_batching(
        section.ppo_micro_batch_size_per_gpu, section.use_dynamic_bsz, section.ppo_max_token_len_per_gpu
    )


def optimizer_steps(training_steps: int | None, batch_size: int, mini_batch_size: int, epochs: int) -> int | None:
    """Optimizer steps of a whole run, for the learning-rate schedule; None when the number of steps is open."""
    return None if training_steps is None else max(training_steps, 0) * -(-batch_size // mini_batch_size) * epochs


def _step_metrics(prefix: str, step: dict[str, float]) -> Metrics:
    skipped = step["skipped"]
    metrics: Metrics = {
        f"{prefix}/lr": Mean(step["lr"], 1.0),
        # Every process skips together, so one of them counts.
        f"{prefix}/skipped_steps": Sum(skipped if rank() == 0 else 0.0),
    }
    if not skipped:
        metrics[f"{prefix}/grad_norm"] = Mean(step["grad_norm"], 1.0)
    return metrics
