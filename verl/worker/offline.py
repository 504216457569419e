"""A model that learns from rows as they are, in one process: supervised fine-tuning and reward models."""

from typing import Any

from tensordict import TensorDict
from torch import Tensor, nn

from verl.algorithms.masked import masked_sum
from verl.algorithms.preference_losses import bradley_terry
from verl.config import RewardModelTrainingConfig, SFTConfig
from verl.config.offline import MicroBatchConfig
from verl.engine.base import MicroBatching, Outputs
from verl.models.reward import RewardScorer
from verl.models.wrapper import ModelWrapper
from verl.protocol import DataProto
from verl.utils.metrics import Mean, Metrics, detach_metrics
from verl.worker.dispatch import Dispatch, register
from verl.worker.model_worker import ModelSettings, ModelWorker, micro_batching
from verl.worker.objective import Objective


class OfflineWorker(ModelWorker):
    """Base of the roles that train without rollouts. A subclass says what is learnt: `objective`."""

    def objective(self, prefix: str) -> Objective:
        """What the rows teach; its metrics are named `<prefix>/...`."""
        raise TypeError(f"{type(self).__name__} must say what it learns: define objective()")

    def micro_batching(self) -> MicroBatching:
        raise TypeError(f"{type(self).__name__} must say how mini-batches are cut: define micro_batching()")

    def epochs(self) -> int:
        """Passes over the rows of a step."""
        return 1

    def model_kwargs(self) -> dict[str, Any]:
        """Further arguments of the model's forward."""
        return {}

    @register(dispatch_mode=Dispatch.DP_COMPUTE_METRIC)
    def update(self, batch: DataProto) -> Metrics:
        """Train on the mini-batches of a step: `train/*`."""
        return self.train_with(
            batch,
            self.objective("train"),
            epochs=self.epochs(),
            micro=self.micro_batching(),
            prefix="train",
            **self.model_kwargs(),
        )

    @register(dispatch_mode=Dispatch.DP_COMPUTE_METRIC)
    def evaluate(self, batch: DataProto) -> Metrics:
        """The same figures without training: `val/*`."""
        objective, micro = self.objective("val"), self.micro_batching()
        with self.engine_in_use() as engine:
            rows = objective.prepare(engine, batch.batch.to(self.device), micro)
            outputs = engine.forward(rows, micro, **self.model_kwargs())
            _, metrics = objective.loss_fn(outputs, rows)
        return detach_metrics(metrics)


class SFTWorker(OfflineWorker):
    """A language model that learns to say what the data say. Rows: `input_ids`, `attention_mask`, `response_mask`."""

    config: SFTConfig

    def __init__(self, config: SFTConfig, role: str = "model", module: nn.Module | None = None) -> None:
        super().__init__(config, role, module)

    def settings(self) -> ModelSettings:
        return settings_of(self.config)

    def build_module(self) -> ModelWrapper:
        return self.load_policy()

    def micro_batching(self) -> MicroBatching:
        return row_batching(self.config.data)

    def model_kwargs(self) -> dict[str, Any]:
        return {"remove_padding": self.config.model.use_remove_padding}

    def objective(self, prefix: str) -> Objective:
        return likelihood_objective(prefix)


class RewardTrainingWorker(OfflineWorker):
    """A reward model that learns which answer of a pair is better. Rows: pairs, see `verl.data.preference`."""

    config: RewardModelTrainingConfig

    def __init__(self, config: RewardModelTrainingConfig, role: str = "model", module: nn.Module | None = None) -> None:
        super().__init__(config, role, module)

    def settings(self) -> ModelSettings:
        return settings_of(self.config)

    def build_module(self) -> ModelWrapper:
        given = self.given_module()
        if given is not None:
            return RewardScorer(given)
        return RewardScorer.to_train(self.config.model, self.master_dtype())

    def micro_batching(self) -> MicroBatching:
        return row_batching(self.config.data)

    def objective(self, prefix: str) -> Objective:
        return ranking_objective(prefix)


def settings_of(config: SFTConfig | RewardModelTrainingConfig) -> ModelSettings:
    """Those of a run that trains one model."""
    return ModelSettings(config.model, config.fsdp, config.optim, config.trainer.total_training_steps)


def row_batching(data: MicroBatchConfig) -> MicroBatching:
    """How the rows of a step are cut."""
    return micro_batching(data.micro_batch_size_per_gpu, data.use_dynamic_bsz, data.max_token_len_per_gpu)


def likelihood_objective(prefix: str) -> Objective:
    """-log p of every token with response_mask 1; the mean over tokens."""

    def loss_fn(outputs: Outputs, batch: TensorDict) -> tuple[Tensor, Metrics]:
        mask = batch["response_mask"]
        loss = -masked_sum(outputs["log_probs"], mask)
        return loss, {f"{prefix}/loss": Mean(loss.detach(), mask.sum())}

    return Objective(loss_fn, lambda mini: mini["response_mask"].sum())


def ranking_objective(prefix: str) -> Objective:
    """`bradley_terry` of the scores [b, 2] of chosen and rejected texts; the mean over pairs."""

    def loss_fn(outputs: Outputs, batch: TensorDict) -> tuple[Tensor, Metrics]:
        valid = valid_pairs(batch)
        loss, metrics = bradley_terry(outputs["scores"][:, 0], outputs["scores"][:, 1], valid)
        return loss, named(prefix, loss, valid.sum(), metrics)

    return Objective(loss_fn, lambda mini: valid_pairs(mini).sum())


def valid_pairs(batch: TensorDict) -> Tensor:
    """bool [b]: both answers of the pair have tokens, which those of pad rows do not."""
    return batch["response_mask"].bool().any(-1).all(-1)


def named(prefix: str, loss: Tensor, count: Tensor, metrics: Metrics) -> Metrics:
    """The metrics, and the loss as a mean, under `<prefix>/...`."""
    return {f"{prefix}/{name}": metric for name, metric in {"loss": Mean(loss.detach(), count), **metrics}.items()}
