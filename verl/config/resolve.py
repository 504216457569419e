"""Filling in what a config leaves to other keys."""

import copy

from verl.config.actor_rollout_ref import ActorConfig, PolicyTrainingConfig, RefConfig, RolloutConfig
from verl.config.critic import CriticConfig
from verl.config.model import ModelConfig
from verl.config.ppo import PPOConfig


def resolve(config: PPOConfig, needs_critic: bool | None = None) -> PPOConfig:
    """A copy in which no null means "as that other key says". Resolving it again changes nothing.

    What only the data or the machine can tell stays open: the number of steps, the size of a validation batch that
    takes all prompts, the device, dtypes that are `auto`.

    Args:
        needs_critic: whether the advantage estimator does, which decides a `critic.enable` of null.
    """
    config = copy.deepcopy(config)
    policy = config.actor_rollout_ref
    _resolve_actor(policy.actor, config.data.max_response_length)
    _resolve_rollout(config)
    resolve_log_probs(policy.rollout, policy.actor)
    resolve_log_probs(policy.ref, policy.actor)
    _resolve_critic(config.critic, policy.actor, policy.model)
    if config.critic.enable is None:
        config.critic.enable = needs_critic
    if config.data.seed is None:
        config.data.seed = config.trainer.seed
    if config.reward.reward_model.enable:
        config.data.return_raw_chat = True  # a reward model with a template of its own reads the chat
    for optim in (policy.actor.optim, config.critic.optim):
        # Launch scripts write -1 for "by lr_warmup_steps_ratio".
        optim.lr_warmup_steps = max(optim.lr_warmup_steps, 0)
    return config


def _resolve_actor(actor: ActorConfig, max_response_length: int) -> None:
    if actor.clip_ratio_low is None:
        actor.clip_ratio_low = actor.clip_ratio
    if actor.clip_ratio_high is None:
        actor.clip_ratio_high = actor.clip_ratio
    if actor.loss_scale_factor is None:
        actor.loss_scale_factor = float(max_response_length)


def _resolve_rollout(config: PPOConfig) -> None:
    rollout = config.actor_rollout_ref.rollout
    if rollout.prompt_length is None:
        rollout.prompt_length = config.data.max_prompt_length
    if rollout.response_length is None:
        rollout.response_length = config.data.max_response_length
    if rollout.max_model_len is None:
        rollout.max_model_len = rollout.prompt_length + rollout.response_length
    if rollout.dtype == "auto":
        rollout.dtype = config.actor_rollout_ref.actor.fsdp_config.mixed_precision.param_dtype


def resolve_log_probs(section: RolloutConfig | RefConfig, actor: PolicyTrainingConfig) -> None:
    rows = section.log_prob_micro_batch_size_per_gpu
    if section.log_prob_use_dynamic_bsz is None:
        section.log_prob_use_dynamic_bsz = actor.use_dynamic_bsz and rows is None
    if rows is None and not section.log_prob_use_dynamic_bsz:
        section.log_prob_micro_batch_size_per_gpu = actor.ppo_micro_batch_size_per_gpu
    if section.log_prob_max_token_len_per_gpu is None:
        section.log_prob_max_token_len_per_gpu = actor.ppo_max_token_len_per_gpu


def _resolve_critic(critic: CriticConfig, actor: ActorConfig, policy: ModelConfig) -> None:
    if critic.model.path is None:
        critic.model.path = policy.path
        critic.model.tokenizer_path = critic.model.tokenizer_path or policy.tokenizer_path
        critic.model.trust_remote_code = critic.model.trust_remote_code or policy.trust_remote_code
        critic.model.override_config = critic.model.override_config or dict(policy.override_config)
    if critic.ppo_mini_batch_size is None:
        critic.ppo_mini_batch_size = actor.ppo_mini_batch_size
    if critic.ppo_epochs is None:
        critic.ppo_epochs = actor.ppo_epochs
    rows = critic.ppo_micro_batch_size_per_gpu
    if critic.use_dynamic_bsz is None:
        critic.use_dynamic_bsz = actor.use_dynamic_bsz and rows is None
    if rows is None and not critic.use_dynamic_bsz:
        critic.ppo_micro_batch_size_per_gpu = actor.ppo_micro_batch_size_per_gpu
