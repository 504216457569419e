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
from verl.config import PPOConfig
from verl.config.errors import ConfigError
from verl.config.validate import resolve, validate
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
    seen, config = config, resolve(config, needs_critic=needs_critic)
    # A config that is resolved already has been here, and what is to be said of it has been said.
    validate(config, needs_critic=needs_critic, needs_groups=needs_groups, given=given, quiet=seen == config)
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
