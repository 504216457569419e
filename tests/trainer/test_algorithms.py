"""Algorithms by their names in whole runs: short names, plug-ins of one's own, the controller of KL."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Records = list[dict[str, Any]]
Run = Callable[..., Records]


@pytest.fixture
def bare_run(tiny_run: Callable[..., list[str]]) -> Callable[..., list[str]]:
    """`tiny_run` without its choice of an algorithm."""

    def overrides(*extra: str) -> list[str]:
        return [key for key in tiny_run(*extra) if not key.startswith("algorithm.") or key in extra]

    return overrides


@pytest.mark.parametrize(
    "name",
    ["ppo", "dr_grpo", "rloo", "reinforce_plus_plus", "reinforce_plus_plus_baseline", "opo", "gpg", "grpo_passk"],
)
def test_a_short_name_is_enough(bare_run: Callable[..., list[str]], run_metrics: Run, name: str) -> None:
    records = run_metrics(bare_run(f"algorithm.name={name}"))
    assert [record["step"] for record in records] == [1, 2]
    assert all(record["actor/grad_norm"] > 0 for record in records)
    assert all(("critic/vf_loss" in record) == (name == "ppo") for record in records)
    in_reward = name in ("ppo", "rloo", "reinforce_plus_plus")
    in_loss = name == "reinforce_plus_plus_baseline"
    assert all(("kl/coef" in record, "actor/kl_loss" in record) == (in_reward, in_loss) for record in records)


def test_remax_compares_with_the_greedy_answer_to_the_same_prompt(
    bare_run: Callable[..., list[str]], run_metrics: Run
) -> None:
    """With a single candidate per token every sample is the greedy answer, so no advantage is left."""
    keys = bare_run("algorithm.name=remax", "algorithm.use_kl_in_reward=false")
    sampled = run_metrics(keys, "sampled")[0]
    greedy = run_metrics([*keys, "actor_rollout_ref.rollout.top_k=1"], "greedy")[0]
    assert greedy["reward/score_max"] > 0
    assert greedy["actor/advantages_min"] == greedy["actor/advantages_max"] == 0
    assert sampled["actor/advantages_min"] < 0 < sampled["actor/advantages_max"]


PLUGIN = """
from verl.algorithms.advantages import Advantages

def sign(batch, config):
    '''1 for responses that score above their prompt's mean, else -1.'''
    scores = batch.token_level_rewards.sum(-1)
    means = [scores[batch.group_ids == group].mean() for group in batch.group_ids]
    above = [1.0 if score > mean else -1.0 for score, mean in zip(scores, means)]
    advantages = batch.response_mask * batch.token_level_rewards.new_tensor(above)[:, None]
    return Advantages(advantages, advantages, {"above": float(sum(x > 0 for x in above))})

def push(inputs, config, *, strength=1.0):
    return -strength * (inputs.advantages * inputs.log_probs * inputs.response_mask).sum(), {}
"""


def test_an_estimator_and_a_loss_of_ones_own(
    bare_run: Callable[..., list[str]], run_metrics: Run, tmp_path: Path
) -> None:
    """By where they live; the loop knows nothing of them, and a Ray worker would import them just so."""
    plugin = tmp_path / "mine.py"
    plugin.write_text(PLUGIN)
    loss = "actor_rollout_ref.actor.policy_loss"
    keys = [f"algorithm.adv_estimator={plugin}:sign", f"{loss}.loss_mode={plugin}:push"]
    one = run_metrics(bare_run(*keys), "one")
    assert 0 < one[0]["above"] < 8 and "critic/vf_loss" not in one[0]
    assert one[0]["actor/advantages_min"] == -1 and one[0]["actor/advantages_max"] == 1
    twice = run_metrics(bare_run(*keys, f"{loss}.loss_kwargs={{strength: 2}}"), "twice")
    assert twice[0]["actor/grad_norm"] != one[0]["actor/grad_norm"]
    with pytest.raises(ValueError, match="'push' knows no size; known: strength"):
        run_metrics(bare_run(*keys, f"{loss}.loss_kwargs={{size: 2}}"))


@pytest.mark.parametrize("kind", ["k3", "k3+", "abs", "k2"])
def test_kinds_of_kl_in_reward_and_loss(bare_run: Callable[..., list[str]], run_metrics: Run, kind: str) -> None:
    keys = [f"algorithm.kl_penalty={kind}", f"actor_rollout_ref.actor.kl_loss_type={kind}"]
    routes = ["algorithm.use_kl_in_reward=true", "actor_rollout_ref.actor.use_kl_loss=true"]
    last = run_metrics(bare_run("algorithm.name=rloo", *keys, *routes))[-1]
    assert last["actor/kl_loss"] > 0 and last["kl/reward_kl_per_response"] > 0  # none of these is ever negative


def test_b11_the_adaptive_coefficient_follows_the_kl_and_survives_a_stop(
    bare_run: Callable[..., list[str]], run_metrics: Run
) -> None:
    control = "algorithm.kl_ctrl"
    keys = [
        "algorithm.name=rloo",
        "algorithm.kl_penalty=k3",
        *(f"{control}.{key}" for key in ("type=adaptive", "kl_coef=0.1", "target_kl=0.05", "horizon=80")),
        "trainer.total_epochs=2",
    ]
    whole = run_metrics(bare_run(*keys, "trainer.total_training_steps=4"), "whole")
    assert whole[0]["kl/coef"] == 0.1
    for before, after in zip(whole, whole[1:], strict=False):
        error = min(max(before["kl/reward_kl_per_response"] / 0.05 - 1, -0.2), 0.2)
        assert after["kl/coef"] == pytest.approx(before["kl/coef"] * (1 + error * 8 / 80))
    for steps in (2, 4):
        parts = run_metrics(bare_run(*keys, f"trainer.total_training_steps={steps}", "trainer.save_freq=2"), "parts")
    assert [record["kl/coef"] for record in parts] == [record["kl/coef"] for record in whole]


def test_b11_a_controller_without_a_target_is_refused(bare_run: Callable[..., list[str]], run_metrics: Run) -> None:
    with pytest.raises(ValueError, match="kl_ctrl.target_kl=0.0: the adaptive controller divides by it"):
        run_metrics(bare_run("algorithm.kl_ctrl.type=adaptive", "algorithm.kl_ctrl.target_kl=0"))
