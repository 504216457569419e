"""Whether a run's models can be read, and fit each other, its tokenizer and its data. No model is loaded for that."""

import logging
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from torch import nn

from verl.config import ModelConfig, PPOConfig
from verl.config.errors import ConfigError
from verl.models.loading import (
    check_model_folder,
    heads_problem,
    is_hub_id,
    load_model_tokenizer,
    local_config,
    position_limit,
    saved_value_head,
)
from verl.trainer.roles import Role

logger = logging.getLogger(__name__)

_SPARE_TOKENS = 1024
"""Vocabularies are padded to round numbers; one that is larger than the tokenizer by more than this is another's."""


def check_models(config: PPOConfig, given: Collection[str] = ()) -> None:
    """ValueError when a model that the run needs cannot be read from where it should be, or is of another kind."""
    models = {"actor_rollout_ref.model.path": config.actor_rollout_ref.model}
    if config.critic.enable:
        models["critic.model.path"] = config.critic.model
    if config.reward.reward_model.enable:
        models["reward.reward_model.model.path"] = config.reward.reward_model.model
    for key, model in models.items():
        # A critic without a path of its own starts from the actor that was given.
        if key not in given and model.path is not None:
            check_model_folder(model.path)
    if config.reward.reward_model.enable and "reward.reward_model.model.path" not in given:
        _check_scorer(config.reward.reward_model.model)
    path, size = config.actor_rollout_ref.model.path, config.actor_rollout_ref.rollout.tensor_model_parallel_size
    if path is not None and "actor_rollout_ref.model.path" not in given:
        problem = heads_problem(local_config(path), size)
        if problem is not None:
            key = "actor_rollout_ref.rollout.tensor_model_parallel_size"
            raise ConfigError([f"{key}={size}: {problem} (model {path!r})"])


def _check_scorer(model: ModelConfig) -> None:
    path = model.path
    if path is None or is_hub_id(path):
        return
    load_model_tokenizer(model)
    config = local_config(path)
    kinds, labels = config.get("architectures") or [], config.get("id2label")
    wanted = "expected a sequence classifier with one label, or a model from verl.trainer.main_reward_model"
    if saved_value_head(path) is None and any(kind.endswith(("ForCausalLM", "LMHeadModel")) for kind in kinds):
        raise ValueError(f"reward.reward_model.model.path={path}: a {kinds[0]} has no head that scores: {wanted}")
    if labels is not None and len(labels) != 1:
        raise ValueError(f"reward.reward_model.model.path={path} has {len(labels)} labels: {wanted}")


def check_tokenizer(tokenizer: Any, config: PPOConfig, modules: Mapping[str, nn.Module]) -> None:
    """ValueError for a tokenizer that cannot pad, and for a policy, critic or reference that it or the data do not fit.

    Args:
        config: resolved.
        modules: role -> the model itself, where it is handed over instead of named.
    """
    if tokenizer.pad_token_id is None:
        raise ValueError("the tokenizer has no pad token: set it first (tokenizer.pad_token = tokenizer.eos_token)")
    problems = [problem for model in _models(config, modules) for problem in _problems(*model, tokenizer, config)]
    if problems:
        raise ConfigError(problems)


def check_module(name: str, module: nn.Module, trained: bool) -> None:
    """ValueError for a module without weights, or, where it is to be trained, with some that are frozen."""
    parameters = dict(module.named_parameters())
    meta = [path for path, parameter in parameters.items() if parameter.is_meta]
    if meta or not parameters:
        lacking = f"{meta[0]!r} is on the meta device" if meta else "it has no parameters"
        raise ValueError(f"{name} has no weights ({lacking}): load them first")
    frozen = [path for path, parameter in parameters.items() if not parameter.requires_grad]
    if trained and 0 < len(frozen) < len(parameters):
        raise ValueError(
            f"{name} has {len(frozen)} frozen parameters, such as {frozen[0]!r}, but all parameters are trained: "
            f"set {name}.requires_grad_(True)"
        )


def _models(config: PPOConfig, modules: Mapping[str, nn.Module]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """(whose it is, what its config says) of each model that reads the policy's tokens."""
    policy = modules.get(Role.ActorRollout, modules.get(Role.Actor))
    roles = [("policy", config.actor_rollout_ref.model, policy)]
    if config.critic.enable:
        roles.append(("critic", config.critic.model, modules.get(Role.Critic)))
    roles.append(("reference", config.actor_rollout_ref.model, modules.get(Role.RefPolicy)))
    names: dict[Any, list[str]] = {}
    facts: dict[Any, Mapping[str, Any]] = {}
    for role, model, module in roles:
        if module is not None:
            own: Any = getattr(module, "config", None)
            names.setdefault(id(module), []).append(role)
            facts[id(module)] = own.to_dict() if hasattr(own, "to_dict") else {}
        elif model.path is not None:
            names.setdefault(model.path, []).append(role)
            facts[model.path] = local_config(model.path)
    for model, who in names.items():
        yield f"{', '.join(who)}{f' ({model})' if isinstance(model, str) else ''}", facts[model]


def _problems(name: str, facts: Mapping[str, Any], tokenizer: Any, config: PPOConfig) -> Iterator[str]:
    size, tokens = facts.get("vocab_size"), len(tokenizer) if hasattr(tokenizer, "__len__") else 0
    if size is not None and tokens > size:
        yield (
            f"the tokenizer has {tokens} tokens, but the vocabulary of {name} has {size}: they do not belong together; "
            "give the tokenizer of the model (tokenizer=..., or actor_rollout_ref.model.tokenizer_path)"
        )
    elif size is not None and tokens and size > tokens + _SPARE_TOKENS:
        logger.warning(
            "the vocabulary of %s has %d tokens, the tokenizer %d: do they belong together?", name, size, tokens
        )
    limit, data = position_limit(facts), config.data
    longest = data.max_prompt_length + data.max_response_length
    if limit is not None and longest > limit:
        yield (
            f"data.max_prompt_length {data.max_prompt_length} + data.max_response_length {data.max_response_length} = "
            f"{longest} tokens, but the model of {name} has {limit} positions"
        )
