"""The policy in one process: it generates with the rollout engine and trains with the training engine.

    generate_sequences -> (reward, ...) -> compute_log_prob -> update_actor -> sync_weights -> generate_sequences

The two engines know nothing of each other; `sync_weights` moves the weights, and generating with weights older than
the last update is an error.
"""

from torch import nn

from verl.config import PPOConfig
from verl.models.wrapper import ModelWrapper
from verl.protocol import DataProto
from verl.rollout.weight_sync import check_weights, generating, sync_weights
from verl.utils.metrics import Metrics, detach_metrics
from verl.worker.actor import ActorWorker
from verl.worker.dispatch import Dispatch, register
from verl.worker.generation import GeneratingWorker, rollout_dtype


class ActorRolloutWorker(ActorWorker, GeneratingWorker):
    """Trains the policy and samples from it."""

    def __init__(self, config: PPOConfig, role: str = "actor_rollout", module: nn.Module | None = None) -> None:
        super().__init__(config, role, module)

    def build_module(self) -> ModelWrapper:
        policy = self.load_policy()
        self.start_generation(policy.hf_model)
        self.generation.engine.sleep()  # the trainer's own model comes now
        return policy

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def init_model(self) -> None:
        """Load the policy, its optimizer and the rollout engine, which gets the same weights."""
        super().init_model()
        self._sync_and_sleep()

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def sync_weights(self) -> Metrics:
        """Bring the rollout engine to the trainer's weights; see `verl.rollout.weight_sync`."""
        rollout, dtype = self.config.actor_rollout_ref.rollout, rollout_dtype(self.config, self.device)
        target = self.generation.engine
        target.wake_up(["weights"])
        with self.engine_in_use() as engine:
            metrics = sync_weights(
                engine.named_weights(dtype),
                target,
                self.weights_version,
                rollout.update_weights_bucket_megabytes * 2**20,
            )
            if rollout.check_weight_sync:
                check_weights(engine.named_weights(dtype), target, dtype)
        return detach_metrics(metrics)

    @register(dispatch_mode=Dispatch.DP_COMPUTE_PROTO, mesh="rollout")
    def generate_sequences(self, prompts: DataProto) -> DataProto:
        """One response for each row of prompts [B, P]; see `Generation.respond`."""
        engine = self.generation.engine
        if engine.version != self.weights_version:
            raise RuntimeError(
                f"role {self.role}, rank {self.rank}: the rollout engine has weights of version {engine.version}, the "
                f"trainer is at {self.weights_version}: call sync_weights() after update_actor()"
            )
        with generating(engine, self.sync_weights):
            return self.generation.respond(prompts)

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def load_checkpoint(self, path: str) -> None:
        """Load weights, optimizer and schedule, and bring the rollout engine to them."""
        super().load_checkpoint(path)
        self._sync_and_sleep()

    def _sync_and_sleep(self) -> None:
        """Until the first batch comes, the memory of weights and KV cache is for what other roles load."""
        self.sync_weights()
        self.generation.engine.sleep()
