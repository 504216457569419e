"""The policy's training half in one process.

compute_log_prob -> update_actor -> weights to the rollout engine, here (actor_rollout.py) or elsewhere (rollout.py)
"""

import os
import time
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from verl.algorithms.preference_losses import loss_arguments
from verl.config import PPOConfig
from verl.models.wrapper import ModelWrapper
from verl.protocol import DataProto
from verl.rollout.weight_channel import WeightChannel
from verl.rollout.weight_sync import sync_metrics
from verl.utils.metrics import Metrics
from verl.worker.dispatch import Dispatch, register
from verl.worker.generation import rollout_dtype
from verl.worker.losses import actor_loss
from verl.worker.model_worker import ModelSettings, ModelWorker, log_prob_micro_batching, update_micro_batching
from verl.worker.preference import policy_settings, preference_objective


class ActorWorker(ModelWorker):
    """Trains the policy."""

    config: PPOConfig

    def __init__(self, config: PPOConfig, role: str = "actor", module: nn.Module | None = None) -> None:
        super().__init__(config, role, module)
        self.weights_version = 0
        self._store: dist.TCPStore | None = None
        self._channel: WeightChannel | None = None

    def settings(self) -> ModelSettings:
        return policy_settings(self.config)

    def build_module(self) -> ModelWrapper:
        return self.load_policy()

    @register(dispatch_mode=Dispatch.DP_COMPUTE_PROTO)
    def compute_log_prob(self, batch: DataProto) -> DataProto:
        """`old_log_probs` and `entropy` [B, R] of the responses under the weights as they are."""
        micro = log_prob_micro_batching(self.config.actor_rollout_ref.rollout)
        outputs = self.forward_rows(batch, micro, **self._policy_kwargs(compute_entropy=True))
        return DataProto.from_dict({"old_log_probs": outputs["log_probs"], "entropy": outputs["entropy"]})

    def _policy_kwargs(self, compute_entropy: bool) -> dict[str, Any]:
        policy = self.config.actor_rollout_ref
        return {
            "temperature": policy.rollout.temperature,
            "compute_entropy": compute_entropy,
            "remove_padding": policy.model.use_remove_padding,
        }

    @register(dispatch_mode=Dispatch.DP_COMPUTE_METRIC)
    def update_actor(self, batch: DataProto) -> Metrics:
        """Train on the mini-batches of a step; see `verl.worker.losses.actor_loss`."""
        config = self.config.actor_rollout_ref.actor
        assert config.loss_scale_factor is not None
        metrics = self.train_on(
            batch,
            actor_loss(config, config.loss_scale_factor),
            agg_mode=config.loss_agg_mode,
            epochs=config.ppo_epochs,
            micro=update_micro_batching(config),
            prefix="actor",
            **self._policy_kwargs(compute_entropy=bool(config.entropy_coeff)),
        )
        self.weights_version += 1
        return metrics

    @register(dispatch_mode=Dispatch.DP_COMPUTE_METRIC)
    def update_preference(self, batch: DataProto) -> Metrics:
        """Train on rows of two sequences [B, 2, ...]; see `verl.worker.preference`."""
        config, preference = self.config.actor_rollout_ref.actor, self.config.algorithm.preference
        assert preference.loss is not None
        model_kwargs = self._policy_kwargs(compute_entropy=False)
        metrics = self.train_with(
            batch,
            preference_objective(preference.loss, loss_arguments(preference), "actor", model_kwargs),
            epochs=config.ppo_epochs,
            micro=update_micro_batching(config),
            prefix="actor",
            **model_kwargs,
        )
        self.weights_version += 1
        return metrics

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def get_weights(self) -> dict[str, torch.Tensor]:
        """The policy's full weights on the CPU under their Hugging Face names; empty on all processes but the first."""
        with self.engine_in_use() as engine:
            # All processes gather each weight; only the first one keeps a copy.
            weights = engine.named_weights()
            return {name: tensor.detach().cpu().clone() for name, tensor in weights if self.rank == 0}

    # ---- weights to rollout engines in other processes ----

    @register(dispatch_mode=Dispatch.RANK_ZERO)
    def open_weight_channel(self) -> tuple[str, int]:
        """Where the rollout processes meet this group's rank 0, for `join_weight_channel`: host and port."""
        host = os.environ.get("MASTER_ADDR", "127.0.0.1")
        self._store = dist.TCPStore(host, 0, is_master=True, wait_for_workers=False)
        return host, self._store.port

    @register(dispatch_mode=Dispatch.RANK_ZERO)
    def join_weight_channel(self, receivers: int) -> None:
        """Join the channel with that many rollout processes; they must join at the same time."""
        assert self._store is not None, "open_weight_channel comes first"
        timeout_s = self.config.trainer.worker_timeout_s
        self._channel = WeightChannel(self._store, 0, receivers + 1, self.device, timeout_s)

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def send_weights(self) -> Metrics:
        """Send the weights, gathered a bucket at a time and cast to the rollout's dtype first; `receive_weights` of the
        rollout processes must run at the same time. With rollout.check_weight_sync they are sent twice."""
        rollout, dtype = self.config.actor_rollout_ref.rollout, rollout_dtype(self.config, self.device)
        metrics: Metrics = {}
        with self.engine_in_use() as engine:
            for _ in range(1 + rollout.check_weight_sync):
                weights = engine.named_weights(dtype)
                if self._channel is None:  # all processes gather, the first one sends
                    for _ in weights:
                        pass
                    continue
                start = time.perf_counter()
                sent = self._channel.send(
                    weights, self.weights_version, rollout.update_weights_bucket_megabytes * 2**20
                )
                metrics = sync_metrics(sent, time.perf_counter() - start)
        return metrics
