"""The small Python API: PPO and its kin in a few lines, without a config file.

    model, tokenizer = get_model_and_tokenizer("gpt2")
    dataset = PromptDataset("prompts.jsonl", tokenizer, max_prompt_len=128)
    trainer = PPOTrainer(actor_model=model, tokenizer=tokenizer, dataset=dataset, reward_fn=score)
    trainer.train()

It builds the config of `RayPPOTrainer` and runs the same loop.
"""

import copy
import dataclasses
import difflib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from verl.config import ModelConfig, PPOConfig
from verl.config.loader import load_config
from verl.config.tree import leaf_at
from verl.models.loading import load_causal_lm, load_model_tokenizer
from verl.rewards import load_reward_manager
from verl.trainer.callbacks import Callback, checked_callbacks
from verl.trainer.checks import check_models, checked
from verl.trainer.launch import running
from verl.trainer.ray_ppo import RayPPOTrainer
from verl.trainer.roles import Role, default_roles

_ACTOR = "actor_rollout_ref.actor"
SHORT_KEYS = {
    "training.num_epochs": "trainer.total_epochs",
    "training.num_steps": "trainer.total_training_steps",
    "training.batch_size": "data.train_batch_size",
    "training.mini_batch_size": f"{_ACTOR}.ppo_mini_batch_size",
    "training.micro_batch_size_per_gpu": f"{_ACTOR}.ppo_micro_batch_size_per_gpu",
    "training.learning_rate": f"{_ACTOR}.optim.lr",
    "training.critic_learning_rate": "critic.optim.lr",
    "training.num_processes": "trainer.n_gpus_per_node",
    "training.seed": "trainer.seed",
    "algorithm.clip_ratio": f"{_ACTOR}.clip_ratio",
    "algorithm.kl_coef": "algorithm.kl_ctrl.kl_coef",
    "algorithm.entropy_coeff": f"{_ACTOR}.entropy_coeff",
    "rollout.name": "actor_rollout_ref.rollout.name",
    "rollout.n": "actor_rollout_ref.rollout.n",
    "rollout.temperature": "actor_rollout_ref.rollout.temperature",
    "rollout.top_p": "actor_rollout_ref.rollout.top_p",
    "rollout.top_k": "actor_rollout_ref.rollout.top_k",
    "rollout.max_response_length": "data.max_response_length",
}
"""Short names that `config` may use besides the full keys of docs/config.md."""


class PPOTrainer:
    """Trains a causal language model by a reward function or a reward model.

    Args:
        actor_model: the policy: a loaded module (trained as a copy: yours stays as it is; see `get_model`), or a folder
            or hub id. `actor_model_name` is the same for names alone.
        critic_model: a module, or a name; None builds a critic of the actor's structure with a value head.
        reward_fn: `fn(prompts, responses) -> list of floats`, any other kind of `verl.rewards.RewardFunction`, or
            several of them (a list, or name -> function); `config` may have keys of `reward`, such as `timeout_s`.
        dataset, val_dataset: `PromptDataset`, `RLHFDataset`, a path of data files, or anything with len() and [] that
            gives their items. `dataset` may also be given to `train`.
        config: nested dict of short keys (`SHORT_KEYS`) or full keys, or a PPOConfig.
        algorithm: the algorithm section by itself, such as {"name": "grpo", "gamma": 0.95}, or the name alone.
        tokenizer: the policy's; by default the one beside the actor's weights.
        ref_model: the reference as a module or a name; None is the actor as it starts.
        reward_model: a scorer as a module or a name (`reward_model_name`).
        output_dir: logs and checkpoints.
        logger: trackers, or one; by default the file alone (with a PPOConfig, those that it names).
        callbacks: see `verl.trainer.callbacks.Callback`.
        device_map: devices by role, as a dict or a YAML file (docs/placement.md); by default every GPU of this machine,
            or one process on the CPU.
        ray_address: a running Ray cluster to use; None uses one that runs here, or starts one for the run.

    Raises, before anything loads, ValueError for settings that are unknown or contradict each other, and TypeError for
    models and callbacks that are none.
    """

    def __init__(
        self,
        actor_model: nn.Module | str | Path | None = None,
        critic_model: nn.Module | str | Path | None = None,
        reward_fn: Callable[..., Any] | Sequence[Callable[..., Any]] | Mapping[str, Callable[..., Any]] | None = None,
        dataset: Any = None,
        config: Mapping[str, Any] | PPOConfig | None = None,
        *,
        actor_model_name: str | None = None,
        reward_model_name: str | None = None,
        algorithm: Mapping[str, Any] | str | None = None,
        tokenizer: Any = None,
        ref_model: nn.Module | str | Path | None = None,
        reward_model: nn.Module | str | Path | None = None,
        val_dataset: Any = None,
        output_dir: str | None = None,
        logger: Sequence[str] | str | None = None,
        callbacks: Sequence[Callback] = (),
        device_map: Mapping[str, Any] | str | Path | None = None,
        ray_address: str | None = None,
    ) -> None:
        self.models = {
            "actor_rollout_ref.model": _one_of("actor_model", actor_model, actor_model_name),
            "critic.model": _model("critic_model", critic_model),
            "reward.reward_model.model": _one_of("reward_model", reward_model, reward_model_name),
        }
        self.ref_model = _loaded(_model("ref_model", ref_model))
        self.reward_fn = reward_fn
        self.dataset, self.val_dataset = dataset, val_dataset
        self.callbacks = checked_callbacks(callbacks)
        self.ray_address = ray_address
        if isinstance(tokenizer, str | Path):
            raise TypeError(f"tokenizer={str(tokenizer)!r} is a name: give a loaded one, or set model.tokenizer_path")
        self.config = self._build_config(config, algorithm, output_dir, logger, device_map)
        self.tokenizer = tokenizer
        self.trainer: RayPPOTrainer | None = None
        self._trained: dict[str, torch.Tensor] | None = None

    def train(self, dataset: Any = None) -> dict[str, float]:
        """Run all steps. Returns the final metrics."""
        dataset = self.dataset if dataset is None else dataset
        if dataset is None:
            raise ValueError("there is nothing to train on: give dataset=... to PPOTrainer or to train()")
        config = self._with_data(dataset)
        roles = default_roles(config)
        check_models(config, given=self._given())
        tokenizer = self._tokenizer(dataset, config)
        reward = (
            None
            if self.reward_fn is None
            else load_reward_manager(config.reward, tokenizer, config.data.max_response_length, self.reward_fn)
        )
        trainer = RayPPOTrainer(
            config,
            tokenizer,
            roles,
            reward_fn=reward,
            train_dataset=_object(dataset),
            val_dataset=_object(self.val_dataset),
            modules=self._modules(roles),
            callbacks=self.callbacks,
        )
        self.trainer = trainer
        with running(trainer, self.ray_address):
            metrics = trainer.fit()
            self._trained = trainer.actor_rollout_wg.get_weights()[0]
        return metrics

    def get_model(self) -> nn.Module:
        """The trained policy: a copy of the module that was given, or a model loaded from the given name, with the
        weights that training ended with."""
        if self._trained is None:
            raise RuntimeError("there is no trained model yet: call train() first")
        actor = self.models["actor_rollout_ref.model"]
        if isinstance(actor, nn.Module):
            model = copy.deepcopy(actor)
        else:
            model = load_causal_lm(self.config.actor_rollout_ref.model, torch.float32)
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                parameter.copy_(self._trained[name])
        return model

    # ---- building the run ----

    def _build_config(
        self,
        config: Mapping[str, Any] | PPOConfig | None,
        algorithm: Mapping[str, Any] | str | None,
        output_dir: str | None,
        logger: Sequence[str] | str | None,
        device_map: Mapping[str, Any] | str | Path | None,
    ) -> PPOConfig:
        settings: dict[str, Any] = {}
        if logger is not None or not isinstance(config, PPOConfig):
            settings["trainer.logger"] = [logger] if isinstance(logger, str) else list(logger or ["file"])
        if output_dir is not None:
            settings["trainer.default_local_dir"] = output_dir
        for section, model in self.models.items():
            if isinstance(model, str):
                settings[f"{section}.path"] = model
        if self.models["reward.reward_model.model"] is not None:
            settings["reward.reward_model.enable"] = True
            settings["reward.rule_weight"] = 0.0 if self.reward_fn is None else 1.0
        if isinstance(config, PPOConfig):
            settings = {**dict(_flat(dataclasses.asdict(config))), **settings}
        else:
            settings |= dict(_full_keys(config or {}))
        if device_map is not None:
            settings["trainer.device_map"] = dict(device_map) if isinstance(device_map, Mapping) else str(device_map)
        self._finds_devices = not isinstance(config, PPOConfig) and "trainer.n_gpus_per_node" not in settings
        named: Mapping[str, Any] = {"name": algorithm} if isinstance(algorithm, str) else algorithm or {}
        settings |= dict(_full_keys({"algorithm": dict(named)}))
        return load_config(settings=settings)

    def _with_data(self, dataset: Any) -> PPOConfig:
        config = copy.deepcopy(self.config)
        for key, value in (("train_files", dataset), ("val_files", self.val_dataset)):
            if _is_path(value):
                setattr(config.data, key, value)
        width = getattr(dataset, "max_prompt_length", None)
        if width is not None:
            config.data.max_prompt_length = width
        actor, trainer = config.actor_rollout_ref.actor, config.trainer
        # The class's default is for clusters; a mini-batch larger than the batch means the whole batch here.
        actor.ppo_mini_batch_size = min(actor.ppo_mini_batch_size, config.data.train_batch_size)
        if self._finds_devices and trainer.worker_group == "ray" and trainer.device != "cpu":
            samples = actor.ppo_mini_batch_size * config.actor_rollout_ref.rollout.n
            trainer.n_gpus_per_node = max(1, min(torch.cuda.device_count(), samples))
        if self.val_dataset is None:
            trainer.test_freq = -1
        return checked(config, given=self._given(dataset))

    def _given(self, dataset: Any = None) -> list[str]:
        objects = {
            "data.train_files": _object(dataset),
            "data.val_files": _object(self.val_dataset),
            **{f"{section}.path": model for section, model in self.models.items() if isinstance(model, nn.Module)},
        }
        return [key for key, value in objects.items() if value is not None]

    def _tokenizer(self, dataset: Any, config: PPOConfig) -> Any:
        if self.tokenizer is not None:
            return self.tokenizer
        if getattr(dataset, "tokenizer", None) is not None:
            return dataset.tokenizer
        if config.actor_rollout_ref.model.path is None:
            raise ValueError("the actor was given as a module, so its tokenizer must be given too: tokenizer=...")
        return load_model_tokenizer(config.actor_rollout_ref.model, config.data.chat_template)

    def _modules(self, roles: Mapping[str, Any]) -> dict[str, nn.Module]:
        """What each role starts from, where that is an object. The reference and a new critic start from the actor."""
        actor = self.models["actor_rollout_ref.model"]
        found = {
            **dict.fromkeys((Role.ActorRollout, Role.Actor, Role.Rollout), actor),
            Role.RefPolicy: self.ref_model if self.ref_model is not None else actor,
            Role.Critic: self.models["critic.model"] if self.models["critic.model"] is not None else actor,
            Role.RewardModel: self.models["reward.reward_model.model"],
        }
        return {str(role): model for role, model in found.items() if role in roles and isinstance(model, nn.Module)}


def _model(name: str, model: Any) -> nn.Module | str | None:
    if isinstance(model, Path):
        return str(model)
    if model is None or isinstance(model, nn.Module | str):
        return model
    raise TypeError(f"{name} is a {type(model).__name__}: expected a loaded module, a folder or a hub id")


def _one_of(name: str, model: Any, by_name: Any) -> nn.Module | str | None:
    if model is not None and by_name is not None:
        raise ValueError(f"{name} and {name}_name are both given: leave one of them out")
    return _model(name, model) if by_name is None else _model(f"{name}_name", by_name)


def _loaded(model: nn.Module | str | None) -> nn.Module | None:
    """A reference given by name; the config has no key for another reference than the actor."""
    return load_causal_lm(ModelConfig(path=model), torch.float32) if isinstance(model, str) else model


def _object(dataset: Any) -> Any:
    """The dataset when it is an object; None for paths, which the trainer opens itself."""
    return None if _is_path(dataset) else dataset


def _is_path(dataset: Any) -> bool:
    """Whether `dataset` names a data file or several."""
    names = dataset if isinstance(dataset, list) else [dataset]
    return all(isinstance(name, str | Path) for name in names)


def _full_keys(nested: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """(full key, value) for every leaf. ValueError for what is nearly a short key; the loader tells the rest."""
    for key, value in _flat(nested):
        if key not in SHORT_KEYS and leaf_at(key) is None:
            near = difflib.get_close_matches(key, SHORT_KEYS, n=1, cutoff=0.8)
            if near:
                raise ValueError(f"unknown key {key} (config): did you mean {near[0]}? See docs/python_api.md")
        yield SHORT_KEYS.get(key, key), value


def _flat(nested: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """(dotted key, value) for every leaf; an empty mapping is a leaf."""
    for key, value in nested.items():
        path = f"{prefix}{key}"
        if isinstance(value, Mapping) and value:
            yield from _flat(value, f"{path}.")
        elif not isinstance(value, Mapping):
            yield path, value
