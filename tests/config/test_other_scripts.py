"""Command lines written for other systems: each key works, has no effect and says so, or is refused with a reason."""

import logging
from fnmatch import fnmatchcase

import pytest

from verl.config import ConfigError, PPOConfig
from verl.config.aliases import KEY_ALIASES, newer_name
from verl.config.loader import load_config
from verl.config.tree import leaf_at, leaves, sections
from verl.config.unsupported import UNSUPPORTED, find_unsupported

# The keys that public launch scripts for FSDP or Megatron with vLLM set most, with the value that most give them.
LAUNCH_SCRIPT = """
actor_rollout_ref.actor.ppo_mini_batch_size=128
actor_rollout_ref.actor.optim.lr=1e-6
actor_rollout_ref.actor.use_dynamic_bsz=True
actor_rollout_ref.actor.use_kl_loss=True
actor_rollout_ref.actor.entropy_coeff=0
actor_rollout_ref.actor.ppo_max_token_len_per_gpu=24576
actor_rollout_ref.actor.kl_loss_coef=0.001
actor_rollout_ref.actor.kl_loss_type=low_var_kl
actor_rollout_ref.actor.fsdp_config.param_offload=False
actor_rollout_ref.actor.fsdp_config.optimizer_offload=False
actor_rollout_ref.actor.strategy=fsdp2
actor_rollout_ref.actor.use_torch_compile=False
actor_rollout_ref.actor.clip_ratio_low=0.2
actor_rollout_ref.actor.clip_ratio_high=0.28
actor_rollout_ref.actor.clip_ratio_c=10.0
actor_rollout_ref.actor.loss_agg_mode=token-mean
actor_rollout_ref.actor.policy_loss.loss_mode=gspo
actor_rollout_ref.actor.optim.lr_warmup_steps=10
actor_rollout_ref.actor.entropy_from_logits_with_chunking=True
actor_rollout_ref.actor.fsdp_config.fsdp_size=8
actor_rollout_ref.actor.fsdp_config.reshard_after_forward=True
actor_rollout_ref.actor.fsdp_config.entropy_checkpointing=True
actor_rollout_ref.actor.fsdp_config.offload_policy=True
actor_rollout_ref.actor.optim.weight_decay=0.1
actor_rollout_ref.actor.fsdp_config.ulysses_sequence_parallel_size=1
actor_rollout_ref.actor.ppo_epochs=1
actor_rollout_ref.actor.optim.clip_grad=1.0
actor_rollout_ref.actor.ulysses_sequence_parallel_size=2
actor_rollout_ref.actor.checkpoint.save_contents=['model','optimizer','extra']
actor_rollout_ref.actor.fsdp_config.model_dtype=bfloat16
actor_rollout_ref.actor.fsdp_config.forward_prefetch=False
+actor_rollout_ref.actor.fsdp_config.mixed_precision.reduce_dtype=bf16
actor_rollout_ref.actor.entropy_checkpointing=True
actor_rollout_ref.actor.fsdp_config.use_orig_params=True
actor_rollout_ref.actor.optim.optimizer=AdamW
actor_rollout_ref.model.path=Qwen/Qwen3-8B
actor_rollout_ref.model.use_remove_padding=True
actor_rollout_ref.model.enable_gradient_checkpointing=True
actor_rollout_ref.model.use_fused_kernels=True
actor_rollout_ref.model.trust_remote_code=True
actor_rollout_ref.model.lora_rank=64
actor_rollout_ref.model.lora_alpha=32
actor_rollout_ref.nccl_timeout=14400
actor_rollout_ref.ref.log_prob_use_dynamic_bsz=True
actor_rollout_ref.ref.log_prob_max_token_len_per_gpu=24576
actor_rollout_ref.ref.fsdp_config.param_offload=True
actor_rollout_ref.ref.use_torch_compile=False
actor_rollout_ref.ref.strategy=fsdp2
actor_rollout_ref.ref.entropy_from_logits_with_chunking=True
actor_rollout_ref.ref.fsdp_config.reshard_after_forward=True
actor_rollout_ref.ref.fsdp_config.offload_policy=True
actor_rollout_ref.ref.fsdp_config.ulysses_sequence_parallel_size=1
actor_rollout_ref.ref.fsdp_config.forward_prefetch=False
actor_rollout_ref.rollout.name=vllm
actor_rollout_ref.rollout.gpu_memory_utilization=0.6
actor_rollout_ref.rollout.tensor_model_parallel_size=2
actor_rollout_ref.rollout.n=5
actor_rollout_ref.rollout.log_prob_use_dynamic_bsz=True
actor_rollout_ref.rollout.log_prob_max_token_len_per_gpu=24576
actor_rollout_ref.rollout.enable_chunked_prefill=True
actor_rollout_ref.rollout.enforce_eager=False
actor_rollout_ref.rollout.free_cache_engine=True
actor_rollout_ref.rollout.max_num_batched_tokens=8192
actor_rollout_ref.rollout.calculate_log_probs=True
actor_rollout_ref.rollout.max_model_len=10240
actor_rollout_ref.rollout.enable_prefix_caching=False
actor_rollout_ref.rollout.expert_parallel_size=128
actor_rollout_ref.rollout.mode=async
actor_rollout_ref.rollout.ignore_eos=False
actor_rollout_ref.rollout.top_p=1.0
actor_rollout_ref.rollout.temperature=1.0
actor_rollout_ref.rollout.load_format=safetensors
actor_rollout_ref.rollout.prompt_length=1024
actor_rollout_ref.rollout.response_length=2048
actor_rollout_ref.rollout.data_parallel_size=1
actor_rollout_ref.rollout.val_kwargs.n=1
actor_rollout_ref.rollout.val_kwargs.top_p=0.7
actor_rollout_ref.rollout.val_kwargs.temperature=1.0
actor_rollout_ref.rollout.val_kwargs.do_sample=True
actor_rollout_ref.rollout.max_num_seqs=16
actor_rollout_ref.rollout.dtype=bfloat16
actor_rollout_ref.rollout.layered_summon=True
actor_rollout_ref.rollout.top_k=-1
algorithm.adv_estimator=grpo
algorithm.use_kl_in_reward=False
algorithm.kl_ctrl.kl_coef=0.001
algorithm.gamma=1.0
algorithm.kl_penalty=kl
algorithm.lam=0.95
algorithm.rollout_correction.rollout_is=token
algorithm.rollout_correction.rollout_is_threshold=2.0
algorithm.rollout_correction.bypass_mode=true
algorithm.rollout_correction.rollout_rs=token_k1
algorithm.rollout_correction.rollout_is_batch_normalize=true
algorithm.rollout_correction.rollout_rs_threshold=0.6_1.6
critic.model.path=Qwen/Qwen3-8B
critic.optim.lr=1e-5
critic.model.use_remove_padding=True
critic.use_dynamic_bsz=True
critic.model.enable_gradient_checkpointing=True
critic.fsdp.param_offload=True
critic.fsdp.optimizer_offload=True
critic.ppo_max_token_len_per_gpu=24576
data.train_files=['/data/gsm8k/train.parquet','/data/math/train.parquet']
data.train_batch_size=128
data.max_prompt_length=1024
data.max_response_length=2048
data.val_files=/data/gsm8k/test.parquet
data.truncation=error
data.filter_overlong_prompts=True
data.return_raw_chat=True
data.shuffle=False
data.prompt_key=prompt
data.filter_overlong_prompts_workers=64
data.trust_remote_code=True
reward.reward_manager.name=dapo
+reward.reward_kwargs.overlong_buffer_cfg.enable=True
+reward.reward_kwargs.max_resp_len=8192
+reward.reward_kwargs.overlong_buffer_cfg.penalty_factor=1.0
+reward.reward_kwargs.overlong_buffer_cfg.len=4096
+reward.reward_kwargs.overlong_buffer_cfg.log=False
reward.custom_reward_function.name=compute_score
reward.custom_reward_function.path=/code/reward.py
reward.reward_model.enable=True
reward.reward_model.model_path=/models/rm
reward.reward_model.rollout.response_length=512
reward.reward_model.rollout.prompt_length=8192
reward.reward_model.rollout.gpu_memory_utilization=0.6
reward.reward_model.rollout.tensor_model_parallel_size=1
reward.reward_model.rollout.name=vllm
reward.num_workers=8
reward_model.reward_manager=dapo
+reward_model.reward_kwargs.overlong_buffer_cfg.enable=True
+reward_model.reward_kwargs.max_resp_len=8192
trainer.experiment_name=qwen3_8b_vllm_fsdp
trainer.logger=["console","wandb"]
trainer.project_name=verl_grpo_example_geo3k
trainer.nnodes=1
trainer.n_gpus_per_node=8
trainer.total_epochs=15
trainer.test_freq=5
trainer.save_freq=20
trainer.balance_batch=True
trainer.val_before_train=False
trainer.critic_warmup=0
trainer.total_training_steps=1
trainer.default_local_dir=checkpoints/run
trainer.resume_mode=auto
trainer.log_val_generations=10
trainer.resume_from_path=null
trainer.device=npu
""".strip().splitlines()

# What of it this version cannot do, and the value with which it does the same without that.
REFUSED = {
    "actor_rollout_ref.actor.fsdp_config.offload_policy=True": "False",
    "actor_rollout_ref.actor.ulysses_sequence_parallel_size=2": "1",
    "actor_rollout_ref.model.lora_rank=64": "0",
    "actor_rollout_ref.ref.fsdp_config.offload_policy=True": "False",
    "actor_rollout_ref.rollout.expert_parallel_size=128": "1",
    "actor_rollout_ref.rollout.mode=async": "sync",
    "trainer.device=npu": "auto",
}


def test_a_whole_launch_script_says_exactly_what_is_missing() -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(LAUNCH_SCRIPT)
    message = str(caught.value)
    assert "unknown key" not in message
    named = [line for line in LAUNCH_SCRIPT if line.partition("=")[0].lstrip("+") + "=" in message]
    assert named == list(REFUSED)
    assert "lora_rank=64 (command line): not supported: LoRA is not part of this version" in message
    assert (
        "actor_rollout_ref.rollout.expert_parallel_size=128 (command line): not supported: a replica of the rollout "
        "engine spans the tensor_model_parallel_size processes"
    ) in message


def test_with_those_off_the_script_resolves(caplog: pytest.LogCaptureFixture) -> None:
    def mended(line: str) -> str:
        return line.partition("=")[0] + "=" + REFUSED[line] if line in REFUSED else line

    with caplog.at_level(logging.WARNING):
        config = load_config([mended(line) for line in LAUNCH_SCRIPT])
    assert config.actor_rollout_ref.actor.fsdp_config.model_dtype == "bf16"
    assert config.actor_rollout_ref.rollout.n == 5
    assert config.data.train_files == ["/data/gsm8k/train.parquet", "/data/math/train.parquet"]
    assert config.trainer.logger == ["console", "wandb"]
    assert config.reward.reward_manager.name == "dapo"
    assert config.reward.reward_model.model.path == "/models/rm"
    assert (
        "no effect: actor_rollout_ref.actor.use_torch_compile=False (command line), "
        "actor_rollout_ref.ref.use_torch_compile=False (command line): it changes speed and memory, not results"
    ) in caplog.text


@pytest.mark.parametrize(
    ("older", "value", "newer"),
    [
        ("reward_model.reward_manager", "dapo", "reward.reward_manager.name"),
        ("reward_model.enable", True, "reward.reward_model.enable"),
        ("reward_model.model.path", "x", "reward.reward_model.model.path"),
        ("reward_model.micro_batch_size_per_gpu", 2, "reward.reward_model.micro_batch_size_per_gpu"),
        ("reward_model.model.fsdp_config.param_offload", True, "reward.reward_model.fsdp.param_offload"),
        ("custom_reward_function.path", "x.py", "reward.custom_reward_function.path"),
        ("custom_reward_function.reward_kwargs.a", 1, "reward.custom_reward_function.reward_kwargs"),
        ("critic.model.fsdp_config.optimizer_offload", True, "critic.fsdp.optimizer_offload"),
        ("actor_rollout_ref.actor.grad_clip", 0.5, "actor_rollout_ref.actor.optim.clip_grad"),
        ("critic.optim.warmup_style", "cosine", "critic.optim.lr_scheduler_type"),
        ("data.trust_remote_code", True, "actor_rollout_ref.model.trust_remote_code"),
    ],
)
def test_older_names_are_accepted_with_a_note(
    older: str, value: object, newer: str, caplog: pytest.LogCaptureFixture
) -> None:
    config: object = load_config([f"{older}={value}"])
    for name in newer.split("."):
        config = getattr(config, name)
    assert config == ({"a": 1} if isinstance(config, dict) else value)
    assert f"{older} is an older name of {newer}" in caplog.text


def test_a_whole_section_of_a_file_may_have_its_older_name(tmp_path) -> None:
    path = tmp_path / "old.yaml"
    path.write_text(
        "reward_model:\n  reward_manager: naive\n  enable: true\n  model: {path: /rm, fsdp_config: {fsdp_size: 2}}\n"
        "custom_reward_function: {path: r.py, name: f}\n"
    )
    reward = load_config([], str(path)).reward
    assert (reward.reward_model.enable, reward.reward_model.model.path, reward.reward_model.fsdp.fsdp_size) == (
        True,
        "/rm",
        2,
    )
    assert (reward.custom_reward_function.path, reward.custom_reward_function.name) == ("r.py", "f")


def test_a_refusal_names_the_file_and_line(tmp_path) -> None:
    path = tmp_path / "run.yaml"
    path.write_text("actor_rollout_ref:\n  rollout:\n    expert_parallel_size: 4\n")
    with pytest.raises(ConfigError, match=r"expert_parallel_size=4 \(.*run.yaml, line 3\): not supported: "):
        load_config([], str(path))


@pytest.mark.parametrize(
    "override",
    [
        "actor_rollout_ref.actor.megatron.tensor_model_parallel_size=2",
        "actor_rollout_ref.actor.strategy=megatron",
        "hydra.run.dir=x",
        "critic.megatron.param_offload=True",
        "data.datagen.path=x.py",
        "actor_rollout_ref.actor.ppo_micro_batch_size=8",
        "actor_rollout_ref.rollout.quantization=fp8",
        "actor_rollout_ref.actor.checkpoint.save_contents=[model]",
    ],
)
def test_other_known_keys_are_refused_with_a_reason(override: str) -> None:
    with pytest.raises(ConfigError, match="not supported: "):
        load_config([override])


# ---- the tables are tidy ----


@pytest.mark.parametrize("older", KEY_ALIASES)
def test_an_alias_leads_to_a_key_that_exists(older: str) -> None:
    newer = newer_name(older)
    assert newer != older
    assert newer_name(newer) == newer
    assert leaf_at(newer) or newer in sections() or find_unsupported(newer) or find_unsupported(f"{newer}.x")
    assert older not in leaves() and older not in sections()


@pytest.mark.parametrize("row", UNSUPPORTED, ids=lambda row: row.pattern)
def test_a_key_that_exists_has_no_row_among_the_unsupported(row) -> None:
    assert [path for path in leaves() if fnmatchcase(path, row.pattern)] == []


def test_every_row_can_be_reached() -> None:
    hidden = [row.pattern for row in UNSUPPORTED if find_unsupported(row.pattern.replace("*", "x")) is not row]
    assert hidden == []


def test_defaults_are_what_no_override_says() -> None:
    assert load_config(["actor_rollout_ref.rollout.tensor_model_parallel_size=1"]) == PPOConfig()
