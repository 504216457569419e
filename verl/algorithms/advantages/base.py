"""What every advantage estimator takes and gives, and the table of them."""

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from verl.algorithms.masked import keep_valid
from verl.algorithms.registry import add_entry, find_entry
from verl.config.algorithm import AlgorithmConfig


@dataclass(frozen=True)
class AdvantageInputs:
    """One step's whole batch: B responses of width R.

    Attributes:
        token_level_rewards: [B, R]; what stands under a mask of 0 does not count.
        response_mask: [B, R], 1 on tokens that the policy sampled. Zeros inside a response (a tool's answer) are
            passed over: they neither decay nor reset anything. A row without any 1 belongs to no group.
        values: [B, R], the critic's value before each token.
        group_ids: int64 [B], the same number for the samples of one prompt.
        baseline_scores: [B], the score of each prompt's greedy response.
        reward_components: single rewards by name, each [B], whose weighted sum is the outcome score.
    """

    token_level_rewards: Tensor
    response_mask: Tensor
    values: Tensor | None = None
    group_ids: Tensor | None = None
    baseline_scores: Tensor | None = None
    reward_components: dict[str, Tensor] | None = None


@dataclass(frozen=True)
class Advantages:
    """`advantages` and `returns` [B, R], 0 under a mask of 0, without gradient; `metrics` are plain figures."""

    advantages: Tensor
    returns: Tensor
    metrics: dict[str, float] = field(default_factory=dict)


AdvantageFn = Callable[[AdvantageInputs, AlgorithmConfig], Advantages]


@dataclass(frozen=True)
class AdvantageEstimator:
    """An estimator with what it needs. Calling it checks the inputs, then runs `fn`."""

    fn: AdvantageFn
    needs_critic: bool = False
    needs_groups: bool = False
    needs_greedy_baseline: bool = False
    needs_reward_components: bool = False
    equation: str = ""
    paper: str = ""

    def __call__(self, batch: AdvantageInputs, config: AlgorithmConfig) -> Advantages:
        """Advantages of the batch.

        Raises:
            ValueError: a needed input is missing, or a reward on a valid token is NaN or infinite (one such row
                would spoil its group or, through whitening, the batch).
        """
        wanted = {
            "values": self.needs_critic,
            "group_ids": self.needs_groups,
            "baseline_scores": self.needs_greedy_baseline,
            "reward_components": self.needs_reward_components,
        }
        missing = [name for name, needed in wanted.items() if needed and getattr(batch, name) is None]
        if missing:
            raise ValueError(f"advantage estimator {self.fn.__name__!r} needs {', '.join(missing)}")
        finite = keep_valid(batch.token_level_rewards, batch.response_mask).isfinite().all(-1)
        if not finite.all():
            rows = torch.nonzero(~finite).flatten().tolist()
            raise ValueError(f"token_level_rewards hold NaN or inf on valid tokens of rows {rows}")
        with torch.no_grad():
            return self.fn(batch, config)


ADVANTAGE_ESTIMATORS: dict[str, AdvantageEstimator] = {}


def register_adv_est(
    name: str,
    *,
    needs_critic: bool = False,
    needs_groups: bool = False,
    needs_greedy_baseline: bool = False,
    needs_reward_components: bool = False,
    equation: str = "",
    paper: str = "",
) -> Callable[[AdvantageFn], AdvantageFn]:
    """Decorator: make a function known as `algorithm.adv_estimator=name`. A name taken is a ValueError.

    Args:
        needs_critic, needs_groups, needs_greedy_baseline, needs_reward_components: which optional fields of
            AdvantageInputs must be there.
        equation, paper: for the table in docs/algorithms.md.
    """

    def decorate(fn: AdvantageFn) -> AdvantageFn:
        estimator = AdvantageEstimator(
            fn, needs_critic, needs_groups, needs_greedy_baseline, needs_reward_components, equation, paper
        )
        add_entry(ADVANTAGE_ESTIMATORS, "advantage estimator", name, estimator)
        return fn

    return decorate


def get_adv_estimator(name: str) -> AdvantageEstimator:
    """The estimator of that name, or at that import path: an AdvantageEstimator, or a plain function (taken to
    need nothing beyond rewards and mask; it still finds `group_ids` and whatever else the run provides).

    Raises:
        ValueError: unknown name or path. TypeError: what is there cannot be called.
    """
    return find_entry(ADVANTAGE_ESTIMATORS, "advantage estimator", name, AdvantageEstimator)
