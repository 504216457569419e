"""What a config must fulfil before anything loads. Pure: looks at no file, device or process."""

import logging
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import Any

from verl.config.errors import ConfigError
from verl.config.model import OptimConfig
from verl.config.ppo import PPOConfig
from verl.config.ranges import out_of_range
from verl.config.resolve import resolve
from verl.config.trainer import BaseTrainerConfig, RunConfig
from verl.config.tree import leaves, value_at

__all__ = ["resolve", "validate"]

logger = logging.getLogger(__name__)

ROLLOUTS = ("auto", "hf", "vllm")
LOGGERS = ("console", "file", "tensorboard", "wandb")
LOSS_AGG_MODES = ("token-mean", "token-sum", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm")
KL_TYPES = tuple(
    f"{kind}{gradient}" for gradient in ("", "+") for kind in ("kl", "k1", "abs", "mse", "k2", "low_var_kl", "k3")
)


@dataclass(frozen=True)
class Facts:
    """What the config does not say itself; see `validate`."""

    needs_critic: bool | None = None
    needs_groups: bool | None = None
    num_devices: int | None = None
    given: Collection[str] = ()


def validate(
    config: PPOConfig,
    *,
    needs_critic: bool | None = None,
    needs_groups: bool | None = None,
    num_devices: int | None = None,
    given: Collection[str] = (),
) -> None:
    """Refuse contradictions and impossible sizes; log what is allowed but surprising.

    Args:
        config: resolved or not.
        needs_critic, needs_groups: what the advantage estimator needs (it lives in verl.algorithms); None is unknown.
        num_devices: GPUs that there are, when the run is to use them; None is unknown.
        given: keys whose object the caller hands over instead of a path: `data.train_files`, `data.val_files`,
            `actor_rollout_ref.model.path`, `critic.model.path`, `reward.reward_model.model.path`.

    Raises:
        ConfigError: lists everything that is wrong, with the arithmetic.
    """
    config = resolve(config, needs_critic)
    facts = Facts(needs_critic, needs_groups, num_devices, given)
    problems = list(out_of_range(config))
    # With a number out of its range, the arithmetic would be wrong as well, or divide by zero.
    checks = CHECKS if problems else CHECKS + ARITHMETIC
    problems += [problem for check in checks for problem in check(config, facts)]
    if problems:
        raise ConfigError(problems)
    for note in notes(config):
        logger.warning(note)


# ---- what must be there ----


def _inputs(config: PPOConfig, facts: Facts) -> Iterator[str]:
    hints = {
        "data.train_files": "set it to a parquet file, or to a list of them",
        "actor_rollout_ref.model.path": "set it to a Hugging Face id, a local folder or a .gguf file",
    }
    if config.reward.reward_model.enable:
        hints["reward.reward_model.model.path"] = "reward.reward_model.enable=True needs a model"
    for path, hint in hints.items():
        if path not in facts.given and not value_at(config, path):
            yield f"{path} is missing: {hint}"


def check_validation(config: Any, facts: Facts) -> Iterator[str]:
    if config.data.val_files or "data.val_files" in facts.given:
        return
    if config.trainer.val_only:
        yield "trainer.val_only=True, but data.val_files is not set: there is nothing to validate on"
    if config.trainer.test_freq >= 0:
        yield (
            f"trainer.test_freq={config.trainer.test_freq}, but data.val_files is not set: "
            "set it, or trainer.test_freq=-1 to never validate"
        )


def _names(config: PPOConfig, facts: Facts) -> Iterator[str]:
    chosen: list[tuple[str, str, Collection[str]]] = [
        ("actor_rollout_ref.actor.loss_agg_mode", config.actor_rollout_ref.actor.loss_agg_mode, LOSS_AGG_MODES),
        ("critic.loss_agg_mode", config.critic.loss_agg_mode, LOSS_AGG_MODES),
        ("actor_rollout_ref.actor.kl_loss_type", config.actor_rollout_ref.actor.kl_loss_type, KL_TYPES),
        ("algorithm.kl_penalty", config.algorithm.kl_penalty, KL_TYPES),
    ]
    chosen += [("trainer.logger", name, LOGGERS) for name in config.trainer.logger]
    chosen += [(path, value_at(config, path), leaf.choices) for path, leaf in leaves().items() if leaf.choices]
    for path, name, known in chosen:
        if name not in known:
            yield f"{path}={name}: expected one of {', '.join(known)}"
    rollout = config.actor_rollout_ref.rollout.name
    if rollout not in ROLLOUTS:
        yield f"actor_rollout_ref.rollout.name={rollout}: expected one of {', '.join(ROLLOUTS)}"


# ---- sizes ----


def _mini_batches(config: PPOConfig, facts: Facts) -> Iterator[str]:
    batch, n = config.data.train_batch_size, config.actor_rollout_ref.rollout.n
    sizes = {"actor_rollout_ref.actor.ppo_mini_batch_size": config.actor_rollout_ref.actor.ppo_mini_batch_size}
    critic_size = config.critic.ppo_mini_batch_size
    assert critic_size is not None
    if config.critic.enable and critic_size not in sizes.values():
        sizes["critic.ppo_mini_batch_size"] = critic_size
    counted = f"train batch {batch} prompts x n {n} = {batch * n} samples; both sizes count prompts, before n"
    for path, size in sizes.items():
        if size > batch:
            yield (
                f"{path}={size}: a mini-batch of {size} prompts > the train batch of {batch} prompts ({counted}): "
                f"use at most {batch}, or a data.train_batch_size of at least {size}"
            )
        elif batch % size:
            yield (
                f"{path}={size} does not divide data.train_batch_size={batch}: "
                f"{batch} = {batch // size} x {size} + {batch % size} ({counted})"
            )


def _token_limits(config: PPOConfig, facts: Facts) -> Iterator[str]:
    prompt, response = config.data.max_prompt_length, config.data.max_response_length
    policy, critic = config.actor_rollout_ref, config.critic
    limits = [
        ("actor_rollout_ref.actor.ppo_max_token_len_per_gpu", policy.actor.use_dynamic_bsz),
        ("actor_rollout_ref.rollout.log_prob_max_token_len_per_gpu", policy.rollout.log_prob_use_dynamic_bsz),
        ("actor_rollout_ref.ref.log_prob_max_token_len_per_gpu", policy.ref.log_prob_use_dynamic_bsz),
        ("critic.ppo_max_token_len_per_gpu", critic.enable and critic.use_dynamic_bsz),
    ]
    for path, used in limits:
        limit = value_at(config, path)
        if used and limit < prompt + response:
            yield (
                f"{path}={limit}: one sample may take data.max_prompt_length {prompt} + data.max_response_length "
                f"{response} = {prompt + response} tokens, more than a micro-batch holds"
            )


def _lengths(config: PPOConfig, facts: Facts) -> Iterator[str]:
    for name in ("prompt", "response"):
        path, source = f"actor_rollout_ref.rollout.{name}_length", f"data.max_{name}_length"
        if value_at(config, path) != value_at(config, source):
            yield (
                f"{path}={value_at(config, path)}, but {source}={value_at(config, source)}: "
                f"leave the first one out, it follows the second"
            )


def _processes(config: PPOConfig, facts: Facts) -> Iterator[str]:
    yield from check_processes(config, facts)
    world, sum_text = process_count(config.trainer)
    size, n = config.actor_rollout_ref.actor.ppo_mini_batch_size, config.actor_rollout_ref.rollout.n
    if size * n < world:
        yield (
            f"{sum_text}, but a mini-batch has only ppo_mini_batch_size {size} prompts x n {n} = {size * n} samples: "
            "some processes would have nothing to train on"
        )


def process_count(trainer: BaseTrainerConfig) -> tuple[int, str]:
    """Worker processes, and how the number comes about."""
    nodes, per_node = trainer.nnodes, trainer.n_gpus_per_node
    return (
        nodes * per_node,
        f"trainer.nnodes {nodes} x trainer.n_gpus_per_node {per_node} = {nodes * per_node} processes",
    )


def _rollout_engine(config: PPOConfig, facts: Facts) -> Iterator[str]:
    rollout = config.actor_rollout_ref.rollout
    path, size = "actor_rollout_ref.rollout.tensor_model_parallel_size", rollout.tensor_model_parallel_size
    world, sum_text = process_count(config.trainer)
    if world % size:
        yield f"{path}={size} does not divide the number of processes: {sum_text}"
    if rollout.name == "hf" and size > 1:
        yield f"{path}={size}: transformers generates with the whole model in each process; use rollout.name=vllm"
    prompt, response, limit = rollout.prompt_length, rollout.response_length, rollout.max_model_len
    assert prompt is not None and response is not None and limit is not None
    if limit < prompt + response:
        yield (
            f"actor_rollout_ref.rollout.max_model_len={limit}: a sequence may take data.max_prompt_length {prompt} + "
            f"data.max_response_length {response} = {prompt + response} tokens"
        )
    unknown = sorted(set(rollout.engine_kwargs) - {"vllm"})
    if unknown:
        yield f"actor_rollout_ref.rollout.engine_kwargs.{unknown[0]}: the one engine that takes arguments is vllm"


def check_processes(config: RunConfig, facts: Facts) -> Iterator[str]:
    world, sum_text = process_count(config.trainer)
    if config.trainer.worker_group == "local" and world > 1:
        yield f"trainer.worker_group=local runs in one process, but {sum_text}: use worker_group=ray"
    if facts.num_devices is not None and world > facts.num_devices:
        yield f"{sum_text}, but there are {facts.num_devices} devices"
    for path in leaves(type(config)):
        if path.endswith(".fsdp_size"):
            shards = value_at(config, path)
            if shards != -1 and world % shards:
                yield f"{path}={shards} does not divide the number of processes: {sum_text}"


# ---- the algorithm ----


def _critic(config: PPOConfig, facts: Facts) -> Iterator[str]:
    name = config.algorithm.adv_estimator
    if facts.needs_critic is False and config.critic.enable:
        yield f"critic.enable=True, but algorithm.adv_estimator={name} uses no values: leave critic.enable out"
    if facts.needs_critic and not config.critic.enable:
        yield f"critic.enable=False, but algorithm.adv_estimator={name} needs a critic: leave critic.enable out"
    warmup, steps = config.trainer.critic_warmup, config.trainer.total_training_steps
    if config.critic.enable is False and warmup > 0:
        yield f"trainer.critic_warmup={warmup}, but this run has no critic (algorithm.adv_estimator={name})"
    if steps is not None and not config.trainer.val_only and warmup >= steps:
        yield f"trainer.critic_warmup={warmup} of trainer.total_training_steps={steps}: the actor would never train"


def _groups(config: PPOConfig, facts: Facts) -> Iterator[str]:
    n = config.actor_rollout_ref.rollout.n
    if facts.needs_groups and n < 2:
        yield (
            f"algorithm.adv_estimator={config.algorithm.adv_estimator} compares the samples of a prompt with each "
            f"other, but actor_rollout_ref.rollout.n={n}: every advantage would be 0; set n to 2 or more"
        )


def _exploration(config: PPOConfig, facts: Facts) -> Iterator[str]:
    rollout = config.actor_rollout_ref.rollout
    if rollout.temperature == 0 or not rollout.do_sample:
        setting = "temperature=0" if rollout.temperature == 0 else "do_sample=False"
        yield (
            f"actor_rollout_ref.rollout.{setting}: training needs samples; greedy decoding explores nothing and its "
            "probability ratios are undefined (validation has val_kwargs of its own)"
        )


def _adaptive_kl(config: PPOConfig, facts: Facts) -> Iterator[str]:
    control = config.algorithm.kl_ctrl
    if control.type == "adaptive":
        for name, value in (("target_kl", control.target_kl), ("horizon", control.horizon)):
            if not value > 0:
                yield f"algorithm.kl_ctrl.{name}={value}: the adaptive controller divides by it; must be above 0"


# ---- rewards ----


def _rewards(config: PPOConfig, facts: Facts) -> Iterator[str]:
    reward = config.reward
    buffer, name = reward.reward_kwargs.overlong_buffer_cfg, "reward.reward_kwargs.overlong_buffer_cfg"
    if buffer.enable:
        longest = reward.reward_kwargs.max_resp_len or config.data.max_response_length
        if reward.reward_manager.name != "dapo":
            yield f"{name}.enable=True needs reward.reward_manager.name=dapo, not {reward.reward_manager.name}"
        if buffer.len is None or buffer.len > longest:
            yield (
                f"{name}.len={'null' if buffer.len is None else buffer.len}: expected from 1 to {longest} tokens, the "
                "longest response (reward.reward_kwargs.max_resp_len, or else data.max_response_length)"
            )
    if reward.functions and reward.custom_reward_function.path is not None:
        yield (
            "reward.functions and reward.custom_reward_function.path are both set: add the second to the first, or "
            "leave one out"
        )
    if reward.judge.base_url is not None and reward.judge.model is None:
        yield "reward.judge.base_url is set without reward.judge.model: name the model that judges"


# ---- the rest ----


def _optimizers(config: PPOConfig, facts: Facts) -> Iterator[str]:
    optims: dict[str, OptimConfig] = {
        "actor_rollout_ref.actor.optim": config.actor_rollout_ref.actor.optim,
        "critic.optim": config.critic.optim,
    }
    for path, optim in optims.items():
        yield from check_betas(path, optim)


def check_betas(path: str, optim: OptimConfig) -> Iterator[str]:
    if len(optim.betas) != 2 or not all(0 <= beta < 1 for beta in optim.betas):
        yield f"{path}.betas={optim.betas}: expected two numbers of at least 0 and below 1"


def check_resume(config: RunConfig, facts: Facts) -> Iterator[str]:
    if config.trainer.resume_mode == "resume_path" and not config.trainer.resume_from_path:
        yield "trainer.resume_mode=resume_path, but trainer.resume_from_path is not set"


Check = Callable[[PPOConfig, Facts], Iterator[str]]
ARITHMETIC: tuple[Check, ...] = (_mini_batches, _token_limits, _processes, _rollout_engine)
CHECKS: tuple[Check, ...] = (
    _inputs,
    check_validation,
    _names,
    _lengths,
    _critic,
    _groups,
    _exploration,
    _adaptive_kl,
    _rewards,
    _optimizers,
    check_resume,
)


def _two_ways_to_cut(config: PPOConfig) -> Iterator[str]:
    switches = {
        "actor_rollout_ref.actor.": ("use_dynamic_bsz", "ppo_micro_batch_size_per_gpu"),
        "actor_rollout_ref.rollout.": ("log_prob_use_dynamic_bsz", "log_prob_micro_batch_size_per_gpu"),
        "actor_rollout_ref.ref.": ("log_prob_use_dynamic_bsz", "log_prob_micro_batch_size_per_gpu"),
        "critic.": ("use_dynamic_bsz", "ppo_micro_batch_size_per_gpu"),
    }
    for section, (switch, size) in switches.items():
        rows = value_at(config, section + size)
        if value_at(config, section + switch) and rows is not None:
            yield f"{section}{size}={rows} has no effect: {section}{switch}=True cuts micro-batches by tokens"


def notes(config: PPOConfig) -> list[str]:
    """What is allowed and may still not be what the user expects."""
    found = list(_two_ways_to_cut(config))
    actor, val, trainer = config.actor_rollout_ref.actor, config.actor_rollout_ref.rollout.val_kwargs, config.trainer
    if config.algorithm.use_kl_in_reward and actor.use_kl_loss:
        found.append(
            "KL to the reference counts twice: in the reward (algorithm.use_kl_in_reward) and in the loss "
            "(actor_rollout_ref.actor.use_kl_loss)"
        )
    correction = config.algorithm.rollout_correction
    if correction.bypass_mode and (correction.rollout_is or correction.rollout_rs):
        found.append(
            "algorithm.rollout_correction.rollout_is and rollout_rs have no effect with bypass_mode=True: the old "
            "log-probs are the rollout's, so the ratio of the policy loss corrects for the difference"
        )
    greedy = not val.do_sample or val.temperature == 0
    if not val.do_sample and val.temperature != 0:
        found.append(
            f"actor_rollout_ref.rollout.val_kwargs.temperature={val.temperature} has no effect: "
            "val_kwargs.do_sample=False decodes greedily"
        )
    if greedy and val.n > 1:
        found.append(
            f"actor_rollout_ref.rollout.val_kwargs.n={val.n}, but validation is greedy: "
            "the samples of a prompt will be the same"
        )
    if trainer.resume_from_path and trainer.resume_mode != "resume_path":
        found.append(
            f"trainer.resume_from_path has no effect with trainer.resume_mode={trainer.resume_mode}: "
            "set resume_mode=resume_path"
        )
    return found
