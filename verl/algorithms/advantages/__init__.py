"""Advantage estimators: one file each, one signature, found by name (`algorithm.adv_estimator`) or import path."""

from verl.algorithms.advantages import (  # noqa: F401  (each registers itself)
    gae,
    gdpo,
    gpg,
    grpo,
    grpo_passk,
    opo,
    reinforce_plus_plus,
    reinforce_plus_plus_baseline,
    remax,
    rloo,
)
from verl.algorithms.advantages.base import (
    ADVANTAGE_ESTIMATORS,
    AdvantageEstimator,
    AdvantageInputs,
    Advantages,
    get_adv_estimator,
    register_adv_est,
)

__all__ = [
    "ADVANTAGE_ESTIMATORS",
    "AdvantageEstimator",
    "AdvantageInputs",
    "Advantages",
    "get_adv_estimator",
    "register_adv_est",
]
