"""The frozen reference policy in one process."""

from torch import nn

from verl.config import PPOConfig
from verl.models.wrapper import ModelWrapper
from verl.protocol import DataProto
from verl.worker.dispatch import Dispatch, register
from verl.worker.model_worker import ModelSettings, ModelWorker, log_prob_micro_batching


class ReferencePolicyWorker(ModelWorker):
    """The policy as it was before training. `ref.fsdp_config.param_offload` keeps it on the CPU between uses;
    `ref.unload` drops it and reads it from disk again at the next use."""

    config: PPOConfig

    def __init__(self, config: PPOConfig, role: str = "ref", module: nn.Module | None = None) -> None:
        super().__init__(config, role, module)

    def settings(self) -> ModelSettings:
        policy = self.config.actor_rollout_ref
        return ModelSettings(model=policy.model, fsdp=policy.ref.fsdp_config)

    def build_module(self) -> ModelWrapper:
        return self.load_policy()

    @property
    def temperature(self) -> float:
        """The one that the responses were sampled with."""
        return self.config.actor_rollout_ref.rollout.temperature

    @register(dispatch_mode=Dispatch.DP_COMPUTE_PROTO)
    def compute_ref_log_prob(self, batch: DataProto) -> DataProto:
        """`ref_log_probs` [B, R] of the responses, at the temperature they were sampled with."""
        policy = self.config.actor_rollout_ref
        if self._engine is None:
            self.init_model()
        outputs = self.forward_rows(
            batch,
            log_prob_micro_batching(policy.ref),
            temperature=self.temperature,
            remove_padding=policy.model.use_remove_padding,
        )
        if policy.ref.unload:
            self.drop_engine()
        return DataProto.from_dict({"ref_log_probs": outputs["log_probs"]})
