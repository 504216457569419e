"""How the loop deals with rewards: beside its own work, and rows without a score."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Run = Callable[..., list[dict[str, Any]]]


def figures(record: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in record.items() if not name.startswith(("timing/", "perf/"))}


def reward_file(path: Path, body: str) -> str:
    path.write_text(f"def compute_score(data_source, solution_str, ground_truth, extra_info):\n    {body}\n")
    return f"reward.custom_reward_function.path={path}"


def test_rewards_beside_log_probs_change_nothing(tiny_run: Callable[..., list[str]], run_metrics: Run) -> None:
    waiting = run_metrics(tiny_run(), "waiting")
    beside = run_metrics(tiny_run("reward.launch_async=true"), "beside")
    assert [figures(record) for record in beside] == [figures(record) for record in waiting]
    assert "timing/reward" in beside[0]


@pytest.mark.parametrize("beside", [False, True])
def test_d4_excluded_rows_train_nothing(
    tiny_run: Callable[..., list[str]], run_metrics: Run, tmp_path: Path, beside: bool
) -> None:
    """D4: what an excluded row would have scored changes nothing at all."""
    odd = "odd = extra_info['index'] % 2"
    overrides = ["reward.on_invalid=exclude", f"reward.launch_async={beside}"]
    none = reward_file(tmp_path / "none.py", f"{odd}; return None if odd else len(solution_str)")
    nan = reward_file(tmp_path / "nan.py", f"{odd}; return float('nan') if odd else len(solution_str)")
    one, two = (run_metrics(tiny_run(*overrides, file), file[-6:-3]) for file in (none, nan))
    assert [figures(record) for record in one] == [figures(record) for record in two]
    assert sum(record["reward/excluded"] for record in one) == sum(record["reward/invalid"] for record in one) > 0
    assert all(record["reward/score_min"] >= 1 for record in one if "reward/score_min" in record)


def test_a_score_that_is_none_stops_the_run_by_default(
    tiny_run: Callable[..., list[str]], run_metrics: Run, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=r"row 0 \(data_source 'arithmetic', .*returned None where a finite number"):
        run_metrics(tiny_run(reward_file(tmp_path / "bad.py", "return None")))
    with pytest.raises(ValueError, match="no valid score to any of the 8 rows of step 1; .*leaves nothing to train on"):
        run_metrics(tiny_run(reward_file(tmp_path / "bad.py", "return None"), "reward.on_invalid=exclude"))


def test_a_step_whose_tokens_are_all_rejected_logs_no_nan(tiny_run: Callable[..., list[str]], run_metrics: Run) -> None:
    """The two engines agree to 1e-6 here, so that no ratio is between 5 and 6. The file has null for NaN."""
    correction = "algorithm.rollout_correction"
    records = run_metrics(
        tiny_run(
            f"{correction}.rollout_rs=token_k1",
            f"{correction}.rollout_rs_threshold='5_6'",
            f"{correction}.rollout_is=token",
            "actor_rollout_ref.actor.use_kl_loss=true",
            "algorithm.use_kl_in_reward=false",
            "actor_rollout_ref.actor.entropy_coeff=0.1",
        )
    )
    for record in records:
        assert record["rollout_correction/rejected_tokens_frac"] == 1
        assert "actor/loss" not in record
        assert [name for name, value in record.items() if value is None] == []
