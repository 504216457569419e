"""What a config must fulfil before anything loads. Pure: looks at no file, device or process."""

import logging
from collections.abc import Callable, Collection, Iterator
from typing import Any

from verl.config.device_map import ROLE_NAMES, places_of
from verl.config.errors import ConfigError
from verl.config.facts import Facts
from verl.config.model import OptimConfig
from verl.config.ppo import PPOConfig
from verl.config.ranges import out_of_range
from verl.config.resolve import resolve
from verl.config.trainer import RunConfig
from verl.config.tree import leaves, value_at
from verl.config.validate_layout import check_device_map, check_role_processes, check_rollout_engine

__all__ = ["resolve", "validate"]

logger = logging.getLogger(__name__)

ROLLOUTS = ("auto", "hf", "vllm")
LOGGERS = ("console", "file", "tensorboard", "wandb", "mlflow", "trackio", "swanlab")
LOSS_AGG_MODES = ("token-mean", "token-sum", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm")
KL_TYPES = tuple(
    f"{kind}{gradient}" for gradient in ("", "+") for kind in ("kl", "k1", "abs", "mse", "k2", "low_var_kl", "k3")
)

NO_PART_OF_A_RANKING = (
    "algorithm.use_kl_in_reward",
    "algorithm.rollout_correction.rollout_is",
    "algorithm.rollout_correction.rollout_rs",
    "actor_rollout_ref.actor.use_kl_loss",
    "actor_rollout_ref.actor.entropy_coeff",
)
"""Keys that change what is learnt from advantages."""


def validate(
    config: PPOConfig,
    *,
    needs_critic: bool | None = None,
    needs_groups: bool | None = None,
    given: Collection[str] = (),
    quiet: bool = False,
) -> None:
    """Refuse contradictions and impossible sizes; log what is allowed but surprising.

    Args:
        config: resolved or not.
        needs_critic, needs_groups: what the advantage estimator needs (it lives in verl.algorithms); None is unknown.
        given: keys whose object the caller hands over instead of a path: `data.train_files`, `data.val_files`,
            `actor_rollout_ref.model.path`, `critic.model.path`, `reward.reward_model.model.path`.
        quiet: log nothing.

    Raises:
        ConfigError: lists everything that is wrong, with the arithmetic.
    """
    config = resolve(config, needs_critic)
    facts = Facts(needs_critic, needs_groups, given)
    problems = list(out_of_range(config))
    places_of(config.trainer)  # a wrong map is told alone: what follows from it would be wrong as well
    # With a number out of its range, the arithmetic would be wrong as well, or divide by zero.
    checks = CHECKS if problems else CHECKS + ARITHMETIC
    problems += [problem for check in checks for problem in check(config, facts)]
    if problems:
        raise ConfigError(problems)
    for note in () if quiet else notes(config):
        logger.warning(note)


# ---- what must be there ----


def _inputs(config: PPOConfig, facts: Facts) -> Iterator[str]:
    hints = {
        "data.train_files": "set it to a parquet file, or to a list of them",
        "actor_rollout_ref.model.path": "set it to a Hugging Face id, a local folder or a .gguf file",
    }
    if not config.reward.rule_weight and not config.reward.reward_model.enable:
        yield "reward.rule_weight=0 leaves the rules out, and there is no reward model: every score would be 0"
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


# ---- the algorithm ----


def _critic(config: PPOConfig, facts: Facts) -> Iterator[str]:
    ranked = config.algorithm.preference.loss
    chosen = f"algorithm.adv_estimator={config.algorithm.adv_estimator}"
    chosen = chosen if ranked is None else f"algorithm.preference.loss={ranked}"
    if facts.needs_critic is False and config.critic.enable:
        yield f"critic.enable=True, but {chosen} uses no values: leave critic.enable out"
    if facts.needs_critic and not config.critic.enable:
        yield f"critic.enable=False, but {chosen} needs a critic: leave critic.enable out"
    warmup, steps = config.trainer.critic_warmup, config.trainer.total_training_steps
    if config.critic.enable is False and warmup > 0:
        yield f"trainer.critic_warmup={warmup}, but this run has no critic ({chosen})"
    if steps is not None and not config.trainer.val_only and warmup >= steps:
        yield f"trainer.critic_warmup={warmup} of trainer.total_training_steps={steps}: the actor would never train"


def _groups(config: PPOConfig, facts: Facts) -> Iterator[str]:
    n, ranked = config.actor_rollout_ref.rollout.n, config.algorithm.preference.loss
    if n >= 2:
        return
    if ranked is not None:
        yield (
            f"algorithm.preference.loss={ranked} learns from the ranking of a prompt's samples, but "
            f"actor_rollout_ref.rollout.n={n}: there is nothing to rank; set n to 2 or more"
        )
    elif facts.needs_groups:
        yield (
            f"algorithm.adv_estimator={config.algorithm.adv_estimator} compares the samples of a prompt with each "
            f"other, but actor_rollout_ref.rollout.n={n}: every advantage would be 0; set n to 2 or more"
        )


def _preference(config: PPOConfig, facts: Facts) -> Iterator[str]:
    preference = config.algorithm.preference
    if preference.loss is None:
        for name, value in vars(preference).items():
            if value not in (None, {}):
                yield f"algorithm.preference.{name}={value}, but algorithm.preference.loss is not set: no loss reads it"
        return
    for path in NO_PART_OF_A_RANKING:
        if value_at(config, path):
            yield (
                f"{path}={value_at(config, path)}, but algorithm.preference.loss={preference.loss} learns from the "
                "ranking of samples and not from their advantages: leave it out"
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
ARITHMETIC: tuple[Check, ...] = (_mini_batches, _token_limits, check_role_processes, check_rollout_engine)
CHECKS: tuple[Check, ...] = (
    _inputs,
    check_validation,
    _names,
    _lengths,
    _critic,
    _groups,
    _preference,
    _exploration,
    check_device_map,
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
    placed = {ROLE_NAMES[name]: name for name in trainer.device_map}
    algorithm = config.algorithm
    reference = algorithm.use_kl_in_reward or actor.use_kl_loss or algorithm.preference.loss is not None
    switch = {
        "critic": "an algorithm.adv_estimator with a critic (gae)",
        "ref": "algorithm.use_kl_in_reward or actor_rollout_ref.actor.use_kl_loss",
        "rm": "reward.reward_model.enable=True",
    }
    used = {"critic": config.critic.enable, "ref": reference, "rm": config.reward.reward_model.enable}
    for role in sorted(role for role, needed in used.items() if needed is False and role in placed):
        found.append(
            f"trainer.device_map places the role {placed[role]}, which this run does not have: leave it out, or set "
            f"{switch[role]}"
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
