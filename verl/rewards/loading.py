"""From `config.reward` to the object that scores batches."""

import functools
import inspect
from typing import cast

from verl.config import CustomRewardFunctionConfig, RewardConfig
from verl.rewards.default import ComputeScore, default_compute_score
from verl.rewards.manager import Decoder, RewardManager
from verl.utils.imports import import_from_path

REWARD_MANAGERS = {"naive": RewardManager}


def load_reward_manager(config: RewardConfig, tokenizer: Decoder) -> RewardManager:
    """The reward manager named by `reward.reward_manager.name`, with the user's function or the built-in rules.

    Raises ValueError for an unknown manager and for what `load_compute_score` refuses.
    """
    name = config.reward_manager.name
    if name not in REWARD_MANAGERS:
        raise ValueError(f"unknown reward.reward_manager.name={name!r}: expected {', '.join(REWARD_MANAGERS)}")
    return REWARD_MANAGERS[name](tokenizer, load_compute_score(config.custom_reward_function))


def load_compute_score(config: CustomRewardFunctionConfig) -> ComputeScore:
    """The function `name` of the Python file or module `path`, with `reward_kwargs` filled in; without a `path` the
    built-in rules.

    Raises ValueError when there is no such file, module or function, or when the function cannot be called as
    `fn(data_source=, solution_str=, ground_truth=, extra_info=, **reward_kwargs)`.
    """
    key = "reward.custom_reward_function"
    if config.path is None:
        if config.reward_kwargs:
            raise ValueError(f"{key}.reward_kwargs is set without {key}.path: the built-in rules take no arguments")
        return default_compute_score
    try:
        function = import_from_path(f"{config.path}:{config.name}")
    except ValueError as error:
        raise ValueError(f"{key}: {error}") from error
    if not callable(function):
        raise ValueError(f"{key}: {config.name!r} in {config.path} is no function but a {type(function).__name__}")
    signature = inspect.signature(function)
    arguments = dict.fromkeys(("data_source", "solution_str", "ground_truth", "extra_info")) | config.reward_kwargs
    try:
        signature.bind(**arguments)
    except TypeError as error:
        raise ValueError(
            f"{key}: {config.name}{signature} in {config.path} cannot be called with {', '.join(arguments)}: {error}"
        ) from error
    return cast(ComputeScore, functools.partial(function, **config.reward_kwargs) if config.reward_kwargs else function)
