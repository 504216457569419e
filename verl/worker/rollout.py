"""Generation in processes of its own, apart from the actor, whose weights come through a `WeightChannel`."""

import torch.distributed as dist
from torch import nn

from verl.config import PPOConfig
from verl.protocol import DataProto
from verl.rollout.weight_channel import WeightChannel
from verl.rollout.weight_sync import check_weights
from verl.utils.seeding import seed_everything
from verl.worker.dispatch import Dispatch, register
from verl.worker.generation import GeneratingWorker, rollout_dtype
from verl.worker.model_worker import ModelSettings


class RolloutWorker(GeneratingWorker):
    """Samples from the policy."""

    def __init__(self, config: PPOConfig, role: str = "rollout", module: nn.Module | None = None) -> None:
        super().__init__(config, role, module)
        self._channel: WeightChannel | None = None

    def settings(self) -> ModelSettings:
        policy = self.config.actor_rollout_ref
        return ModelSettings(model=policy.model, fsdp=policy.actor.fsdp_config)

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def init_model(self) -> None:
        """Start the rollout engine; it generates once `receive_weights` has brought the actor's weights."""
        self.init_distributed(self.device, timeout_s=self.config.trainer.worker_timeout_s)
        seed_everything(self.config.trainer.seed)
        self.start_generation(self.load_policy().hf_model)

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def join_weight_channel(self, host: str, port: int) -> None:
        """Join the channel that the actor opened at `host` and `port`; all members must join at the same time."""
        store = dist.TCPStore(host, port, is_master=False)
        timeout_s = self.config.trainer.worker_timeout_s
        self._channel = WeightChannel(store, self.rank + 1, self.world_size + 1, self.device, timeout_s)

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def receive_weights(self) -> None:
        """Take the actor's weights; `send_weights` of the actor must run at the same time."""
        assert self._channel is not None, "join_weight_channel comes first"
        engine = self.generation.engine
        version, weights = self._channel.receive()
        try:
            engine.update_weights(weights, version)
        finally:
            self._channel.drain(weights)
        if self.config.actor_rollout_ref.rollout.check_weight_sync:
            _, weights = self._channel.receive()
            try:
                check_weights(weights, engine, rollout_dtype(self.config, self.device))
            finally:
                self._channel.drain(weights)

    @register(dispatch_mode=Dispatch.DP_COMPUTE_PROTO, mesh="rollout")
    def generate_sequences(self, prompts: DataProto) -> DataProto:
        """One response for each row of prompts [B, P]; see `Generation.respond`.

        `meta_info["weights_version"]`, which counts the actor's updates, says how new the weights must be.
        """
        version, expected = self.generation.engine.version, prompts.meta_info["weights_version"]
        if version != expected:
            raise RuntimeError(
                f"role {self.role}, rank {self.rank}: the rollout engine has weights of version {version}, but "
                f"version {expected} is asked for: send the actor's weights after update_actor()"
            )
        # The engine never sleeps: where it shares a GPU (own_process), nobody in this process knows whose turn it is.
        return self.generation.respond(prompts)
