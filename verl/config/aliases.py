"""Older and other spellings of keys and values, and what they are called here."""

from verl.config.model import Dtype

# A key, or a section with everything below it. The longest match counts, and the result is looked up again.
KEY_ALIASES: dict[str, str] = {
    "custom_reward_function": "reward.custom_reward_function",
    "reward_model": "reward.reward_model",
    "reward_model.reward_manager": "reward.reward_manager.name",
    "reward_model.reward_kwargs": "reward.reward_kwargs",
    "reward_model.num_workers": "reward.num_workers",
    "reward_model.sandbox_fusion": "reward.sandbox_fusion",
    "reward_model.launch_reward_fn_async": "reward.launch_async",
    "reward.launch_reward_fn_async": "reward.launch_async",
    "reward.reward_model.model_path": "reward.reward_model.model.path",
    "reward.reward_model.model.fsdp_config": "reward.reward_model.fsdp",
    "critic.model.fsdp_config": "critic.fsdp",
    "critic.grad_clip": "critic.optim.clip_grad",
    "critic.optim.warmup_style": "critic.optim.lr_scheduler_type",
    "actor_rollout_ref.actor.grad_clip": "actor_rollout_ref.actor.optim.clip_grad",
    "actor_rollout_ref.actor.optim.warmup_style": "actor_rollout_ref.actor.optim.lr_scheduler_type",
    "actor_rollout_ref.actor.fsdp_config.dtype": "actor_rollout_ref.actor.fsdp_config.mixed_precision.param_dtype",
    "actor_rollout_ref.ref.fsdp_config.dtype": "actor_rollout_ref.ref.fsdp_config.mixed_precision.param_dtype",
    "actor_rollout_ref.model.custom_chat_template": "data.chat_template",
    "critic.fsdp.dtype": "critic.fsdp.mixed_precision.param_dtype",
    "data.trust_remote_code": "actor_rollout_ref.model.trust_remote_code",
    "trainer.val_generations_to_log_to_wandb": "trainer.log_val_generations",
}

DTYPE_ALIASES = {
    "float32": "fp32",
    "float": "fp32",
    "bfloat16": "bf16",
    "float16": "fp16",
    "half": "fp16",
}


def newer_name(path: str) -> str:
    """The name that `path` has here; `path` itself when it is no alias."""
    parts = path.split(".")
    for depth in range(len(parts), 0, -1):
        prefix = ".".join(parts[:depth])
        if prefix in KEY_ALIASES:
            return newer_name(".".join([KEY_ALIASES[prefix], *parts[depth:]]))
    return path


def usual_value(kind: object, value: object) -> object:
    """`value` in the spelling used here: torch's names of dtypes become the short ones."""
    if kind == Dtype and isinstance(value, str) and value in DTYPE_ALIASES:
        return DTYPE_ALIASES[value]
    return value
