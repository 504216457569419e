"""Nulls that mean "as that other key says" are filled in."""

import copy

import pytest

from verl.config import PPOConfig
from verl.config.loader import load_config
from verl.config.validate import resolve

ACTOR = "actor_rollout_ref.actor"
ROLLOUT = "actor_rollout_ref.rollout"


def resolved(*overrides: str, needs_critic: bool | None = None) -> PPOConfig:
    return resolve(load_config(overrides), needs_critic)


def test_lengths_seed_and_clip_range() -> None:
    config = resolved(
        "data.max_prompt_length=7", "data.max_response_length=9", "trainer.seed=3", f"{ACTOR}.clip_ratio_high=0.28"
    )
    policy = config.actor_rollout_ref
    assert (policy.rollout.prompt_length, policy.rollout.response_length) == (7, 9)
    assert config.data.seed == 3
    assert (policy.actor.clip_ratio_low, policy.actor.clip_ratio_high) == (0.2, 0.28)
    assert policy.actor.loss_scale_factor == 9.0
    assert resolved("data.seed=5").data.seed == 5


def test_the_critic_follows_the_actor() -> None:
    config = resolved(
        "actor_rollout_ref.model.path=/m",
        "actor_rollout_ref.model.tokenizer_path=/t",
        "actor_rollout_ref.model.trust_remote_code=True",
        "actor_rollout_ref.model.override_config.a=1",
        f"{ACTOR}.ppo_mini_batch_size=4",
        f"{ACTOR}.ppo_epochs=2",
        f"{ACTOR}.ppo_micro_batch_size_per_gpu=3",
    )
    critic = config.critic
    assert (critic.model.path, critic.model.tokenizer_path, critic.model.trust_remote_code) == ("/m", "/t", True)
    assert critic.model.override_config == {"a": 1}
    assert (critic.ppo_mini_batch_size, critic.ppo_epochs, critic.ppo_micro_batch_size_per_gpu) == (4, 2, 3)
    assert critic.use_dynamic_bsz is False
    assert critic.optim.lr == 1e-5


def test_a_critic_of_its_own_keeps_its_settings() -> None:
    critic = resolved(
        "actor_rollout_ref.model.path=/m",
        "actor_rollout_ref.model.trust_remote_code=True",
        "critic.model.path=/c",
        "critic.ppo_mini_batch_size=2",
        "critic.ppo_epochs=3",
    ).critic
    assert (critic.model.path, critic.model.tokenizer_path, critic.model.trust_remote_code) == ("/c", None, False)
    assert (critic.ppo_mini_batch_size, critic.ppo_epochs) == (2, 3)


@pytest.mark.parametrize("needs", [True, False, None])
def test_the_estimator_decides_about_the_critic_unless_the_user_did(needs: bool | None) -> None:
    assert resolved(needs_critic=needs).critic.enable is needs
    assert resolved("critic.enable=True", needs_critic=needs).critic.enable is True
    assert resolved("critic.enable=False", needs_critic=needs).critic.enable is False


@pytest.mark.parametrize(
    ("overrides", "dynamic", "rows", "tokens"),
    [
        ((), False, None, 16384),
        ((f"{ACTOR}.ppo_micro_batch_size_per_gpu=4",), False, 4, 16384),
        ((f"{ACTOR}.use_dynamic_bsz=True", f"{ACTOR}.ppo_max_token_len_per_gpu=99"), True, None, 99),
        ((f"{ACTOR}.use_dynamic_bsz=True", f"{ROLLOUT}.log_prob_micro_batch_size_per_gpu=2"), False, 2, 16384),
        ((f"{ACTOR}.use_dynamic_bsz=True", f"{ROLLOUT}.log_prob_use_dynamic_bsz=False"), False, None, 16384),
        ((f"{ROLLOUT}.log_prob_use_dynamic_bsz=True", f"{ACTOR}.ppo_micro_batch_size_per_gpu=4"), True, None, 16384),
    ],
)
def test_log_probs_are_cut_like_training(
    overrides: tuple[str, ...], dynamic: bool, rows: int | None, tokens: int
) -> None:
    rollout = resolved(*overrides).actor_rollout_ref.rollout
    assert rollout.log_prob_use_dynamic_bsz is dynamic
    assert rollout.log_prob_micro_batch_size_per_gpu == rows
    assert rollout.log_prob_max_token_len_per_gpu == tokens


def test_the_rollouts_dtype_is_that_of_compute() -> None:
    compute = f"{ACTOR}.fsdp_config.mixed_precision.param_dtype=bf16"
    assert resolved(compute).actor_rollout_ref.rollout.dtype == "bf16"
    assert resolved(compute, f"{ROLLOUT}.dtype=fp32").actor_rollout_ref.rollout.dtype == "fp32"
    assert resolved().actor_rollout_ref.rollout.dtype == "auto"


def test_minus_one_warm_up_step_leaves_it_to_the_ratio() -> None:
    assert resolved(f"{ACTOR}.optim.lr_warmup_steps=-1").actor_rollout_ref.actor.optim.lr_warmup_steps == 0


def test_resolving_twice_changes_nothing_and_the_input_stays() -> None:
    config = load_config(["actor_rollout_ref.model.path=/m", f"{ACTOR}.use_dynamic_bsz=True"])
    before = copy.deepcopy(config)
    once = resolve(config, needs_critic=True)
    assert config == before
    assert resolve(once, needs_critic=False) == once
    once.critic.model.override_config["a"] = 1
    assert config == before


def test_a_reward_model_gets_the_chats() -> None:
    """With a template of its own it would else read the policy's marks as text."""
    assert not resolve(load_config([])).data.return_raw_chat
    assert resolve(load_config(["reward.reward_model.enable=true"])).data.return_raw_chat
