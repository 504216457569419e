"""The algorithm as a driver."""

from typing import Any

__all__ = ["RayPPOTrainer"]


def __getattr__(name: str) -> Any:
    if name == "RayPPOTrainer":
        from verl.trainer.ray_ppo import RayPPOTrainer

        return RayPPOTrainer
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
