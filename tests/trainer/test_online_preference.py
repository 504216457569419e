"""From scored samples to preferences."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from verl import DataProto
from verl.trainer.online_preference import preference_rows

Run = Callable[..., list[dict[str, Any]]]


def scored(scores: list[float], uids: list[str]) -> DataProto:
    rows = len(scores)
    token_scores = torch.zeros(rows, 2)
    token_scores[:, 1] = torch.tensor(scores)
    ids = torch.arange(rows)[:, None].expand(rows, 4) * 10 + torch.arange(4)
    return DataProto.from_dict(
        {
            "input_ids": ids,
            "attention_mask": torch.ones(rows, 4, dtype=torch.long),
            "response_mask": torch.ones(rows, 2, dtype=torch.long),
            "token_level_scores": token_scores,
        },
        {"uid": uids},
    )


def test_pairs_are_the_best_and_the_worst_of_each_prompt() -> None:
    rows = preference_rows(scored([1.0, 5.0, 3.0, 2.0, 2.0, 0.0, 9.0], list("aaabbcc")), "dpo", 4)
    # a: rows 1 and 0; b: equal scores, nothing to learn; c: rows 6 and 5
    assert rows.batch["input_ids"][:, :, 0].tolist() == [[10, 0], [60, 50]]
    assert rows.batch["response_mask"].shape == (2, 2, 2)


def test_samples_above_their_prompts_mean_are_desirable() -> None:
    rows = preference_rows(scored([1.0, 5.0, 3.0, 0.0, 1.0], list("aaabb")), "kto", 5)
    assert rows.batch["labels"].tolist() == [False, True, False, False, True]
    assert rows.batch["input_ids"].shape == (5, 2, 4)
    assert rows.batch["input_ids"][:, 0, 0].tolist() == [0, 10, 20, 30, 40]


def test_without_a_difference_there_are_no_rows() -> None:
    assert len(preference_rows(scored([1.0, 1.0], ["a", "a"]), "dpo", 2)) == 0


@pytest.mark.parametrize("name", ["dpo", "ipo", "simpo", "kto"])
def test_a_run_learns_from_its_own_samples(tiny_run: Callable[..., list[str]], run_metrics: Run, name: str) -> None:
    overrides = [key for key in tiny_run() if not key.startswith("algorithm.")]
    record = run_metrics([*overrides, f"algorithm.name={name}", "actor_rollout_ref.rollout.n=4"])[-1]
    assert record["preference/rows"] > 0 and record["actor/grad_norm"] > 0
    assert ("timing/ref_log_prob" in record) == (name != "simpo")
    assert "critic/vf_loss" not in record and any(key.startswith("actor/rewards/") for key in record)


def test_a_run_without_preferences_goes_on(tiny_run: Callable[..., list[str]], run_metrics: Run, tmp_path: Any) -> None:
    constant = tmp_path / "constant.py"
    constant.write_text("def compute_score(data_source, solution_str, ground_truth, extra_info):\n    return 1.0\n")
    overrides = [key for key in tiny_run() if not key.startswith("algorithm.")]
    records = run_metrics([*overrides, "algorithm.name=dpo", f"reward.custom_reward_function.path={constant}"])
    assert [record["preference/rows"] for record in records] == [0.0, 0.0]
