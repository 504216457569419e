"""What holds for every estimator."""

import dataclasses

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from verl.algorithms.advantages import ADVANTAGE_ESTIMATORS, AdvantageInputs
from verl.config.algorithm import AlgorithmConfig

CONFIG = AlgorithmConfig(gamma=0.9, lam=0.8)
NAMES = sorted(ADVANTAGE_ESTIMATORS)
GROUPED = [name for name in NAMES if ADVANTAGE_ESTIMATORS[name].needs_groups]


def random_batch(seed, rows=6, width=5, groups=3, dtype=torch.float32):
    """Everything any estimator needs; about a third of the tokens are masked, in the middle too."""
    generator = torch.Generator().manual_seed(seed)
    rewards, values = torch.randn(2, rows, width, generator=generator, dtype=dtype)
    component_a, component_b, baseline = torch.randn(3, rows, generator=generator, dtype=dtype)
    return AdvantageInputs(
        token_level_rewards=rewards,
        response_mask=(torch.rand(rows, width, generator=generator) < 0.7).long(),
        values=values,
        group_ids=torch.randint(0, groups, (rows,), generator=generator),
        baseline_scores=baseline,
        reward_components={"a": component_a, "b": component_b},
    )


def tensors(batch, change):
    """The batch with `change(tensor)` in the place of every tensor."""
    fields = {f.name: getattr(batch, f.name) for f in dataclasses.fields(batch)}
    parts = {name: change(part) for name, part in fields.pop("reward_components").items()}
    return AdvantageInputs(**{name: change(value) for name, value in fields.items()}, reward_components=parts)


def estimate(name, batch):
    return ADVANTAGE_ESTIMATORS[name](batch, CONFIG)


SEEDS = given(seed=st.integers(0, 2**16), rows=st.integers(1, 8), width=st.integers(1, 6), groups=st.integers(1, 4))


@pytest.mark.parametrize("name", NAMES)
@SEEDS
@settings(max_examples=25, deadline=None)
def test_finite_masked_and_without_gradient(name, seed, rows, width, groups):
    batch = random_batch(seed, rows, width, groups)
    batch.token_level_rewards.requires_grad_()
    result = estimate(name, batch)
    for tensor in (result.advantages, result.returns):
        assert tensor.shape == (rows, width) and tensor.dtype == torch.float32
        assert tensor.isfinite().all() and not tensor.requires_grad
        assert tensor[batch.response_mask == 0].abs().sum() == 0


@pytest.mark.parametrize("name", NAMES)
@SEEDS
@settings(max_examples=25, deadline=None)
def test_law_1_nothing_under_the_mask_counts(name, seed, rows, width, groups):
    batch = random_batch(seed, rows, width, groups)
    mask = batch.response_mask.bool()
    expected = estimate(name, batch)
    for garbage in (float("nan"), float("inf"), -1e30):
        dirty = dataclasses.replace(
            batch,
            token_level_rewards=torch.where(mask, batch.token_level_rewards, garbage),
            values=torch.where(mask, batch.values, garbage),
            baseline_scores=torch.where(mask.any(-1), batch.baseline_scores, garbage),
            reward_components={k: torch.where(mask.any(-1), v, garbage) for k, v in batch.reward_components.items()},
        )
        found = estimate(name, dirty)
        assert torch.equal(found.advantages, expected.advantages)
        assert torch.equal(found.returns, expected.returns)
        assert found.metrics == expected.metrics


@pytest.mark.parametrize("name", NAMES)
@SEEDS
@settings(max_examples=25, deadline=None)
def test_the_order_of_rows_changes_nothing(name, seed, rows, width, groups):
    batch = random_batch(seed, rows, width, groups, dtype=torch.float64)
    order = torch.randperm(rows, generator=torch.Generator().manual_seed(seed))
    found, expected = estimate(name, tensors(batch, lambda t: t[order])), estimate(name, batch)
    torch.testing.assert_close(found.advantages, expected.advantages[order])
    torch.testing.assert_close(found.returns, expected.returns[order])
    assert found.metrics == pytest.approx(expected.metrics)


@pytest.mark.parametrize("name", NAMES)
@SEEDS
@settings(max_examples=25, deadline=None)
def test_padding_width_and_rows_without_tokens_change_nothing(name, seed, rows, width, groups):
    batch = random_batch(seed, rows, width, groups, dtype=torch.float64)
    expected = estimate(name, batch)

    def padded(tensor):
        """One more row, a copy of the first, and three more columns."""
        taller = torch.cat([tensor, tensor[:1]])
        return taller if tensor.dim() == 1 else torch.nn.functional.pad(taller, (0, 3), value=7)

    larger = tensors(batch, padded)
    larger.response_mask[rows:] = 0
    larger.response_mask[:, width:] = 0
    found = estimate(name, larger)
    torch.testing.assert_close(found.advantages[:rows, :width], expected.advantages)
    torch.testing.assert_close(found.returns[:rows, :width], expected.returns)
    assert found.advantages[rows:].abs().sum() == 0
    assert found.metrics == pytest.approx(expected.metrics)


@pytest.mark.parametrize("name", NAMES)
def test_observation_tokens_are_passed_over(name):
    """Two columns of zeros in the mask, put into the middle, change nothing on the other tokens."""
    batch = random_batch(3, rows=6, width=4, dtype=torch.float64)

    def widened(tensor):
        if tensor.dim() == 1:
            return tensor
        return torch.cat([tensor[:, :2], torch.full_like(tensor[:, :2], 5), tensor[:, 2:]], dim=1)

    wider = tensors(batch, widened)
    wider.response_mask[:, 2:4] = 0
    found, expected = estimate(name, wider), estimate(name, batch)
    kept = [0, 1, 4, 5]
    torch.testing.assert_close(found.advantages[:, kept], expected.advantages)
    torch.testing.assert_close(found.returns[:, kept], expected.returns)


@pytest.mark.parametrize("name", NAMES)
def test_half_precision_gives_what_float32_gives(name):
    batch = tensors(random_batch(4), lambda t: t.bfloat16() if t.is_floating_point() else t)
    found = estimate(name, batch)
    expected = estimate(name, tensors(batch, lambda t: t.float() if t.is_floating_point() else t))
    assert found.advantages.dtype == torch.float32
    torch.testing.assert_close(found.advantages, expected.advantages)


@pytest.mark.parametrize("name", GROUPED)
@pytest.mark.parametrize("score", [0.0, 0.1, -3.3, 1e6])
def test_equal_rewards_and_groups_of_one_give_exactly_zero(name, score):
    """Not the rounding error of a mean divided by a tiny deviation: exactly 0."""
    rewards = torch.zeros(4, 3)
    rewards[:, 2] = score
    parts = {"a": torch.full((4,), score)}
    for ids in ([0, 0, 0, 0], [0, 0, 0, 1], [0, 1, 2, 3]):
        mask = torch.ones(4, 3)
        mask[0, 0] = 0  # lengths differ
        batch = AdvantageInputs(rewards, mask, group_ids=torch.tensor(ids), reward_components=parts)
        result = estimate(name, batch)
        assert result.advantages.abs().max() == 0
        assert result.metrics["groups_of_one"] == sum(ids.count(i) == 1 for i in ids)


@pytest.mark.parametrize("name", sorted(set(NAMES) - set(GROUPED)))
@pytest.mark.parametrize("score", [0.0, 0.1, -3.3, 1e6])
def test_equal_rewards_give_exactly_zero_also_without_groups(name, score):
    """Rows of several lengths, with holes; the critic's guess is the same everywhere, as is the greedy score."""
    mask = torch.tensor([[1, 1, 1], [1, 1, 0], [1, 0, 1], [1, 0, 0]])
    rewards = torch.zeros(4, 3)
    rewards[range(4), [2, 1, 2, 0]] = score
    batch = AdvantageInputs(rewards, mask, values=torch.full((4, 3), 0.5), baseline_scores=torch.full((4,), score))
    advantages = ADVANTAGE_ESTIMATORS[name](batch, AlgorithmConfig(gamma=1.0, lam=1.0)).advantages
    assert advantages.abs().max() == 0


@pytest.mark.parametrize("name", NAMES)
def test_a_single_row_and_an_empty_one(name):
    one = random_batch(5, rows=1)
    assert estimate(name, one).advantages.isfinite().all()
    one.response_mask.zero_()
    assert estimate(name, one).advantages.abs().sum() == 0


@pytest.mark.parametrize("name", sorted(set(GROUPED) - {"opo", "grpo_passk"}))
def test_groups_sum_to_zero_where_the_baseline_is_their_mean(name):
    batch = random_batch(6, rows=8, width=4, dtype=torch.float64)
    batch.response_mask.fill_(1)
    advantages = estimate(name, batch).advantages[:, 0]
    for group in batch.group_ids.unique():
        assert advantages[batch.group_ids == group].sum().item() == pytest.approx(0, abs=1e-9)


@pytest.mark.parametrize("name", NAMES)
def test_what_is_needed_is_asked_for_by_name(name):
    batch = random_batch(7)
    bare = AdvantageInputs(batch.token_level_rewards, batch.response_mask)
    estimator = ADVANTAGE_ESTIMATORS[name]
    wanted = {
        "values": estimator.needs_critic,
        "group_ids": estimator.needs_groups,
        "baseline_scores": estimator.needs_greedy_baseline,
        "reward_components": estimator.needs_reward_components,
    }
    missing = [field for field, needed in wanted.items() if needed]
    if missing:
        with pytest.raises(ValueError, match=f"needs {', '.join(missing)}"):
            estimate(name, bare)
    else:
        estimate(name, bare)


@pytest.mark.parametrize("name", NAMES)
def test_a_reward_that_is_not_finite_is_an_error_naming_the_row(name):
    batch = random_batch(8)
    batch.response_mask[4] = 1
    batch.token_level_rewards[4, 1] = float("nan")
    with pytest.raises(ValueError, match=r"NaN or inf on valid tokens of rows \[4\]"):
        estimate(name, batch)
