"""Each estimator against numbers worked out by hand."""

import math

import pytest
import torch

from verl.algorithms.advantages import AdvantageInputs, get_adv_estimator
from verl.config.algorithm import AlgorithmConfig

ROOT_HALF = math.sqrt(0.5)


def outcomes(scores, groups=None, **more):
    """Responses of two tokens whose score stands on the last one."""
    rewards = torch.tensor([[0.0, score] for score in scores])
    ids = None if groups is None else torch.tensor([ord(letter) for letter in groups])
    return AdvantageInputs(rewards, torch.ones_like(rewards), group_ids=ids, **more)


def run(name, batch, **config):
    return get_adv_estimator(name)(batch, AlgorithmConfig(**config))


def per_row(result):
    assert torch.equal(result.advantages[:, 0], result.advantages[:, 1])
    return result.advantages[:, 0]


def check(found, expected):
    torch.testing.assert_close(found, torch.tensor(expected), atol=1e-5, rtol=1e-5)


# -- GAE ---------------------------------------------------------------------------------------------------------------


def test_gae_by_hand():
    rewards, values = torch.tensor([[0.0, 1.0]]), torch.tensor([[0.5, 0.2]])
    batch = AdvantageInputs(rewards, torch.ones(1, 2), values=values)
    result = run("gae", batch, gamma=0.5, lam=0.5)
    # delta = 0 + .5*.2 - .5 = -.4 and 1 - .2 = .8; A = -.4 + .25*.8 = -.2 and .8; returns = A + V
    check(result.returns, [[0.3, 1.0]])
    check(result.advantages, [[-ROOT_HALF, ROOT_HALF]])  # two numbers whitened with the sample deviation


def test_gae_with_gamma_and_lambda_one_is_the_sum_to_go_less_the_value():
    rewards, values = torch.tensor([[0.0, 0.0, 2.0]]), torch.tensor([[0.5, 1.0, 3.0]])
    result = run("gae", AdvantageInputs(rewards, torch.ones(1, 3), values=values))
    check(result.returns, [[2.0, 2.0, 2.0]])
    # A = 1.5, 1, -1: mean 0.5, sample deviation sqrt(1.75)
    check(result.advantages, [[1 / math.sqrt(1.75), 0.5 / math.sqrt(1.75), -1.5 / math.sqrt(1.75)]])


def test_gae_passes_over_observation_tokens():
    """A tool's answer in the middle (mask 0) changes nothing, whatever rewards and values stand there."""
    short = AdvantageInputs(torch.tensor([[1.0, 2.0, 3.0]]), torch.ones(1, 3), values=torch.tensor([[0.5, 0.25, 0.75]]))
    nan = float("nan")
    long = AdvantageInputs(
        torch.tensor([[1.0, nan, 2.0, 99.0, nan, 3.0]]),
        torch.tensor([[1, 0, 1, 0, 0, 1]]),
        values=torch.tensor([[0.5, 99.0, 0.25, nan, 99.0, 0.75]]),
    )
    expected, found = (run("gae", batch, gamma=0.9, lam=0.8) for batch in (short, long))
    positions = [0, 2, 5]
    assert torch.equal(found.advantages[:, positions], expected.advantages)
    assert torch.equal(found.returns[:, positions], expected.returns)
    assert found.advantages[:, [1, 3, 4]].abs().sum() == found.returns[:, [1, 3, 4]].abs().sum() == 0


def test_a8_gae_padding_changes_no_bit():
    torch.manual_seed(0)
    rewards, values = torch.randn(2, 1, 7)
    mask = torch.tensor([[1, 1, 0, 1, 1, 1, 0]])
    plain = run("gae", AdvantageInputs(rewards, mask, values=values), gamma=0.99, lam=0.95)
    garbage = torch.tensor([[float("nan"), 1e9, -float("inf")]])
    padded = run(
        "gae",
        AdvantageInputs(
            torch.cat([rewards, garbage], 1),
            torch.cat([mask, torch.zeros(1, 3, dtype=mask.dtype)], 1),
            values=torch.cat([values, garbage], 1),
        ),
        gamma=0.99,
        lam=0.95,
    )
    assert torch.equal(padded.advantages[:, :7], plain.advantages)
    assert torch.equal(padded.returns[:, :7], plain.returns)


def test_gae_equals_the_textbook_loop():
    torch.manual_seed(1)
    rewards, values = torch.randn(2, 5, 9, dtype=torch.float64)
    mask = (torch.rand(5, 9) < 0.7).long()
    result = run("gae", AdvantageInputs(rewards, mask, values=values), gamma=0.97, lam=0.9)
    for row in range(5):
        advantage = next_value = 0.0
        for t in reversed(range(9)):
            if mask[row, t]:
                delta = rewards[row, t] + 0.97 * next_value - values[row, t]
                advantage = delta + 0.97 * 0.9 * advantage
                next_value = values[row, t]
                torch.testing.assert_close(result.returns[row, t], advantage + values[row, t])


# -- Group baselines ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", [[0, 1, 2, 3], [3, 2, 1, 0], [1, 3, 0, 2]])
def test_a4_grpo(order):
    scores, groups = [0.0, 10.0, 2.0, 30.0], "abab"
    expected = [-ROOT_HALF, -ROOT_HALF, ROOT_HALF, ROOT_HALF]
    batch = outcomes([scores[i] for i in order], [groups[i] for i in order])
    check(per_row(run("grpo", batch)), [expected[i] for i in order])


def test_dr_grpo_does_not_divide():
    found = run("grpo", outcomes([0.0, 10.0, 2.0, 30.0], "abab"), norm_adv_by_std_in_grpo=False)
    check(per_row(found), [-1.0, -10.0, 1.0, 10.0])


def test_a4_rloo_and_the_group_of_one():
    found = run("rloo", outcomes([1.0, 0.0, 0.7, 0.0, 2.0], "aabaa"))
    # 1 - (0+0+2)/3, 0 - (1+0+2)/3, alone, 0 - 1, 2 - 1/3
    check(per_row(found), [1 / 3, -1.0, 0.0, -1.0, 5 / 3])
    assert found.metrics == {"groups_of_one": 1, "groups_all_equal": 0}


def test_d4_a_row_that_trains_nothing_is_not_in_its_group():
    """The one with an invalid reward has its mask cleared; the other two are compared with each other."""
    batch = outcomes([1.0, float("nan"), 3.0], "aaa")
    batch.response_mask[1] = 0
    check(per_row(run("grpo", batch)), [-ROOT_HALF, 0.0, ROOT_HALF])


def test_opo_weighs_the_baseline_by_length():
    rewards = torch.tensor([[0.0, 0.0, 1.0], [0.0, 99.0, 99.0]])
    mask = torch.tensor([[1, 1, 1], [1, 0, 0]])
    found = run("opo", AdvantageInputs(rewards, mask, group_ids=torch.tensor([0, 0])))
    # baseline (3 * 1 + 1 * 0) / 4
    check(found.advantages, [[0.25, 0.25, 0.25], [-0.75, 0.0, 0.0]])


def test_gpg_makes_up_for_groups_that_teach_nothing():
    found = run("gpg", outcomes([0.0, 1.0, 1.0, 1.0, 0.0, 0.0], "aabbcc"))
    # 4 of 6 responses give no gradient: alpha = 6 / 2
    check(per_row(found), [-1.5, 1.5, 0.0, 0.0, 0.0, 0.0])
    assert found.metrics == {"groups_of_one": 0, "groups_all_equal": 2, "gpg_alpha": 3}


def test_grpo_passk_rewards_only_the_best():
    scores, groups = [1.0, 3.0, 2.0, 5.0, 5.0, 0.0, 7.0], "aaabbbc"
    found = run("grpo_passk", outcomes(scores, groups), norm_adv_by_std_in_grpo=False)
    check(per_row(found), [0.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0])  # two best in b, none to compare with in c
    found = run("grpo_passk", outcomes(scores, groups))
    check(per_row(found), [0.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0])  # the deviation of 1, 3, 2 is 1


def test_gdpo_normalises_each_reward_by_itself():
    parts = {"right": torch.tensor([0.0, 1.0, 0.0, 0.0]), "short": torch.tensor([0.0, 0.0, 0.0, 100.0])}
    batch = outcomes([0.0] * 4, "aabb", reward_components=parts)
    # In each group one reward gives -.7071, +.7071 and the other, all equal, 0; the deviation over the 4 is .8165
    check(per_row(run("gdpo", batch)), [-ROOT_HALF / 0.8164966, ROOT_HALF / 0.8164966] * 2)
    # Twice the weight: -.7071, .7071, -1.4142, 1.4142 with deviation sqrt(5/3)
    weighted = run("gdpo", batch, gdpo_reward_weights={"short": 2.0})
    scale = math.sqrt(5 / 3)
    check(per_row(weighted), [-ROOT_HALF / scale, ROOT_HALF / scale, -2 * ROOT_HALF / scale, 2 * ROOT_HALF / scale])
    assert weighted.metrics == {"groups_of_one": 0, "groups_all_equal/right": 1, "groups_all_equal/short": 1}


def test_gdpo_leaves_a_group_of_one_out_of_the_batch_deviation():
    found = run("gdpo", outcomes([0.0] * 3, "aab", reward_components={"x": torch.tensor([0.0, 1.0, 5.0])}))
    check(per_row(found), [-ROOT_HALF, ROOT_HALF, 0.0])  # the deviation of -.7071, .7071 is 1
    assert found.metrics["groups_of_one"] == 1


def test_gdpo_tells_apart_what_has_the_same_sum():
    parts = {"x": torch.tensor([0.0, 1.0, 0.0, 2.0]), "y": torch.tensor([0.0, 1.0, 0.0, 0.0])}
    found = per_row(run("gdpo", outcomes([0.0] * 4, "aabb", reward_components=parts)))
    assert found[1] > found[3] > 0  # two rewards won are more than one, though both sums are 2


@pytest.mark.parametrize(
    ("parts", "config", "message"),
    [
        ({}, {}, "at least one reward"),
        ({"x": [0.0, 1.0]}, {"gdpo_reward_weights": {"y": 1.0}}, r"rewards \['x'\] against .* \['y'\]"),
        ({"x": [0.0, float("nan")]}, {}, r"reward 'x' is no finite number in rows \[1\]"),
        ({"x": [0.0, 1.0]}, {"use_kl_in_reward": True}, "use actor.use_kl_loss instead"),
    ],
)
def test_gdpo_refuses(parts, config, message):
    batch = outcomes([0.0, 0.0], "aa", reward_components={name: torch.tensor(value) for name, value in parts.items()})
    with pytest.raises(ValueError, match=message):
        run("gdpo", batch, **config)


# -- Returns -----------------------------------------------------------------------------------------------------------


def test_a6_reinforce_plus_plus_masked_tokens_neither_decay_nor_reset():
    batch = AdvantageInputs(torch.tensor([[0.0, 0.0, 0.0, 4.0, 0.0]]), torch.tensor([[1, 0, 1, 1, 0]]))
    found = run("reinforce_plus_plus", batch, gamma=0.5)
    check(found.returns, [[1.0, 0.0, 2.0, 4.0, 0.0]])
    # mean 7/3, sample deviation sqrt(7/3)
    spread = math.sqrt(7 / 3)
    check(found.advantages, [[(1 - 7 / 3) / spread, 0.0, (2 - 7 / 3) / spread, (4 - 7 / 3) / spread, 0.0]])


def test_reinforce_plus_plus_baseline_by_hand():
    found = run("reinforce_plus_plus_baseline", outcomes([0.0, 2.0, 5.0, 7.0, 9.0], "aabbc"))
    # -1, 1, -1, 1 on two tokens each: 8 numbers with sample variance 8/7; c is alone and stays out of it
    unit = 1 / math.sqrt(8 / 7)
    check(per_row(found), [-unit, unit, -unit, unit, 0.0])
    assert found.metrics["groups_of_one"] == 1


def test_remax_subtracts_the_greedy_score():
    rewards = torch.tensor([[0.0, 1.0, 2.0], [1.0, 0.0, 0.0]])
    mask = torch.tensor([[1, 1, 1], [1, 0, 0]])
    batch = AdvantageInputs(rewards, mask, baseline_scores=torch.tensor([0.5, 1.0]))
    found = run("remax", batch)
    check(found.returns, [[3.0, 3.0, 2.0], [1.0, 0.0, 0.0]])
    check(found.advantages, [[2.5, 2.5, 1.5], [0.0, 0.0, 0.0]])
    with pytest.raises(ValueError, match="greedy response was not scored"):
        run("remax", AdvantageInputs(rewards, mask, baseline_scores=torch.tensor([float("nan"), 1.0])))
