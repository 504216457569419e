"""A config cannot lie: contradictions and impossible sizes are refused before anything loads, with the arithmetic."""

import dataclasses
import logging
from fnmatch import fnmatchcase
from typing import Any

import pytest

from verl.config import ConfigError, PPOConfig
from verl.config.docs import ROOTS
from verl.config.loader import load_config
from verl.config.ranges import RANGES
from verl.config.tree import leaves
from verl.config.validate import KL_TYPES, LOGGERS, LOSS_AGG_MODES, ROLLOUTS, resolve, validate

ACTOR = "actor_rollout_ref.actor"
ROLLOUT = "actor_rollout_ref.rollout"

# A run that is right, as small as it gets.
GOOD = (
    "data.train_files=train.parquet",
    "actor_rollout_ref.model.path=/model",
    "data.train_batch_size=32",
    f"{ACTOR}.ppo_mini_batch_size=8",
)


def config_of(*overrides: str) -> PPOConfig:
    return load_config([*GOOD, *overrides])


def problems_of(*overrides: str, **facts: Any) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        validate(config_of(*overrides), **facts)
    return caught.value.problems


def test_the_good_run_is_good_resolved_or_not() -> None:
    validate(config_of())
    validate(resolve(config_of()))
    validate(config_of(), needs_critic=True, needs_groups=False)


def test_g8_sizes_are_prompts_and_the_message_shows_the_arithmetic() -> None:
    assert problems_of(f"{ROLLOUT}.n=8", f"{ACTOR}.ppo_mini_batch_size=64") == [
        "actor_rollout_ref.actor.ppo_mini_batch_size=64: a mini-batch of 64 prompts > the train batch of 32 prompts "
        "(train batch 32 prompts x n 8 = 256 samples; both sizes count prompts, before n): "
        "use at most 32, or a data.train_batch_size of at least 64"
    ]


def test_a_mini_batch_divides_the_batch() -> None:
    assert problems_of(f"{ACTOR}.ppo_mini_batch_size=12") == [
        "actor_rollout_ref.actor.ppo_mini_batch_size=12 does not divide data.train_batch_size=32: 32 = 2 x 12 + 8 "
        "(train batch 32 prompts x n 1 = 32 samples; both sizes count prompts, before n)"
    ]


def test_the_critics_mini_batch_counts_when_there_is_a_critic() -> None:
    setting = "critic.ppo_mini_batch_size=5"
    (problem,) = problems_of(setting, needs_critic=True)
    assert problem.startswith("critic.ppo_mini_batch_size=5 does not divide data.train_batch_size=32: 32 = 6 x 5 + 2")
    validate(config_of(setting), needs_critic=False)


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("data.train_batch_size=0", "at least 1"),
        ("data.max_response_length=-1", "at least 1"),
        ("data.train_max_samples=0", "at least 1, or -1"),
        ("data.seed=-1", "at least 0 and at most 9.22337e+18"),
        (f"data.seed={10**30}", "at least 0 and at most 9.22337e+18"),
        (f"{ACTOR}.ppo_mini_batch_size=0", "at least 1"),
        (f"{ACTOR}.ppo_micro_batch_size_per_gpu=0", "at least 1"),
        (f"{ACTOR}.ppo_epochs=0", "at least 1"),
        (f"{ACTOR}.clip_ratio=0.0", "above 0"),
        (f"{ACTOR}.clip_ratio_low=-0.2", "above 0"),
        (f"{ACTOR}.clip_ratio_high=inf", "above 0"),
        (f"{ACTOR}.clip_ratio_c=1.0", "above 1"),
        (f"{ACTOR}.entropy_coeff=nan", "a finite number"),
        (f"{ACTOR}.kl_loss_coef=-0.1", "at least 0"),
        (f"{ACTOR}.optim.lr=0.0", "above 0"),
        (f"{ACTOR}.optim.lr=nan", "above 0"),
        (f"{ACTOR}.optim.lr_warmup_steps_ratio=1.5", "at least 0 and at most 1"),
        (f"{ACTOR}.optim.lr_warmup_steps_ratio=-0.5", "at least 0 and at most 1"),
        (f"{ACTOR}.fsdp_config.fsdp_size=0", "at least 1, or -1"),
        (f"{ROLLOUT}.n=0", "at least 1"),
        (f"{ROLLOUT}.top_p=0.0", "above 0 and at most 1"),
        (f"{ROLLOUT}.top_p=1.5", "above 0 and at most 1"),
        (f"{ROLLOUT}.top_k=0", "at least 1, or -1"),
        (f"{ROLLOUT}.temperature=-1.0", "at least 0"),
        (f"{ROLLOUT}.val_kwargs.top_p=0.0", "above 0 and at most 1"),
        (f"{ROLLOUT}.val_kwargs.temperature=-1.0", "at least 0"),
        (f"{ROLLOUT}.log_prob_micro_batch_size_per_gpu=0", "at least 1"),
        ("algorithm.gamma=1.01", "at least 0 and at most 1"),
        ("algorithm.lam=-0.1", "at least 0 and at most 1"),
        ("critic.cliprange_value=-1.0", "at least 0"),
        ("trainer.n_gpus_per_node=0", "at least 1"),
        ("trainer.test_freq=-2", "at least 0, or -1"),
        ("trainer.total_training_steps=0", "at least 1"),
        ("trainer.worker_timeout_s=0.0", "above 0"),
    ],
)
def test_numbers_out_of_range(override: str, expected: str) -> None:
    assert f"{override}: must be {expected}" in problems_of(override, "data.val_files=v.parquet")


@pytest.mark.parametrize("value", ["1e-6", True, [1]])
def test_a_config_made_in_code_may_hold_no_other_type(value: object) -> None:
    config = config_of()
    config.critic.optim.lr = value  # type: ignore[assignment]
    with pytest.raises(ConfigError) as caught:
        validate(config)
    assert caught.value.problems == [f"critic.optim.lr={value!r}: expected float"]


def test_every_problem_is_told_at_once() -> None:
    problems = problems_of("data.train_files=null", "actor_rollout_ref.model.path=", "critic.optim.lr=0.0")
    assert problems == [
        "critic.optim.lr=0.0: must be above 0",
        "data.train_files is missing: set it to a parquet file, or to a list of them",
        "actor_rollout_ref.model.path is missing: set it to a Hugging Face id, a local folder or a .gguf file",
    ]


def test_what_the_caller_hands_over_is_not_missing() -> None:
    overrides = ("data.train_files=[]", "actor_rollout_ref.model.path=null", "trainer.test_freq=1")
    assert len(problems_of(*overrides)) == 3
    validate(config_of(*overrides), given={"data.train_files", "data.val_files", "actor_rollout_ref.model.path"})


def test_a_reward_model_needs_a_path() -> None:
    assert problems_of("reward.reward_model.enable=True") == [
        "reward.reward_model.model.path is missing: reward.reward_model.enable=True needs a model"
    ]


def test_validation_needs_data() -> None:
    assert problems_of("trainer.test_freq=5") == [
        "trainer.test_freq=5, but data.val_files is not set: set it, or trainer.test_freq=-1 to never validate"
    ]
    assert problems_of("trainer.val_only=True") == [
        "trainer.val_only=True, but data.val_files is not set: there is nothing to validate on"
    ]
    validate(config_of("trainer.test_freq=5", "trainer.val_only=True", "data.val_files=v.parquet"))


@pytest.mark.parametrize(
    ("override", "message"),
    [
        (f"{ACTOR}.loss_agg_mode=token_mean", f"expected one of {', '.join(LOSS_AGG_MODES)}"),
        ("critic.loss_agg_mode=mean", f"expected one of {', '.join(LOSS_AGG_MODES)}"),
        (f"{ACTOR}.kl_loss_type=k4", f"expected one of {', '.join(KL_TYPES)}"),
        ("algorithm.kl_penalty=full", f"expected one of {', '.join(KL_TYPES)}"),
        (f"{ROLLOUT}.name=vlm", "expected one of auto, hf, vllm"),
    ],
)
def test_unknown_names(override: str, message: str) -> None:
    assert problems_of(override) == [f"{override}: {message}"]


def test_the_layout_of_generation() -> None:
    assert problems_of(f"{ROLLOUT}.name=vllm", f"{ROLLOUT}.tensor_model_parallel_size=2") == [
        f"{ROLLOUT}.tensor_model_parallel_size=2 does not divide the number of processes: "
        "trainer.nnodes 1 x trainer.n_gpus_per_node 1 = 1 processes"
    ]
    assert problems_of(f"{ROLLOUT}.tensor_model_parallel_size=2", "trainer.n_gpus_per_node=2") == [
        f"{ROLLOUT}.tensor_model_parallel_size=2: transformers generates with the whole model in each process; "
        "use rollout.name=vllm"
    ]
    assert problems_of(f"{ROLLOUT}.max_model_len=1000", "data.max_prompt_length=512") == [
        f"{ROLLOUT}.max_model_len=1000: a sequence may take data.max_prompt_length 512 + data.max_response_length 512 "
        "= 1024 tokens"
    ]
    assert problems_of(f"{ROLLOUT}.engine_kwargs.sglang.x=1") == [
        f"{ROLLOUT}.engine_kwargs.sglang: the one engine that takes arguments is vllm"
    ]
    validate(config_of(f"{ROLLOUT}.name=vllm", f"{ROLLOUT}.tensor_model_parallel_size=2", "trainer.n_gpus_per_node=2"))


def test_an_unknown_logger_and_a_choice_set_in_code() -> None:
    assert problems_of("trainer.logger=[console,wandbb]") == [
        "trainer.logger=wandbb: expected one of console, file, tensorboard, wandb, mlflow, trackio, swanlab"
    ]
    config = config_of()
    config.trainer.device = "npu"  # type: ignore[assignment]
    with pytest.raises(ConfigError, match="trainer.device=npu: expected one of auto, cpu, cuda"):
        validate(config)


def test_the_names_are_those_of_the_code_that_reads_them() -> None:
    from verl.algorithms.aggregation import AGGREGATION_MODES
    from verl.algorithms.kl import KL_KINDS
    from verl.rollout.factory import ROLLOUT_ENGINES
    from verl.utils.tracking import BACKENDS

    assert LOSS_AGG_MODES == AGGREGATION_MODES
    assert KL_TYPES == KL_KINDS
    assert set(ROLLOUTS) == set(ROLLOUT_ENGINES)
    assert set(LOGGERS) == set(BACKENDS)


def test_what_follows_the_actor_by_itself_is_no_contradiction(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        validate(config_of(f"{ACTOR}.use_dynamic_bsz=True", f"{ROLLOUT}.log_prob_micro_batch_size_per_gpu=2"))
        validate(config_of(f"{ACTOR}.ppo_micro_batch_size_per_gpu=2", f"{ROLLOUT}.log_prob_use_dynamic_bsz=True"))
    assert caplog.records == []


def test_a_micro_batch_by_tokens_holds_the_longest_sample() -> None:
    limit = f"{ACTOR}.ppo_max_token_len_per_gpu=1000"
    problems = problems_of(f"{ACTOR}.use_dynamic_bsz=True", limit)
    assert problems[0] == (
        "actor_rollout_ref.actor.ppo_max_token_len_per_gpu=1000: one sample may take data.max_prompt_length 512 + "
        "data.max_response_length 512 = 1024 tokens, more than a micro-batch holds"
    )
    # The log-probs of rollout and reference follow the actor.
    assert [problem.partition("=")[0] for problem in problems[1:]] == [
        "actor_rollout_ref.rollout.log_prob_max_token_len_per_gpu",
        "actor_rollout_ref.ref.log_prob_max_token_len_per_gpu",
    ]
    validate(config_of(limit))
    validate(config_of(f"{ACTOR}.use_dynamic_bsz=True", limit.replace("1000", "1024")))


def test_the_rollouts_lengths_are_those_of_the_data() -> None:
    assert problems_of(f"{ROLLOUT}.response_length=256") == [
        "actor_rollout_ref.rollout.response_length=256, but data.max_response_length=512: "
        "leave the first one out, it follows the second"
    ]


def test_processes() -> None:
    eight = ("trainer.nnodes=2", "trainer.n_gpus_per_node=4")
    world = "trainer.nnodes 2 x trainer.n_gpus_per_node 4 = 8 processes"
    validate(config_of(*eight))
    assert problems_of(*eight, "trainer.worker_group=local") == [
        f"trainer.worker_group=local runs in one process, but {world}: use worker_group=ray"
    ]
    assert problems_of(*eight, f"{ACTOR}.fsdp_config.fsdp_size=3") == [
        f"actor_rollout_ref.actor.fsdp_config.fsdp_size=3 does not divide the number of processes: {world}"
    ]
    validate(config_of(*eight, f"{ACTOR}.fsdp_config.fsdp_size=4"))
    assert problems_of(*eight, f"{ACTOR}.ppo_mini_batch_size=2", f"{ROLLOUT}.n=3") == [
        f"{world}, but a mini-batch has only ppo_mini_batch_size 2 prompts x n 3 = 6 samples: "
        "some processes would have nothing to train on"
    ]


def test_the_critic_agrees_with_the_estimator() -> None:
    assert problems_of("critic.enable=True", "algorithm.adv_estimator=grpo", needs_critic=False) == [
        "critic.enable=True, but algorithm.adv_estimator=grpo uses no values: leave critic.enable out"
    ]
    assert problems_of("critic.enable=False", needs_critic=True) == [
        "critic.enable=False, but algorithm.adv_estimator=gae needs a critic: leave critic.enable out"
    ]
    assert problems_of("trainer.critic_warmup=2", "algorithm.adv_estimator=grpo", needs_critic=False) == [
        "trainer.critic_warmup=2, but this run has no critic (algorithm.adv_estimator=grpo)"
    ]
    assert problems_of("trainer.critic_warmup=5", "trainer.total_training_steps=5", needs_critic=True) == [
        "trainer.critic_warmup=5 of trainer.total_training_steps=5: the actor would never train"
    ]


def test_groups_need_more_than_one_sample() -> None:
    assert problems_of("algorithm.adv_estimator=grpo", needs_groups=True) == [
        "algorithm.adv_estimator=grpo compares the samples of a prompt with each other, but "
        "actor_rollout_ref.rollout.n=1: every advantage would be 0; set n to 2 or more"
    ]
    validate(config_of("algorithm.adv_estimator=grpo", f"{ROLLOUT}.n=2"), needs_groups=True)


@pytest.mark.parametrize("setting", ["temperature=0", "do_sample=False"])
def test_training_is_not_greedy(setting: str) -> None:
    assert problems_of(f"{ROLLOUT}.{setting}") == [
        f"actor_rollout_ref.rollout.{setting}: training needs samples; greedy decoding explores nothing and its "
        "probability ratios are undefined (validation has val_kwargs of its own)"
    ]


@pytest.mark.parametrize(("name", "value"), [("target_kl", 0.0), ("target_kl", -1.0), ("horizon", 0)])
def test_b11_the_adaptive_controller_needs_a_target_and_a_horizon(name: str, value: float) -> None:
    setting = f"algorithm.kl_ctrl.{name}={value}"
    assert problems_of("algorithm.kl_ctrl.type=adaptive", setting) == [
        f"{setting}: the adaptive controller divides by it; must be above 0"
    ]
    validate(config_of(setting))


def test_betas_and_resume() -> None:
    assert problems_of("critic.optim.betas=[0.9]") == [
        "critic.optim.betas=[0.9]: expected two numbers of at least 0 and below 1"
    ]
    assert problems_of(f"{ACTOR}.optim.betas=[0.9,1.0]") == [
        "actor_rollout_ref.actor.optim.betas=[0.9, 1.0]: expected two numbers of at least 0 and below 1"
    ]
    assert problems_of("trainer.resume_mode=resume_path") == [
        "trainer.resume_mode=resume_path, but trainer.resume_from_path is not set"
    ]


@pytest.mark.parametrize(
    ("overrides", "note"),
    [
        (("algorithm.use_kl_in_reward=True", f"{ACTOR}.use_kl_loss=True"), "KL to the reference counts twice"),
        ((f"{ROLLOUT}.val_kwargs.temperature=0.7",), "val_kwargs.temperature=0.7 has no effect"),
        ((f"{ROLLOUT}.val_kwargs.n=4",), "val_kwargs.n=4, but validation is greedy"),
        (
            (f"{ACTOR}.use_dynamic_bsz=True", f"{ACTOR}.ppo_micro_batch_size_per_gpu=2"),
            "ppo_micro_batch_size_per_gpu=2 has no effect: actor_rollout_ref.actor.use_dynamic_bsz=True cuts",
        ),
        (("trainer.resume_from_path=/x",), "trainer.resume_from_path has no effect with trainer.resume_mode=auto"),
    ],
)
def test_what_is_allowed_but_surprising_is_logged(
    overrides: tuple[str, ...], note: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        validate(config_of(*overrides))
    assert [note in record.message for record in caplog.records] == [True]


def test_validating_changes_nothing() -> None:
    config = config_of()
    before = dataclasses.asdict(config)
    validate(config, needs_critic=True)
    assert dataclasses.asdict(config) == before


def test_the_table_of_ranges_is_tidy() -> None:
    known = {path: leaf for root, _ in ROOTS.values() for path, leaf in leaves(root).items()}
    fitting = {path: [pattern for pattern in RANGES if fnmatchcase(path, pattern)] for path in known}
    used = {patterns[0] for patterns in fitting.values() if patterns}
    assert set(RANGES) - used == set()
    # The adaptive controller's two numbers are checked only when it is chosen.
    numbers = [path for path, leaf in known.items() if leaf.kind in (int, float) and not fitting[path]]
    assert numbers == ["algorithm.kl_ctrl.target_kl", "algorithm.kl_ctrl.horizon"]
