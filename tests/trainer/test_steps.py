"""The driver's own part of a step, with numbers to check by hand."""

import numpy as np
import pytest
import torch

from verl import DataProto
from verl.config import AlgorithmConfig
from verl.trainer.steps import compute_advantage, for_workers, label_prompts, penalize_kl, shuffled


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
