"""The small Python API: PPO and its kin in a few lines, without a config file.

    model, tokenizer = get_model_and_tokenizer("gpt2")
    dataset = PromptDataset("prompts.jsonl", tokenizer, max_prompt_len=128)
    trainer = PPOTrainer(actor_model=model, tokenizer=tokenizer, dataset=dataset, reward_fn=score)
    trainer.train()

It builds the config of `RayPPOTrainer` and runs the same loop.
"""

import copy
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import IterableDataset

from verl.config import ModelConfig, PPOConfig
from verl.config.loader import load_config
from verl.config.tree import flatten
from verl.models.loading import check_model_folder, load_causal_lm, load_model_tokenizer
from verl.rewards import load_reward_manager
from verl.trainer.callbacks import Callback, checked_callbacks
from verl.trainer.check_models import check_models, check_module
from verl.trainer.checks import checked
from verl.trainer.launch import running
from verl.trainer.ray_ppo import RayPPOTrainer
from verl.trainer.roles import Role, default_roles
from verl.trainer.short_keys import Settings, full_keys


class PPOTrainer:
    """Trains a causal language model by a reward function or a reward model.

    Args:
        actor_model: the policy: a loaded module (trained as a copy: yours stays as it is; see `get_model`), or a folder
            or hub id. `actor_model_name` is the same for names alone.
        critic_model: a module, or a name; None builds a critic of the actor's structure with a value head.
        reward_fn: `fn(prompts, responses) -> list of floats`, any other kind of `verl.rewards.RewardFunction`, or
            several of them (a list, or name -> function); `config` may have keys of `reward`, such as `timeout_s`.
        dataset, val_dataset: `PromptDataset`, `RLHFDataset`, a path of data files, or anything with len() and [] that
            gives their items. `dataset` may also be given to `train`. With a `val_dataset` the last step is validated,
            unless `trainer.test_freq` says otherwise.
        config: nested dict of short keys (`verl.trainer.short_keys`) or full keys, or a PPOConfig. `data.train_files`
            and `data.val_files` may take the place of `dataset` and `val_dataset`.
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
    arguments of the wrong kind. With a PPOConfig, which has a value for every key, the arguments win.
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
        _check_kinds(
            config=(config, (Mapping, PPOConfig)),
            algorithm=(algorithm, (Mapping, str)),
            output_dir=(output_dir, (str, Path)),
            logger=(logger, (str, list, tuple)),
            device_map=(device_map, (Mapping, str, Path)),
            ray_address=(ray_address, (str,)),
        )
        self.models = {
            "actor_rollout_ref.model": _one_of("actor_model", actor_model, actor_model_name),
            "critic.model": _model("critic_model", critic_model),
            "reward.reward_model.model": _one_of("reward_model", reward_model, reward_model_name),
        }
        self.ref_model = _model("ref_model", ref_model)
        for argument, model, trained in (
            ("actor_model", self.models["actor_rollout_ref.model"], True),
            ("critic_model", self.models["critic.model"], True),
            ("ref_model", self.ref_model, False),
            ("reward_model", self.models["reward.reward_model.model"], False),
        ):
            if isinstance(model, nn.Module):
                check_module(argument, model, trained)
        self.reward_fn = reward_fn
        self.dataset, self.val_dataset = _dataset("dataset", dataset), _dataset("val_dataset", val_dataset)
        self.callbacks = checked_callbacks(callbacks)
        self.ray_address = ray_address
        if isinstance(tokenizer, str | Path):
            raise TypeError(f"tokenizer={str(tokenizer)!r} is a name: give a loaded one, or set model.tokenizer_path")
        if tokenizer is not None and not callable(getattr(tokenizer, "decode", None)):
            raise TypeError(f"tokenizer is a {type(tokenizer).__name__}: expected one of transformers")
        self.config = self._build_config(config, algorithm, output_dir, logger, device_map)
        self.tokenizer = tokenizer
        self.trainer: RayPPOTrainer | None = None
        self._trained: dict[str, torch.Tensor] | None = None

    def train(self, dataset: Any = None) -> dict[str, float]:
        """Run all steps, from the weights that the models were given with, also when called again. Returns the final
        metrics."""
        dataset = self.dataset if dataset is None else _dataset("dataset", dataset)
        self._trained = None
        config = self._with_data(dataset)
        roles = default_roles(config)
        self._check_used(config, roles)
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
        weights that training ended with. RuntimeError when no training has ended."""
        if self._trained is None and self.trainer is None:
            raise RuntimeError("there is no trained model yet: call train() first")
        if self._trained is None:
            raise RuntimeError(
                "there is no trained model, since train() ended with an error; with trainer.save_freq there are "
                f"checkpoints of such a run in {self.config.trainer.default_local_dir}"
            )
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
        settings = Settings()
        if isinstance(config, PPOConfig):
            settings.values |= dict(flatten(dataclasses.asdict(config)))
            settings.replaces = True
        else:
            settings.add("config", dict(full_keys(config or {})))
        self._chosen = set() if isinstance(config, PPOConfig) else set(settings.values)
        if logger is not None:
            settings.add("logger", {"trainer.logger": [logger] if isinstance(logger, str) else list(logger)})
        if output_dir is not None:
            settings.add("output_dir", {"trainer.default_local_dir": str(Path(output_dir).expanduser())})
        for section, model in self.models.items():
            if isinstance(model, str):
                settings.add(f"the argument for {section}", {f"{section}.path": model})
            elif model is not None and f"{section}.path" in self._chosen:
                raise ValueError(f"a module is given, and config has {section}.path: leave one out")
        if self.models["reward.reward_model.model"] is not None:
            settings.add("reward_model", {"reward.reward_model.enable": True})
            if "reward.rule_weight" not in self._chosen:
                settings.values["reward.rule_weight"] = 0.0 if self.reward_fn is None else 1.0
        if device_map is not None:
            if any(key.startswith("trainer.device_map") for key in self._chosen):
                raise ValueError("device_map is given, and config has trainer.device_map: leave one out")
            given = dict(device_map) if isinstance(device_map, Mapping) else str(device_map)
            others = {key: v for key, v in settings.values.items() if not key.startswith("trainer.device_map")}
            settings.values = {**others, "trainer.device_map": given}
        named: Mapping[str, Any] = {"name": algorithm} if isinstance(algorithm, str) else algorithm or {}
        settings.add("algorithm", dict(full_keys({"algorithm": dict(named)})))
        if not isinstance(config, PPOConfig):
            settings.values.setdefault("trainer.logger", ["file"])
            if self.val_dataset is not None:
                settings.values.setdefault("trainer.test_freq", 0)
            if output_dir is None and not {"trainer.default_local_dir", "trainer.save_freq"} & self._chosen:
                # Nothing of this run is to be found again, and what lies in the default folder is another's.
                settings.values.setdefault("trainer.resume_mode", "disable")
        self._finds_devices = not isinstance(config, PPOConfig) and "trainer.n_gpus_per_node" not in settings.values
        return load_config(settings=settings.values)

    def _with_data(self, dataset: Any) -> PPOConfig:
        config = copy.deepcopy(self.config)
        data, mini_batch_size = config.data, "actor_rollout_ref.actor.ppo_mini_batch_size"
        for name, key, value in (
            ("dataset", "train_files", dataset),
            ("val_dataset", "val_files", self.val_dataset),
        ):
            named = getattr(data, key)
            if value is not None and named is not None and not (_is_path(value) and named == value):
                raise ValueError(f"{name} is given, and config has data.{key}={named}: leave one out")
            if _is_path(value):
                setattr(data, key, value)
        if self.models["actor_rollout_ref.model"] is None and config.actor_rollout_ref.model.path is None:
            raise ValueError("there is no policy: give actor_model=... (a module, a folder or a hub id) to PPOTrainer")
        if dataset is None and data.train_files is None:
            raise ValueError("there is nothing to train on: give dataset=... to PPOTrainer or to train()")
        width = getattr(dataset, "max_prompt_length", None)
        if width is not None:
            if "data.max_prompt_length" in self._chosen and data.max_prompt_length != width:
                raise ValueError(
                    f"config has data.max_prompt_length={data.max_prompt_length}, but the data set has "
                    f"max_prompt_length={width}: leave the first one out"
                )
            data.max_prompt_length = width
        actor, trainer = config.actor_rollout_ref.actor, config.trainer
        if mini_batch_size not in self._chosen:
            # The class's default is for clusters; a mini-batch larger than the batch means the whole batch here.
            actor.ppo_mini_batch_size = min(actor.ppo_mini_batch_size, data.train_batch_size)
        if self._finds_devices and trainer.worker_group == "ray" and trainer.device != "cpu":
            samples = actor.ppo_mini_batch_size * config.actor_rollout_ref.rollout.n
            trainer.n_gpus_per_node = max(1, min(torch.cuda.device_count(), samples))
        return checked(config, given=self._given(dataset))

    def _check_used(self, config: PPOConfig, roles: Mapping[str, Any]) -> None:
        """ValueError for a model that the run would not use, and for a reference that cannot be read."""
        name = config.algorithm.name or config.algorithm.adv_estimator
        for argument, model, role in (
            ("critic_model", self.models["critic.model"], Role.Critic),
            ("ref_model", self.ref_model, Role.RefPolicy),
        ):
            if model is not None and role not in roles:
                raise ValueError(f"{argument} is given, but algorithm {name} as configured uses none: leave it out")
        if isinstance(self.ref_model, str):
            check_model_folder(self.ref_model)

    def _given(self, dataset: Any = None) -> list[str]:
        objects = {
            "data.train_files": _object(dataset),
            "data.val_files": _object(self.val_dataset),
            **{f"{section}.path": model for section, model in self.models.items() if isinstance(model, nn.Module)},
        }
        return [key for key, value in objects.items() if value is not None]

    def _tokenizer(self, dataset: Any, config: PPOConfig) -> Any:
        theirs = getattr(dataset, "tokenizer", None)
        if self.tokenizer is not None and theirs is not None and self.tokenizer.get_vocab() != theirs.get_vocab():
            raise ValueError("tokenizer=... has another vocabulary than that of the data set: give both the same one")
        if self.tokenizer is not None or theirs is not None:
            return theirs if self.tokenizer is None else self.tokenizer
        if config.actor_rollout_ref.model.path is None:
            raise ValueError("the actor was given as a module, so its tokenizer must be given too: tokenizer=...")
        return load_model_tokenizer(config.actor_rollout_ref.model, config.data.chat_template)

    def _modules(self, roles: Mapping[str, Any]) -> dict[str, nn.Module]:
        """What each role starts from, where that is an object. The reference and a new critic start from the actor."""
        actor = self.models["actor_rollout_ref.model"]
        found = {
            **dict.fromkeys((Role.ActorRollout, Role.Actor, Role.Rollout), actor),
            Role.RefPolicy: _loaded(self.ref_model) if self.ref_model is not None else actor,
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
    return bool(names) and all(isinstance(name, str | Path) for name in names)


def _dataset(name: str, dataset: Any) -> Any:
    """What may be trained on. TypeError for anything else, ValueError for what holds nothing."""
    if dataset is None or isinstance(dataset, IterableDataset):
        return dataset
    readable = hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__") and not isinstance(dataset, Mapping)
    if isinstance(dataset, type) or not (_is_path(dataset) or readable):
        raise TypeError(
            f"{name} is {dataset!r:.100}: expected a path, or a data set such as "
            "verl.data.PromptDataset(prompts, tokenizer)"
        )
    if isinstance(dataset, Path) or len(dataset):
        return dataset
    raise ValueError(f"{name} is empty")


def _check_kinds(**arguments: tuple[Any, tuple[type, ...]]) -> None:
    """TypeError for an argument that is of none of its kinds; None is always one."""
    for name, (value, kinds) in arguments.items():
        if value is not None and not isinstance(value, kinds):
            expected = " or ".join(kind.__name__ for kind in kinds)
            raise TypeError(f"{name} is {value!r:.100}: expected {expected}")
