"""From scored samples to preferences."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from verl import DataProto
from verl.config.loader import load_config
from verl.trainer.checks import checked
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


@pytest.mark.parametrize("loss", ["dpo", "kto"])
def test_d4_excluded_samples_rank_nowhere(loss: str) -> None:
    batch = scored([1.0, 0.0, 5.0, 2.0, 0.0], list("aaabb"))
    batch.batch["response_mask"][[1, 4]] = 0  # what the reward excluded has no tokens, and a score of 0
    rows = preference_rows(batch, loss, 2)
    if loss == "dpo":
        assert rows.batch["input_ids"][:, :, 0].tolist() == [[20, 0]]
    else:
        assert rows.batch["input_ids"][:, 0, 0].tolist() == [0, 20]
        assert rows.batch["labels"].tolist() == [False, True]


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


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["actor_rollout_ref.rollout.n=1"], "loss=dpo learns from the ranking .*n=1: there is nothing to rank"),
        (["critic.enable=true"], "critic.enable=True, but algorithm.preference.loss=dpo uses no values"),
        (["algorithm.use_kl_in_reward=true"], "use_kl_in_reward=True, but algorithm.preference.loss=dpo learns from"),
        (["actor_rollout_ref.actor.entropy_coeff=0.1"], "actor.entropy_coeff=0.1, but algorithm.preference.loss=dpo"),
        (["algorithm.preference.simpo_gamma=1"], "algorithm.preference: 'dpo' knows no gamma; known: beta"),
        (["algorithm.preference.loss=dop"], "unknown preference loss 'dop'. Did you mean 'dpo'"),
        (
            ["algorithm.preference.loss=null", "algorithm.preference.beta=1"],
            "preference.beta=1.0, but .* no loss reads",
        ),
    ],
)
def test_what_contradicts_a_ranking_is_refused(
    tiny_run: Callable[..., list[str]], overrides: list[str], message: str
) -> None:
    keys = [key for key in tiny_run() if not key.startswith("algorithm.")]
    with pytest.raises(ValueError, match=message):
        checked(load_config([*keys, "algorithm.preference.loss=dpo", *overrides]))


def test_a_ranking_alone_needs_no_critic(tiny_run: Callable[..., list[str]]) -> None:
    keys = [key for key in tiny_run() if not key.startswith("algorithm.")]
    assert checked(load_config([*keys, "algorithm.preference.loss=ipo"])).critic.enable is False


def test_a_mini_batch_counts_prompts_also_where_samples_are_judged(
    tiny_run: Callable[..., list[str]], run_metrics: Run
) -> None:
    """2 steps of 4 prompts, 2 of them in a mini-batch: 4 optimizer steps, and the rate falls to 0 over these."""
    overrides = [key for key in tiny_run() if not key.startswith("algorithm.")]
    decay = "actor_rollout_ref.actor.optim.lr_scheduler_type=linear"
    for name in ("dpo", "kto"):
        first, second = run_metrics(
            [*overrides, f"algorithm.name={name}", "actor_rollout_ref.rollout.n=4", decay], name
        )
        assert first["preference/rows"] == (4 if name == "dpo" else 16)
        assert [first["actor/lr"], second["actor/lr"]] == pytest.approx(
            [(1 + 0.75) / 2 * 1e-3, (0.5 + 0.25) / 2 * 1e-3]
        )
