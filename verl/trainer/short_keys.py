"""The settings of the small Python API: short keys beside full ones, and each key given once."""

import difflib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from verl.config.tree import flatten, leaf_at

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
    "algorithm.beta": "algorithm.preference.beta",
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


@dataclass
class Settings:
    """Full keys with their values, and which argument each is from. With `replaces`, later ones win without a word."""

    values: dict[str, Any] = field(default_factory=dict)
    sources: dict[str, str] = field(default_factory=dict)
    replaces: bool = False

    def add(self, source: str, values: Mapping[str, Any]) -> None:
        """ValueError when another argument has given a key another value."""
        for key, value in values.items():
            if not self.replaces and self.values.get(key, value) != value:
                raise ValueError(
                    f"{key} is {self.values[key]!r} by {self.sources[key]} and {value!r} by {source}: leave one out"
                )
            self.values[key] = value
            self.sources[key] = source


def full_keys(nested: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """(full key, value) for every leaf. ValueError for what is nearly a short key, and for a key in both spellings with
    different values; the loader tells the rest."""
    written: dict[str, tuple[str, Any]] = {}
    for key, value in flatten(nested):
        if key not in SHORT_KEYS and leaf_at(key) is None:
            near = _nearest(key)
            if near:
                raise ValueError(f"unknown key {key} (config): did you mean {near}? See docs/python_api.md")
        full = SHORT_KEYS.get(key, key)
        other, earlier = written.setdefault(full, (key, value))
        if earlier != value:
            raise ValueError(f"config has {other}={earlier} and {key}={value}, which are one key: leave one out")
        yield full, value


def _nearest(key: str) -> str | None:
    """The short key that was probably meant."""
    near = difflib.get_close_matches(key, SHORT_KEYS, n=1, cutoff=0.8)
    last = key.rpartition(".")[2]
    same_end = [short for short in SHORT_KEYS if short.rpartition(".")[2] == last]
    return near[0] if near else same_end[0] if same_end else None
