"""Scores of responses: rules by data source, functions of the user's own, and what applies them to a batch."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from verl.rewards.default import default_compute_score
    from verl.rewards.functions import RewardFunction
    from verl.rewards.length import OverlongBuffer
    from verl.rewards.loading import load_compute_score, load_reward_manager
    from verl.rewards.manager import Limits, RewardManager
    from verl.rewards.scores import RewardResult
    from verl.rewards.validation import validation_metrics

__all__ = [
    "Limits",
    "OverlongBuffer",
    "RewardFunction",
    "RewardManager",
    "RewardResult",
    "default_compute_score",
    "load_compute_score",
    "load_reward_manager",
    "validation_metrics",
]

_HOMES = {
    "Limits": "manager",
    "OverlongBuffer": "length",
    "RewardFunction": "functions",
    "RewardManager": "manager",
    "RewardResult": "scores",
    "default_compute_score": "default",
    "load_compute_score": "loading",
    "load_reward_manager": "loading",
    "validation_metrics": "validation",
}


def __getattr__(name: str) -> Any:
    # PEP 562: a scoring process needs no torch, which takes seconds to import.
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = found  # over the submodule of the same name, which the import has just put there
    return found
