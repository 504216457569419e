"""Figures of a step."""

import math

import pytest
import torch

from verl import DataProto
from verl.trainer.metrics import (
    batch_metrics,
    explained_variance,
    merge_reward_metrics,
    rollout_agreement,
    throughput_metrics,
)

NAN = float("nan")


def batch() -> DataProto:
    return DataProto.from_dict(
        {
            # prompts of 1 and 2 tokens, responses of 2 and 1; whatever stands under a mask of 0 must not count
            "attention_mask": torch.tensor([[0, 1, 1, 1], [1, 1, 1, 0]]),
            "response_mask": torch.tensor([[1, 1], [1, 0]]),
            "token_level_scores": torch.tensor([[0.0, 1.0], [3.0, NAN]]),
            "token_level_rewards": torch.tensor([[-1.0, 1.0], [2.0, NAN]]),
            "advantages": torch.tensor([[1.0, 2.0], [6.0, NAN]]),
            "rollout_log_probs": torch.tensor([[-1.0, -2.0], [-3.0, NAN]]),
            "old_log_probs": torch.tensor([[-1.5, -1.75], [-3.0, 7.0]]),
        }
    )


def test_means_are_over_rows_and_valid_tokens() -> None:
    metrics = batch_metrics(batch(), max_response_length=2)
    assert metrics["reward/score_mean"] == 2.0 and metrics["reward/score_max"] == 3.0
    assert metrics["reward/total_mean"] == 1.0
    assert metrics["response_length/mean"] == 1.5 and metrics["response_length/clip_ratio"] == 0.5
    assert metrics["prompt_length/mean"] == 1.5
    assert metrics["actor/advantages_mean"] == 3.0
    assert not any(math.isnan(value) for value in metrics.values())


def test_a_batch_without_a_valid_token_has_no_figures() -> None:
    rejected = batch()
    rejected.batch["response_mask"][:] = 0
    assert batch_metrics(rejected, max_response_length=2) == {}
    assert rollout_agreement(rejected) == {}


def test_agreement_of_the_two_engines() -> None:
    metrics = rollout_agreement(batch())
    assert metrics["rollout/logprob_abs_diff_mean"] == pytest.approx(0.25)
    assert metrics["rollout/logprob_abs_diff_max"] == pytest.approx(0.5)
    assert metrics["rollout/kl"] == pytest.approx((0.5 - 0.25 + 0) / 3)
    # Pearson of (e^-1, e^-2, e^-3) and (e^-1.5, e^-1.75, e^-3)
    assert metrics["rollout/prob_corr"] == pytest.approx(0.875482, abs=1e-5)


def test_engines_too_far_apart_stop_the_run() -> None:
    assert rollout_agreement(batch(), max_logprob_diff=0.5)
    with pytest.raises(RuntimeError, match=r"differs by 0.5 .*max_logprob_diff=0.4"):
        rollout_agreement(batch(), max_logprob_diff=0.4)
    broken = batch()
    broken.batch["rollout_log_probs"][0, 0] = NAN
    with pytest.raises(RuntimeError, match="differs by nan"):
        rollout_agreement(broken, max_logprob_diff=0.5)


def test_explained_variance() -> None:
    returns = torch.tensor([0.0, 2.0])
    assert explained_variance(returns, returns) == 1.0
    assert explained_variance(torch.ones(2), returns) == 0.0
    assert explained_variance(torch.ones(2), torch.ones(2)) == 0.0


def test_throughput() -> None:
    metrics = throughput_metrics(batch(), seconds=2.0, processes=2)
    assert metrics["perf/total_num_tokens"] == 6
    assert metrics["perf/tokens_per_second"] == 3.0 and metrics["perf/tokens_per_second_per_process"] == 1.5


def test_of_several_scored_batches_means_are_averaged_and_counts_added() -> None:
    parts = [{"reward/rule_mean": 1.0, "reward/errors": 2.0}, {"reward/rule_mean": 3.0, "reward/errors": 1.0}]
    assert merge_reward_metrics(parts) == {"reward/rule_mean": 2.0, "reward/errors": 3.0}
    assert merge_reward_metrics([{"reward/excluded": 1.0}, {}]) == {"reward/excluded": 1.0}
