"""How tokens are made: one protocol (base.py), one file per engine."""

from typing import TYPE_CHECKING, Any

from verl.rollout.base import Completion, RolloutEngine, Sampling
from verl.rollout.factory import ROLLOUT_ENGINES, build_rollout

if TYPE_CHECKING:
    from verl.rollout.vllm_engine import vLLMRolloutEngine

__all__ = [
    "ROLLOUT_ENGINES",
    "Completion",
    "RolloutEngine",
    "Sampling",
    "build_rollout",
    "vLLMRolloutEngine",
]


def __getattr__(name: str) -> Any:
    if name == "vLLMRolloutEngine":
        from verl.rollout.vllm_engine import vLLMRolloutEngine

        return vLLMRolloutEngine
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
