"""How tokens are made: one protocol (base.py), one file per engine."""

from verl.rollout.base import Completion, RolloutEngine, Sampling
from verl.rollout.factory import ROLLOUT_ENGINES, build_rollout

__all__ = ["ROLLOUT_ENGINES", "Completion", "RolloutEngine", "Sampling", "build_rollout"]
