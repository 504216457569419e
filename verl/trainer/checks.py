"""What must hold before anything starts: the config's own rules, and those of the algorithms that it names."""

from collections.abc import Collection
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

from verl.algorithms.advantages import get_adv_estimator
from verl.algorithms.policy_losses import get_policy_loss
from verl.algorithms.preference_losses import get_preference_loss, loss_arguments
from verl.algorithms.registry import check_keywords
from verl.algorithms.rollout_correction import check_levels
from verl.config import ModelConfig, PPOConfig
from verl.config.errors import ConfigError
from verl.config.validate import resolve, validate
from verl.models.loading import check_model_folder, heads_problem, local_config, position_limit
from verl.utils.backends import require_backend


def checked(config: PPOConfig, given: Collection[str] = ()) -> PPOConfig:
    """The resolved config.

    Args:
        given: keys of files and models that the caller hands over as objects (see `verl.config.validate.validate`).

    Raises:
        ValueError: what is wrong, before any model loads; what the config alone can tell comes as one list.
    """
    estimator, preference = get_adv_estimator(config.algorithm.adv_estimator), config.algorithm.preference
    if preference.loss is None:
        needs_critic, needs_groups = estimator.needs_critic, estimator.needs_groups
    else:
        needs_critic, needs_groups = False, True
        check_keywords(get_preference_loss(preference.loss).fn, loss_arguments(preference), "algorithm.preference")
    config = resolve(config, needs_critic=needs_critic)
    validate(config, needs_critic=needs_critic, needs_groups=needs_groups, given=given)
    loss = config.actor_rollout_ref.actor.policy_loss
    get_policy_loss(loss.loss_mode).check_kwargs(loss.loss_kwargs)
    if config.actor_rollout_ref.rollout.name == "vllm":
        require_backend("vllm", "actor_rollout_ref.rollout.name=vllm")
    correction = config.algorithm.rollout_correction
    check_levels(correction.rollout_is, correction.rollout_rs, correction.rollout_rs_threshold)
    if estimator.needs_reward_components and config.algorithm.use_kl_in_reward:
        raise ConfigError(
            [
                f"algorithm.adv_estimator={config.algorithm.adv_estimator} normalises rewards one by one, and KL "
                "in the reward (algorithm.use_kl_in_reward) is none of them: use actor_rollout_ref.actor.use_kl_loss"
            ]
        )
    return config


def check_single_rewards(config: PPOConfig, reward_fn: Any) -> None:
    """ConfigError for weights in the sum of rewards when the estimator reads the single ones, which would lose them."""
    reward, name = config.reward, config.algorithm.adv_estimator
    if not get_adv_estimator(name).needs_reward_components:
        return
    weights = {f"of the reward function {f.name!r}": f.weight for f in getattr(reward_fn, "functions", ())}
    weights["reward.rule_weight"] = reward.rule_weight or 1.0  # 0 leaves the rule out
    if reward.reward_model.enable:
        weights["reward.reward_model.weight"] = reward.reward_model.weight
    lost = [f"{key}={weight:g}" for key, weight in weights.items() if weight != 1]
    if lost:
        raise ConfigError(
            [
                f"weights in the sum of rewards ({', '.join(lost)}) have no effect with "
                f"algorithm.adv_estimator={name}, which normalises rewards one by one: leave them at 1, and set "
                "algorithm.gdpo_reward_weights"
            ]
        )


def check_models(config: PPOConfig, given: Collection[str] = ()) -> None:
    """ValueError, without loading anything, when a model that the run needs cannot be read from where it should be."""
    models = {"actor_rollout_ref.model.path": config.actor_rollout_ref.model}
    if config.critic.enable:
        models["critic.model.path"] = config.critic.model
    if config.reward.reward_model.enable:
        models["reward.reward_model.model.path"] = config.reward.reward_model.model
    _check_tensor_parallel(config, given)
    longest = config.data.max_prompt_length + config.data.max_response_length
    for key, model in models.items():
        path = model.path
        if key in given or path is None:
            continue  # a critic without a path of its own starts from the actor that was given
        check_model_folder(path)
        limit = None if key == "reward.reward_model.model.path" else position_limit(path)  # which cuts its texts
        if limit is not None and longest > limit:
            raise ConfigError(
                [
                    f"data.max_prompt_length {config.data.max_prompt_length} + data.max_response_length "
                    f"{config.data.max_response_length} = {longest} tokens, but the model in {path!r} has {limit} "
                    "positions"
                ]
            )


def _check_tensor_parallel(config: PPOConfig, given: Collection[str]) -> None:
    path, size = config.actor_rollout_ref.model.path, config.actor_rollout_ref.rollout.tensor_model_parallel_size
    if path is None or "actor_rollout_ref.model.path" in given:
        return
    problem = heads_problem(local_config(path), size)
    if problem is not None:
        raise ConfigError([f"actor_rollout_ref.rollout.tensor_model_parallel_size={size}: {problem} (model {path!r})"])


def check_tokenizer(tokenizer: Any, model: ModelConfig, module: Any = None) -> None:
    """ValueError for a tokenizer that cannot pad, or that has more tokens than the policy.

    Args:
        module: the policy itself, when it is handed over instead of named.
    """
    if tokenizer.pad_token_id is None:
        raise ValueError("the tokenizer has no pad token: set it first (tokenizer.pad_token = tokenizer.eos_token)")
    size = _vocabulary(model, module)
    if size is not None and hasattr(tokenizer, "__len__") and len(tokenizer) > size:
        raise ValueError(
            f"the tokenizer has {len(tokenizer)} tokens, but the policy's vocabulary has {size}: they do not belong "
            "together; give the tokenizer of the model (tokenizer=..., or actor_rollout_ref.model.tokenizer_path)"
        )


def _vocabulary(model: ModelConfig, module: Any) -> int | None:
    """The policy's vocabulary, as far as a config says it."""
    if module is not None:
        return getattr(getattr(module, "config", None), "vocab_size", None)
    return None if model.path is None else local_config(model.path).get("vocab_size")


def check_writable(key: str, folder: str | Path | None) -> None:
    """Make the folder that `key` names. ValueError when nothing can be written there; None is no folder."""
    if folder is None:
        return
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
        with TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise ValueError(f"{key}={folder}: nothing can be written there ({error}): set another folder") from error
