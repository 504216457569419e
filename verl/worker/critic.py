"""The critic in one process."""

from torch import nn

from verl.config import PPOConfig
from verl.models.value import ValueModel
from verl.models.wrapper import ModelWrapper
from verl.protocol import DataProto
from verl.utils.metrics import Metrics
from verl.worker.dispatch import Dispatch, register
from verl.worker.losses import critic_loss
from verl.worker.model_worker import ModelSettings, ModelWorker, optimizer_steps, update_micro_batching


class CriticWorker(ModelWorker):
    """Predicts the return from every response position, and learns to."""

    config: PPOConfig

    def __init__(self, config: PPOConfig, role: str = "critic", module: nn.Module | None = None) -> None:
        super().__init__(config, role, module)

    def settings(self) -> ModelSettings:
        critic = self.config.critic
        assert critic.ppo_mini_batch_size is not None and critic.ppo_epochs is not None
        steps = self.config.trainer.total_training_steps
        batch_size = self.config.data.train_batch_size
        return ModelSettings(
            model=critic.model,
            fsdp=critic.fsdp,
            optim=critic.optim,
            optimizer_steps=optimizer_steps(steps, batch_size, critic.ppo_mini_batch_size, critic.ppo_epochs),
        )

    def build_module(self) -> ModelWrapper:
        given = self.given_module()
        if given is None:
            return ValueModel.load(self.settings().model, self.master_dtype())
        return ValueModel(getattr(given, "base_model", given))  # a language model's, without its output layer

    @register(dispatch_mode=Dispatch.DP_COMPUTE_PROTO)
    def compute_values(self, batch: DataProto) -> DataProto:
        """`values` [B, R]: the value before each response token is sampled."""
        critic = self.config.critic
        micro = update_micro_batching(critic)
        outputs = self.forward_rows(batch, micro, remove_padding=critic.model.use_remove_padding)
        return DataProto.from_dict({"values": outputs["values"]})

    @register(dispatch_mode=Dispatch.DP_COMPUTE_METRIC)
    def update_critic(self, batch: DataProto) -> Metrics:
        """Train on the mini-batches of a step; see `verl.worker.losses.critic_loss`."""
        critic = self.config.critic
        assert critic.ppo_epochs is not None
        max_length = self.config.data.max_response_length
        return self.train_on(
            batch,
            critic_loss(critic, max_length),
            agg_mode=critic.loss_agg_mode,
            epochs=critic.ppo_epochs,
            micro=update_micro_batching(critic),
            prefix="critic",
            remove_padding=critic.model.use_remove_padding,
        )
