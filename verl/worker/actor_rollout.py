"""The policy in one process: it generates with the rollout engine and trains with the training engine.

    generate_sequences -> (reward, ...) -> compute_log_prob -> update_actor -> sync_weights -> generate_sequences

The two engines know nothing of each other; `sync_weights` moves the weights, and generating with weights older than
the last update is an error.
"""

from typing import Any

import torch
from torch import nn

from verl.algorithms.preference_losses import loss_arguments
from verl.config import PPOConfig
from verl.engine.base import MicroBatching
from verl.models.wrapper import ModelWrapper
from verl.protocol import DataProto
from verl.rollout import build_rollout
from verl.rollout.base import RolloutEngine, Sampling
from verl.rollout.batching import prompts_from, responses_to_batch
from verl.rollout.weight_sync import check_weights, generating, sync_weights
from verl.utils.backends import resolve_dtype
from verl.utils.metrics import Metrics, detach_metrics
from verl.utils.seeding import derive_seed
from verl.worker.dispatch import Dispatch, register
from verl.worker.losses import actor_loss
from verl.worker.model_worker import ModelSettings, ModelWorker, micro_batching, optimizer_steps
from verl.worker.preference import preference_objective


class ActorRolloutWorker(ModelWorker):
    """Trains the policy and samples from it."""

    config: PPOConfig

    def __init__(self, config: PPOConfig, role: str = "actor_rollout", module: nn.Module | None = None) -> None:
        super().__init__(config, role, module)
        self.weights_version = 0
        self._rollout: RolloutEngine | None = None

    def settings(self) -> ModelSettings:
        policy = self.config.actor_rollout_ref
        actor, steps = policy.actor, self.config.trainer.total_training_steps
        batch_size = self.config.data.train_batch_size
        return ModelSettings(
            model=policy.model,
            fsdp=policy.actor.fsdp_config,
            optim=policy.actor.optim,
            optimizer_steps=optimizer_steps(steps, batch_size, actor.ppo_mini_batch_size, actor.ppo_epochs),
        )

    def build_module(self) -> ModelWrapper:
        policy = self.load_policy()
        rollout = self.config.actor_rollout_ref.rollout
        size = rollout.tensor_model_parallel_size
        self.register_mesh("rollout", self.rank // size, self.world_size // size, collect=self.rank % size == 0)
        self._rollout = build_rollout(
            rollout,
            policy.hf_model,
            dtype=self.rollout_dtype(),
            device=self.device,
            seed=derive_seed(self.config.trainer.seed, "rollout", self.rank),
        )
        return policy

    def rollout_dtype(self) -> torch.dtype:
        """The dtype of the weights while generating."""
        dtype = self.config.actor_rollout_ref.rollout.dtype
        if dtype == "auto":
            dtype = self.settings().fsdp.mixed_precision.param_dtype
        return resolve_dtype(dtype, self.device)

    @property
    def rollout(self) -> RolloutEngine:
        if self._rollout is None:
            raise RuntimeError(f"role {self.role}: init_model() must be called before anything else")
        return self._rollout

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def init_model(self) -> None:
        """Load the policy, its optimizer and the rollout engine, which starts with the same weights."""
        super().init_model()
        self.sync_weights()

    def close(self) -> None:
        if self._rollout is not None:
            self._rollout.close()

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def sync_weights(self) -> Metrics:
        """Bring the rollout engine to the trainer's weights; see `verl.rollout.weight_sync`."""
        rollout, dtype = self.config.actor_rollout_ref.rollout, self.rollout_dtype()
        self.rollout.wake_up(["weights"])
        with self.engine_in_use() as engine:
            metrics = sync_weights(
                engine.named_weights(dtype),
                self.rollout,
                self.weights_version,
                rollout.update_weights_bucket_megabytes * 2**20,
            )
            if rollout.check_weight_sync:
                check_weights(engine.named_weights(dtype), self.rollout, dtype)
        return detach_metrics(metrics)

    @register(dispatch_mode=Dispatch.DP_COMPUTE_PROTO, mesh="rollout")
    def generate_sequences(self, prompts: DataProto) -> DataProto:
        """One response for each row of prompts [B, P].

        `meta_info`: `pad_token_id`, `eos_token_ids`, and `sampling`: "train" samples as actor_rollout_ref.rollout says,
        "validate" as its val_kwargs, "greedy" takes the most likely tokens.
        A column `seed` [B] fixes each row's sample by itself. Returns the columns of a response (see protocol.schema).
        """
        if self.rollout.version != self.weights_version:
            raise RuntimeError(
                f"role {self.role}, rank {self.rank}: the rollout engine has weights of version "
                f"{self.rollout.version}, the trainer is at {self.weights_version}: "
                "call sync_weights() after update_actor()"
            )
        meta = prompts.meta_info
        sampling = self._sampling(meta["sampling"], meta["eos_token_ids"])
        seeds = prompts.batch["seed"].tolist() if "seed" in prompts.batch.keys() else None  # noqa: SIM118
        with generating(self.rollout, self.sync_weights, stale=False) as engine:
            completions = engine.generate(prompts_from(prompts.batch), sampling, seeds)
        return DataProto(responses_to_batch(prompts.batch, completions, sampling.max_tokens, meta["pad_token_id"]))

    def _sampling(self, kind: str, eos_token_ids: list[int]) -> Sampling:
        rollout = self.config.actor_rollout_ref.rollout
        chosen = rollout.val_kwargs if kind == "validate" else rollout
        greedy = kind == "greedy" or not chosen.do_sample
        assert rollout.response_length is not None
        ends = [] if rollout.ignore_eos else eos_token_ids
        return Sampling(
            max_tokens=rollout.response_length,
            temperature=0.0 if greedy else chosen.temperature,
            top_p=chosen.top_p,
            top_k=chosen.top_k,
            ignore_eos=rollout.ignore_eos,
            stop_token_ids=tuple(sorted({*rollout.stop_token_ids, *ends})),
        )

    @register(dispatch_mode=Dispatch.DP_COMPUTE_PROTO)
    def compute_log_prob(self, batch: DataProto) -> DataProto:
        """`old_log_probs` and `entropy` [B, R] of the responses under the weights as they are."""
        rollout = self.config.actor_rollout_ref.rollout
        micro = micro_batching(
            rollout.log_prob_micro_batch_size_per_gpu,
            rollout.log_prob_use_dynamic_bsz,
            rollout.log_prob_max_token_len_per_gpu,
        )
        outputs = self.forward_rows(batch, micro, **self._policy_kwargs(compute_entropy=True))
        return DataProto.from_dict({"old_log_probs": outputs["log_probs"], "entropy": outputs["entropy"]})

    def _policy_kwargs(self, compute_entropy: bool) -> dict[str, Any]:
        policy = self.config.actor_rollout_ref
        return {
            "temperature": policy.rollout.temperature,
            "compute_entropy": compute_entropy,
            "remove_padding": policy.model.use_remove_padding,
        }

    def _update_micro_batching(self) -> MicroBatching:
        actor = self.config.actor_rollout_ref.actor
        return micro_batching(
            actor.ppo_micro_batch_size_per_gpu, actor.use_dynamic_bsz, actor.ppo_max_token_len_per_gpu
        )

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
            micro=self._update_micro_batching(),
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
            micro=self._update_micro_batching(),
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

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def load_checkpoint(self, path: str) -> None:
        """Load weights, optimizer and schedule, and bring the rollout engine to them."""
        super().load_checkpoint(path)
        self.sync_weights()
