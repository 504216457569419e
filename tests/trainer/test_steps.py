"""The driver's own part of a step, with numbers to check by hand."""

import numpy as np
import pytest
import torch

from verl import DataProto
from verl.config import ActorConfig, AlgorithmConfig, PolicyLossConfig, RolloutCorrectionConfig
from verl.trainer.steps import (
    REWARD_COLUMN,
    SCORE_COLUMN,
    choose_tokens,
    compute_advantage,
    correct_rollout,
    for_workers,
    informative_groups,
    label_prompts,
    penalize_kl,
    shuffled,
    with_tensors,
)


def prompts(rows: int) -> DataProto:
    return DataProto.from_dict(
        {"input_ids": torch.arange(rows * 2).view(rows, 2)}, {"data_source": np.array(["s"] * rows, dtype=object)}
    )


def test_samples_of_a_prompt_share_its_uid_and_differ_in_seed() -> None:
    batch = label_prompts(prompts(2), draw=3, n=2, seed=1)
    assert batch.non_tensor_batch["uid"].tolist() == ["3-0", "3-0", "3-1", "3-1"]
    assert batch.batch["input_ids"].tolist() == [[0, 1], [0, 1], [2, 3], [2, 3]]
    assert len(set(batch.batch["seed"].tolist())) == 4


def test_seeds_depend_on_seed_step_and_row_only() -> None:
    one = label_prompts(prompts(2), draw=3, n=2, seed=1).batch["seed"]
    assert torch.equal(one, label_prompts(prompts(2), draw=3, n=2, seed=1).batch["seed"])
    assert not set(one.tolist()) & set(label_prompts(prompts(2), draw=4, n=2, seed=1).batch["seed"].tolist())
    assert not set(one.tolist()) & set(label_prompts(prompts(2), draw=3, n=2, seed=2).batch["seed"].tolist())


def test_workers_get_the_named_columns_and_nothing_else() -> None:
    batch = DataProto.from_dict({"a": torch.zeros(2, 1), "b": torch.zeros(2, 1)}, {"text": ["x", "y"]}, {"old": 1})
    sent = for_workers(batch, "b", columns=("a",), mini_batch_size=2)
    assert sorted(sent.batch.keys()) == ["a", "b"]
    assert sent.non_tensor_batch == {} and sent.meta_info == {"mini_batch_size": 2}


def scored_batch() -> DataProto:
    return DataProto.from_dict(
        {
            "response_mask": torch.tensor([[1, 1]]),
            "token_level_scores": torch.tensor([[0.0, 1.0]]),
            "old_log_probs": torch.tensor([[-1.0, -2.0]]),
            "ref_log_probs": torch.tensor([[-1.5, -1.0]]),
        }
    )


def test_b8_kl_in_the_reward() -> None:
    batch, kl = penalize_kl(scored_batch(), coef=0.1, kind="kl")
    torch.testing.assert_close(batch.batch["token_level_rewards"], torch.tensor([[-0.05, 1.1]]))
    assert kl == pytest.approx(0.5 - 1.0)


def test_b8_the_kl_figure_is_over_valid_tokens_per_response() -> None:
    batch = DataProto.concat([scored_batch(), scored_batch(), scored_batch()])
    batch.batch["response_mask"] = torch.tensor([[1, 0], [1, 0], [0, 0]])
    batch.batch["old_log_probs"][:, 1] = 99.0
    batch, kl = penalize_kl(batch, coef=0.1, kind="kl")
    assert kl == pytest.approx((0.5 + 0.5) / 2)  # the third response has no valid token
    torch.testing.assert_close(batch.batch["token_level_rewards"], torch.tensor([[-0.05, 0], [-0.05, 0], [0, 0]]))


def groups(scores: list[float], uids: str, **columns: list[object]) -> DataProto:
    """Responses of one token."""
    return DataProto.from_dict(
        {
            "response_mask": torch.ones(len(scores), 1, dtype=torch.long),
            "token_level_scores": torch.tensor(scores)[:, None],
            "token_level_rewards": torch.tensor(scores)[:, None],
        },
        {"uid": list(uids), **{f"{SCORE_COLUMN}{name}": column for name, column in columns.items()}},
    )


def test_d7_only_groups_that_differ_are_kept() -> None:
    kept = informative_groups(groups([1.0, 0.0, 0.0, 1.0, 1.0, 0.0], "abcabc"), "score")
    assert kept.non_tensor_batch["uid"].tolist() == ["b", "b"]
    assert kept.batch["token_level_scores"].flatten().tolist() == [0.0, 1.0]


def test_d7_what_must_differ_may_be_another_value() -> None:
    batch = groups([0.1, 0.2, 0.3, 0.4], "aabb", acc=[True, True, False, True])
    assert informative_groups(batch, "acc").non_tensor_batch["uid"].tolist() == ["b", "b"]
    with pytest.raises(
        ValueError, match="metric=right: the reward function returned no such value; expected score, acc"
    ):
        informative_groups(batch, "right")


def test_d7_an_excluded_row_makes_no_difference() -> None:
    batch = groups([1.0, 1.0, 0.0], "aaa")
    batch.batch["response_mask"][2] = 0
    assert len(informative_groups(batch, "score")) == 0


def test_rollout_correction_changes_what_the_actor_trains_on() -> None:
    batch = DataProto.from_dict(
        {
            "response_mask": torch.tensor([[1, 1, 1, 0]]),
            "old_log_probs": torch.tensor([[-1.0, -1.0, -1.0, 7.0]]),
            "rollout_log_probs": torch.tensor([[-1.5, -2.0, -1.0, 8.0]]),
        }
    )
    config = RolloutCorrectionConfig(rollout_is="token", rollout_is_threshold=1.5, rollout_rs="token_k1")
    changed, metrics = correct_rollout(batch, config)
    assert changed.batch["response_mask"].tolist() == [[1, 0, 1, 0]]  # a ratio of e is above 2
    torch.testing.assert_close(changed.batch["rollout_weights"], torch.tensor([[1.5, 0.0, 1.0, 0.0]]))  # e^.5 is cut
    assert metrics["rollout_correction/is_clipped_frac"] == pytest.approx(1 / 2)
    assert metrics["rollout_correction/rejected_tokens_frac"] == pytest.approx(1 / 3)
    assert metrics["rollout_correction/rollout_kl"] == pytest.approx(-0.5)
    assert metrics["rollout_correction/is_ess"] == pytest.approx(2.5**2 / (2 * (1.5**2 + 1)))
    assert correct_rollout(batch, RolloutCorrectionConfig()) == (batch, {})


def test_tokens_are_chosen_once_for_the_whole_batch() -> None:
    batch = DataProto.from_dict(
        {
            "response_mask": torch.tensor([[1, 1], [1, 0]]),
            "old_log_probs": torch.tensor([[-1.0, -3.0], [-2.0, 99.0]]),
            "advantages": torch.tensor([[1.0, 2.0], [9.0, 99.0]]),
        }
    )
    # Less their means (-2 and 4), log p is 1, -1, 0 and A is -3, -2, 5: covariances -3, 2, 0.
    config = ActorConfig(policy_loss=PolicyLossConfig("kl_cov", {"kl_cov_ratio": 0.4}))
    assert choose_tokens(batch, config, seed=1).batch["selected"].tolist() == [[False, True], [False, False]]
    assert choose_tokens(batch, ActorConfig(), seed=1) is batch


def test_gdpo_leaves_excluded_rows_out() -> None:
    rewards = {"right": torch.tensor([1, torch.nan, 3]), "short": torch.tensor([1, 0.5, 0])}
    batch = with_tensors(
        groups([0.0, 0.0, 0.0], "aaa"), **{f"{REWARD_COLUMN}{name}": column for name, column in rewards.items()}
    )
    batch.batch["response_mask"][1] = 0
    config = AlgorithmConfig(adv_estimator="gdpo", gdpo_reward_weights={"right": 2.0})
    found, metrics = compute_advantage(batch, config)
    # right: -.7071, .7071, twice; short: .7071, -.7071; the sum is -.7071, .7071, whose deviation is 1
    expected = torch.tensor([[-0.7071], [0.0], [0.7071]])
    torch.testing.assert_close(found.batch["advantages"], expected, atol=1e-4, rtol=0)
    assert set(metrics) == {"groups_of_one", "groups_all_equal/right", "groups_all_equal/short"}
    batch.batch["response_mask"][1] = 1
    with pytest.raises(ValueError, match=r"reward 'right' is no finite number in rows \[1\]"):
        compute_advantage(batch, config)
    del batch.batch[f"{REWARD_COLUMN}short"]
    with pytest.raises(ValueError, match=r"normalises several rewards one by one, but there is only one \(right\)"):
        compute_advantage(batch, config)


def test_grpo_groups_by_uid() -> None:
    batch = DataProto.from_dict(
        {
            "response_mask": torch.ones(4, 1, dtype=torch.long),
            "token_level_rewards": torch.tensor([[0.0], [10.0], [2.0], [30.0]]),
        },
        {"uid": ["a", "b", "a", "b"]},
    )
    batch, _ = compute_advantage(batch, AlgorithmConfig(adv_estimator="grpo"))
    expected = torch.tensor([[-0.7071], [-0.7071], [0.7071], [0.7071]])
    torch.testing.assert_close(batch.batch["advantages"], expected, atol=1e-4, rtol=0)


def test_shuffling_is_seeded() -> None:
    rows = prompts(8)
    one, two = shuffled(rows, 5).batch["input_ids"], shuffled(rows, 5).batch["input_ids"]
    assert torch.equal(one, two) and not torch.equal(one, rows.batch["input_ids"])
    assert sorted(one[:, 0].tolist()) == rows.batch["input_ids"][:, 0].tolist()
