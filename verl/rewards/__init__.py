"""Scores of responses: rules by data source, functions of the user's own, and what applies them to a batch."""

from verl.rewards.default import default_compute_score
from verl.rewards.loading import load_compute_score, load_reward_manager
from verl.rewards.manager import RewardManager, RewardResult
from verl.rewards.validation import validation_metrics

__all__ = [
    "RewardManager",
    "RewardResult",
    "default_compute_score",
    "load_compute_score",
    "load_reward_manager",
    "validation_metrics",
]
