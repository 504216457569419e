"""The algorithm as a driver."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from verl.trainer.callbacks import Callback
    from verl.trainer.ppo import PPOTrainer
    from verl.trainer.preference import PreferenceTrainer
    from verl.trainer.ray_ppo import RayPPOTrainer
    from verl.trainer.reward_model import RewardModelTrainer
    from verl.trainer.sft import SFTTrainer

__all__ = ["Callback", "PPOTrainer", "PreferenceTrainer", "RayPPOTrainer", "RewardModelTrainer", "SFTTrainer"]

_HOMES = {
    "Callback": "callbacks",
    "PPOTrainer": "ppo",
    "PreferenceTrainer": "preference",
    "RayPPOTrainer": "ray_ppo",
    "RewardModelTrainer": "reward_model",
    "SFTTrainer": "sft",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
