"""Whole runs on a tiny model: the laws that only the loop can keep."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

# What must not depend on where and how fast a run went.
CLOCK = ("timing/", "perf/")

Records = list[dict[str, Any]]
Run = Callable[..., Records]


def figures(record: dict[str, Any]) -> dict[str, float]:
    return {name: value for name, value in record.items() if not name.startswith(CLOCK)}


def assert_same_run(one: Records, two: Records, tolerance: float) -> None:
    assert [record["step"] for record in one] == [record["step"] for record in two]
    for left, right in zip(one, two, strict=True):
        assert figures(left).keys() == figures(right).keys()
        for name, value in figures(left).items():
            if isinstance(value, float):
                assert figures(right)[name] == pytest.approx(value, abs=tolerance, rel=tolerance), (left["step"], name)


def test_every_group_of_metrics_is_there(tiny_run: Callable[..., list[str]], run_metrics: Run) -> None:
    records = run_metrics(tiny_run("trainer.test_freq=1"))
    assert [record["step"] for record in records] == [1, 2]
    for prefix in (
        "timing/step", "timing/gen", "timing/sync", "actor/pg_loss", "actor/grad_norm", "actor/lr", "critic/vf_loss",
        "critic/grad_norm", "reward/score_mean", "kl/coef", "response_length/mean", "perf/tokens_per_second",
        "perf/peak_rss_gib", "rollout/logprob_abs_diff_mean", "val/",
    ):  # fmt: skip
        assert any(name.startswith(prefix) for name in records[0]), (prefix, sorted(records[0]))


def test_law_4_the_ratio_is_1_before_the_first_update(tiny_run: Callable[..., list[str]], run_metrics: Run) -> None:
    one_update = "actor_rollout_ref.actor.ppo_mini_batch_size=4"
    for record in run_metrics(tiny_run(one_update)):
        assert record["rollout/logprob_abs_diff_max"] < 1e-4
        assert record["actor/ppo_kl"] == pytest.approx(0, abs=1e-5)
        assert record["actor/pg_clipfrac"] == 0


def test_law_9_one_seed_one_run(tiny_run: Callable[..., list[str]], run_metrics: Run) -> None:
    one = run_metrics(tiny_run(), "one")
    assert_same_run(one, run_metrics(tiny_run(), "two"), tolerance=0)
    other = run_metrics(tiny_run("trainer.seed=2"), "other")
    assert figures(one[0]) != figures(other[0])


@pytest.mark.parametrize(
    "layout",
    [
        "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=1",
        "actor_rollout_ref.actor.use_dynamic_bsz=true actor_rollout_ref.actor.ppo_max_token_len_per_gpu=30 "
        "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=null",
        "actor_rollout_ref.model.use_remove_padding=true critic.model.use_remove_padding=true",
        "actor_rollout_ref.model.enable_gradient_checkpointing=true",
        "trainer.balance_batch=true",
    ],
)
def test_law_2_cutting_changes_nothing(tiny_run: Callable[..., list[str]], run_metrics: Run, layout: str) -> None:
    plain = run_metrics(tiny_run(), "plain")
    assert_same_run(plain, run_metrics(tiny_run(*layout.split()), "cut"), tolerance=1e-4)


def test_law_5_stop_and_resume(tiny_run: Callable[..., list[str]], run_metrics: Run) -> None:
    whole = run_metrics(tiny_run("trainer.total_training_steps=4", "trainer.total_epochs=2"), "whole")
    # The schedule of the first part must be that of the whole run: constant, so 2 steps are the first 2 of 4.
    parts = run_metrics(tiny_run("trainer.total_training_steps=2", "trainer.save_freq=2"), "parts")
    parts = run_metrics(tiny_run("trainer.total_training_steps=4", "trainer.save_freq=2"), "parts")
    assert [record["step"] for record in parts] == [1, 2, 3, 4]
    assert_same_run(whole, parts, tolerance=0)


def test_g2_saves_and_a_finished_run_does_nothing(
    tiny_run: Callable[..., list[str]], run_metrics: Run, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    overrides = tiny_run("trainer.total_training_steps=5", "trainer.save_freq=2")
    assert len(run_metrics(overrides)) == 5
    saved = sorted(path.name for path in (tmp_path / "run").glob("global_step_*"))
    assert saved == ["global_step_2", "global_step_4", "global_step_5"]
    caplog.set_level("INFO", logger="verl.trainer")
    assert len(run_metrics(overrides)) == 5
    assert "step 5 of 5 is done" in caplog.text


def test_g9_each_step_once_and_a_final_validation(tiny_run: Callable[..., list[str]], run_metrics: Run) -> None:
    records = run_metrics(tiny_run("trainer.total_training_steps=3", "trainer.test_freq=0"))
    assert [record["step"] for record in records] == [1, 2, 3]
    assert any(name.startswith("val/") for name in records[-1])
    assert not any(name.startswith("val/") for name in records[0])


def test_critic_warmup_leaves_the_actor_alone(tiny_run: Callable[..., list[str]], run_metrics: Run) -> None:
    records = run_metrics(tiny_run("trainer.critic_warmup=1"))
    assert "actor/pg_loss" not in records[0] and "critic/vf_loss" in records[0]
    assert "actor/pg_loss" in records[1]


def test_grpo_needs_no_critic(tiny_run: Callable[..., list[str]], run_metrics: Run) -> None:
    overrides = tiny_run(
        "algorithm.adv_estimator=grpo",
        "algorithm.use_kl_in_reward=false",
        "actor_rollout_ref.actor.use_kl_loss=true",
        "actor_rollout_ref.actor.entropy_coeff=0.01",
    )
    record = run_metrics(overrides)[-1]
    assert "critic/vf_loss" not in record
    assert "actor/kl_loss" in record and "actor/entropy" in record


def test_several_epochs_and_shuffling(tiny_run: Callable[..., list[str]], run_metrics: Run) -> None:
    overrides = tiny_run("actor_rollout_ref.actor.ppo_epochs=2", "actor_rollout_ref.actor.shuffle=true")
    one, two = run_metrics(overrides, "one"), run_metrics(overrides, "two")
    assert_same_run(one, two, tolerance=0)
    assert one[-1]["actor/ppo_kl"] != 0


def test_the_reference_may_be_dropped_between_uses(tiny_run: Callable[..., list[str]], run_metrics: Run) -> None:
    kept = run_metrics(tiny_run(), "kept")
    assert_same_run(kept, run_metrics(tiny_run("actor_rollout_ref.ref.unload=true"), "dropped"), tolerance=0)


def test_remax_subtracts_the_greedy_score(tiny_run: Callable[..., list[str]], run_metrics: Run) -> None:
    record = run_metrics(tiny_run("algorithm.name=remax"))[-1]
    assert "timing/gen_baseline" in record and "critic/vf_loss" not in record


def test_remax_trains_nothing_on_prompts_whose_greedy_response_has_no_score(
    tiny_run: Callable[..., list[str]], run_metrics: Run, tmp_path: Path
) -> None:
    rewards = tmp_path / "rewards.py"
    rewards.write_text(
        "calls = 0\n"
        "def compute_score(data_source, solution_str, ground_truth, extra_info):\n"
        "    global calls\n"
        "    calls += 1\n"
        "    return None if calls == 9 else float(len(solution_str))\n"
    )
    # Of 4 prompts with 2 samples each the calls 1 to 8 are for the samples, 9 is the first greedy response.
    keys = tiny_run(
        "algorithm.name=remax",
        "actor_rollout_ref.rollout.n=2",
        "reward.on_invalid=exclude",
        "reward.num_workers=0",
        f"reward.custom_reward_function.path={rewards}",
        "trainer.test_freq=-1",
        "trainer.val_before_train=false",
    )
    first, second = run_metrics(keys)
    assert first["reward/without_baseline"] == 2 and "reward/without_baseline" not in second
    assert first["actor/grad_norm"] > 0


def test_gdpo_takes_the_rewards_one_by_one(
    tiny_run: Callable[..., list[str]], run_metrics: Run, tmp_path: Path
) -> None:
    rewards = tmp_path / "two_rewards.py"
    rewards.write_text(
        "def compute_score(data_source, solution_str, ground_truth, extra_info):\n"
        "    letters, short = sum(c.isalpha() for c in solution_str) / 5, float(len(solution_str) < 4)\n"
        "    return {'score': letters + short, 'letters': letters, 'short': short}\n"
    )
    overrides = tiny_run(
        "algorithm.adv_estimator=gdpo",
        "algorithm.use_kl_in_reward=false",
        f"reward.custom_reward_function.path={rewards}",
        "trainer.test_freq=0",
    )
    record = run_metrics(overrides)[-1]
    assert record["actor/grad_norm"] > 0
    assert "val/arithmetic/letters/mean@1" in record


def test_gdpo_needs_several_rewards(tiny_run: Callable[..., list[str]], run_metrics: Run) -> None:
    keys = ("algorithm.adv_estimator=gdpo", "algorithm.use_kl_in_reward=false")
    with pytest.raises(ValueError, match=r"but there is only one \(score\): let the reward function return a dict"):
        run_metrics(tiny_run(*keys))
    penalty = "reward.reward_kwargs.overlong_buffer_cfg"
    longest = ("reward.reward_manager.name=dapo", f"{penalty}.enable=true", f"{penalty}.len=3", f"{penalty}.log=true")
    record = run_metrics(tiny_run(*keys, *longest), "overlong")[-1]
    assert {"groups_all_equal/score", "groups_all_equal/overlong"} <= record.keys()
    with pytest.raises(ValueError, match=r"\(reward.rule_weight=0.5\) have no effect with .*gdpo, .*one by one"):
        run_metrics(tiny_run(*keys, "reward.rule_weight=0.5"))


def test_d7_dynamic_sampling_fills_the_batch_with_groups_that_differ(
    tiny_run: Callable[..., list[str]], run_metrics: Run
) -> None:
    records = run_metrics(tiny_run("algorithm.name=dapo", "algorithm.filter_groups.max_num_gen_batches=50"))
    assert [record["step"] for record in records] == [1, 2]
    for record in records:
        assert record["filter_groups/tried_prompts"] >= record["filter_groups/kept_prompts"] >= 4
        assert record["actor/grad_norm"] > 0


def test_d7_a_source_without_differences_stops_at_its_limit(
    tiny_run: Callable[..., list[str]], run_metrics: Run, tmp_path: Path
) -> None:
    constant = tmp_path / "constant.py"
    constant.write_text("def compute_score(data_source, solution_str, ground_truth, extra_info):\n    return 1.0\n")
    overrides = tiny_run(
        "algorithm.name=dapo",
        "algorithm.filter_groups.max_num_gen_batches=3",
        f"reward.custom_reward_function.path={constant}",
    )
    with pytest.raises(ValueError, match="of 12 prompts in 3 batches only 0 had samples that differ in 'score'"):
        run_metrics(overrides)


def test_rollout_correction_between_equal_engines_changes_nothing(
    tiny_run: Callable[..., list[str]], run_metrics: Run
) -> None:
    plain = run_metrics(tiny_run(), "plain")
    corrected = run_metrics(
        tiny_run(
            "algorithm.rollout_correction.rollout_is=token",
            "algorithm.rollout_correction.rollout_rs=token_k1",
            "algorithm.rollout_correction.rollout_rs_threshold=0.5_2.0",
        ),
        "corrected",
    )
    assert corrected[0]["rollout_correction/rejected_tokens_frac"] == 0
    assert corrected[-1]["actor/grad_norm"] == pytest.approx(plain[-1]["actor/grad_norm"], rel=1e-3)


def test_the_rollouts_log_probs_can_be_the_old_ones(tiny_run: Callable[..., list[str]], run_metrics: Run) -> None:
    record = run_metrics(tiny_run("algorithm.rollout_correction.bypass_mode=true"))[-1]
    assert "timing/old_log_prob" not in record
    assert record["actor/ppo_kl"] == pytest.approx(0, abs=0.1)


@pytest.mark.parametrize("loss", ["clip_cov", "kl_cov", "gspo", "geo_mean", "cispo", "sapo", "gpg", "reinforce"])
def test_every_policy_loss_trains(tiny_run: Callable[..., list[str]], run_metrics: Run, loss: str) -> None:
    overrides = tiny_run(
        f"actor_rollout_ref.actor.policy_loss.loss_mode={loss}",
        "algorithm.adv_estimator=grpo",
        "algorithm.use_kl_in_reward=false",
    )
    assert run_metrics(overrides)[-1]["actor/grad_norm"] > 0
