"""From `config.reward` to the object that scores batches."""

import difflib
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from verl.config import CustomRewardFunctionConfig, RewardConfig
from verl.rewards.default import ComputeScore, default_compute_score
from verl.rewards.functions import ROW_ARGUMENTS, ImportedFunction, RewardFunction, reward_functions
from verl.rewards.judge import Judge
from verl.rewards.length import OverlongBuffer
from verl.rewards.manager import Decoder, Limits, RewardManager

_SINGLE = "reward.custom_reward_function"


def load_reward_manager(
    config: RewardConfig, tokenizer: Decoder, max_response_length: int | None = None, compute_score: Any = None
) -> RewardManager:
    """The reward manager that `config` describes: the user's functions or the built-in rules, and the judge.

    Args:
        max_response_length: the longest response, for the overlong penalty when `reward_kwargs.max_resp_len` is null.
        compute_score: in place of the functions that `config` names (see RewardManager).

    Raises ValueError for what cannot be loaded or is no reward function, and for an impossible overlong buffer.
    """
    limits = Limits(**{field.name: getattr(config, field.name) for field in fields(Limits)})
    functions = load_functions(config, compute_score)
    return RewardManager(tokenizer, functions, limits, _overlong(config, max_response_length))


def load_functions(config: RewardConfig, compute_score: Any = None) -> list[RewardFunction]:
    """All functions that score, with their names and weights."""
    if compute_score is not None:
        if config.functions or config.custom_reward_function.path is not None:
            raise ValueError(
                f"a reward function is given, and {_SINGLE}.path or reward.functions names another: leave one out"
            )
        found = reward_functions(compute_score)
    elif config.functions:
        found = [_named_function(name, entry) for name, entry in config.functions.items()]
    else:
        found = [RewardFunction(load_compute_score(config.custom_reward_function))]
    if config.judge.base_url is not None:
        found.append(RewardFunction(Judge.from_config(config.judge), "judge", config.judge.weight, in_driver=True))
    return found


def load_compute_score(config: CustomRewardFunctionConfig, key: str = _SINGLE) -> ComputeScore:
    """The function `name` of the Python file or module `path`, with `reward_kwargs` filled in; without a `path` the
    built-in rules.

    Raises ValueError, which names `key`, when there is no such file, module or function, or when it cannot be called as
    a reward function (see RewardFunction).
    """
    if config.path is None:
        if config.reward_kwargs:
            raise ValueError(f"{key}.reward_kwargs is set without {key}.path: the built-in rules take no arguments")
        return default_compute_score
    try:
        function = ImportedFunction(f"{config.path}:{config.name}", config.reward_kwargs)
    except ValueError as error:
        raise ValueError(f"{key}: {error}") from error
    try:
        RewardFunction(function)
    except ValueError as error:
        arguments = ", ".join((*ROW_ARGUMENTS, *config.reward_kwargs))
        raise ValueError(f"{key}: {config.name} in {config.path} cannot be called with {arguments}: {error}") from error
    return function


def _named_function(name: str, entry: Any) -> RewardFunction:
    """One entry of `reward.functions`."""
    key = f"reward.functions.{name}"
    known = [field.name for field in fields(CustomRewardFunctionConfig)]
    if not isinstance(entry, Mapping):
        raise ValueError(f"{key}={entry!r}: expected {{{', '.join(known)}, weight}}")
    unknown = [given for given in entry if given not in (*known, "weight")]
    if unknown:
        near = difflib.get_close_matches(unknown[0], [*known, "weight"], n=1)
        raise ValueError(f"unknown key {key}.{unknown[0]}{f'; did you mean {near[0]!r}?' if near else ''}")
    weight = entry.get("weight", 1.0)
    if isinstance(weight, bool) or not isinstance(weight, int | float):
        raise ValueError(f"{key}.weight={weight!r}: expected a number")
    single = CustomRewardFunctionConfig(**{given: value for given, value in entry.items() if given != "weight"})
    return RewardFunction(load_compute_score(single, key), name, float(weight))


def _overlong(config: RewardConfig, max_response_length: int | None) -> OverlongBuffer | None:
    buffer, name = config.reward_kwargs.overlong_buffer_cfg, "reward.reward_kwargs"
    if config.reward_manager.name != "dapo" or not buffer.enable:
        return None
    longest = config.reward_kwargs.max_resp_len or max_response_length
    if longest is None:
        raise ValueError(f"{name}.max_resp_len is not set: the overlong penalty needs to know the longest response")
    return OverlongBuffer(longest, buffer.len or 0, buffer.penalty_factor, buffer.log)
