"""What holds for every policy loss."""

import dataclasses

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from verl.algorithms.aggregation import AGGREGATION_MODES, loss_denominator
from verl.algorithms.policy_losses import POLICY_LOSSES, PolicyLossInputs
from verl.config.actor_rollout_ref import ActorConfig
from verl.utils.metrics import merge_metrics, metric_values

NAMES = sorted(POLICY_LOSSES)
# Losses whose value is not what they descend: the gradient is made with a stop, see the tests below.
STRAIGHT_THROUGH = {"gspo", "cispo"}
CASES = given(
    seed=st.integers(0, 2**16),
    rows=st.integers(1, 6),
    width=st.integers(1, 5),
    mode=st.sampled_from(AGGREGATION_MODES),
)


def random_inputs(seed, rows=4, width=5, dtype=torch.float64, per_row=False, step=0.3):
    """Off-policy by `step` on average, with weights, a choice of tokens and about a third of the tokens masked."""
    generator = torch.Generator().manual_seed(seed)
    old, change, advantages, entropy = torch.randn(4, rows, width, generator=generator, dtype=dtype)
    return PolicyLossInputs(
        log_probs=(old + step * change).requires_grad_(),
        old_log_probs=old,
        advantages=advantages[:, :1].expand(rows, width) if per_row else advantages,
        response_mask=(torch.rand(rows, width, generator=generator) < 0.7).long(),
        max_length=7,
        weights=torch.rand(rows, width, generator=generator, dtype=dtype),
        entropy=entropy,
        selected=torch.rand(rows, width, generator=generator) < 0.3,
    )


def tensors(inputs, change):
    """The inputs with `change(tensor)` in the place of every tensor."""
    fields = {f.name: getattr(inputs, f.name) for f in dataclasses.fields(inputs)}
    return PolicyLossInputs(
        **{name: change(value) if isinstance(value, torch.Tensor) else value for name, value in fields.items()}
    )


def run(name, pieces, leaf, mode="token-mean"):
    """(sum of the losses, gradient on `leaf`, merged metrics) of pieces of a batch."""
    config = ActorConfig(loss_agg_mode=mode)
    results = [POLICY_LOSSES[name](piece, config) for piece in pieces]
    total = sum(loss for loss, _ in results)
    (gradient,) = torch.autograd.grad(total, leaf)
    return total.detach(), gradient, metric_values(merge_metrics(metrics for _, metrics in results))


def assert_same(found, expected):
    torch.testing.assert_close(found[0], expected[0])
    torch.testing.assert_close(found[1], expected[1])
    assert found[2] == pytest.approx(expected[2], nan_ok=True)


@pytest.mark.parametrize("name", NAMES)
@CASES
@settings(max_examples=20, deadline=None)
def test_law_1_nothing_under_the_mask_counts(name, seed, rows, width, mode):
    clean = random_inputs(seed, rows, width)
    mask = clean.response_mask.bool()
    expected = run(name, [clean], clean.log_probs, mode)
    for garbage in (float("nan"), float("inf"), -1e30):
        dirty = tensors(
            clean,
            lambda t, garbage=garbage: (
                torch.where(mask, t.detach(), garbage).requires_grad_(t.requires_grad) if t.is_floating_point() else t
            ),
        )
        found = run(name, [dirty], dirty.log_probs, mode)
        assert torch.equal(found[0], expected[0]) and torch.equal(found[1], expected[1])
        assert (found[1][~mask] == 0).all()
        assert found[2] == pytest.approx(expected[2], nan_ok=True)


@pytest.mark.parametrize("name", NAMES)
@CASES
@settings(max_examples=20, deadline=None)
def test_law_2_micro_batches_order_and_padding_change_nothing(name, seed, rows, width, mode):
    inputs = random_inputs(seed, rows, width)
    leaf = inputs.log_probs
    expected = run(name, [inputs], leaf, mode)
    one_by_one = [tensors(inputs, lambda t, row=row: t[row : row + 1]) for row in range(rows)]
    assert_same(run(name, one_by_one, leaf, mode), expected)
    order = torch.randperm(rows, generator=torch.Generator().manual_seed(seed))
    assert_same(run(name, [tensors(inputs, lambda t: t[order])], leaf, mode), expected)
    padded = tensors(inputs, lambda t: torch.nn.functional.pad(t, (0, 3)))
    assert_same(run(name, [padded], leaf, mode), expected)


@pytest.mark.parametrize("name", sorted(set(NAMES) - STRAIGHT_THROUGH))
@pytest.mark.parametrize("mode", AGGREGATION_MODES)
def test_gradients_by_finite_differences(name, mode):
    inputs = random_inputs(1)
    config = ActorConfig(loss_agg_mode=mode)

    def loss(log_probs):
        return POLICY_LOSSES[name](dataclasses.replace(inputs, log_probs=log_probs), config)[0]

    assert torch.autograd.gradcheck(loss, inputs.log_probs)


def cispo_at(inputs):
    """The function that cispo descends at `inputs`: what it stops stands still."""
    weight = (inputs.log_probs - inputs.old_log_probs).exp().clamp(0.8, 1.2).detach()
    return lambda log_probs: -weight * inputs.advantages * log_probs


def gspo_at(inputs):
    """The same for gspo: the ratio s of a response moves with each of its tokens alone."""
    start = inputs.log_probs.detach().clone()
    log_ratio = (start - inputs.old_log_probs) * inputs.response_mask
    sequence = log_ratio.sum(-1, keepdim=True) / inputs.response_mask.sum(-1, keepdim=True).clamp(min=1)

    def loss(log_probs):
        ratio = (sequence + log_probs - start).exp()
        return torch.maximum(-inputs.advantages * ratio, -inputs.advantages * ratio.clamp(0.8, 1.2))

    return loss


@pytest.mark.parametrize(("name", "frozen_at"), [("cispo", cispo_at), ("gspo", gspo_at)])
def test_gradients_with_a_stop_by_finite_differences(name, frozen_at):
    inputs = random_inputs(2)
    token_loss = frozen_at(inputs)

    def frozen(log_probs):
        return (token_loss(log_probs) * inputs.weights * inputs.response_mask).sum()

    assert torch.autograd.gradcheck(frozen, inputs.log_probs)
    (expected,) = torch.autograd.grad(frozen(inputs.log_probs), inputs.log_probs)
    loss, gradient, _ = run(name, [inputs], inputs.log_probs)
    torch.testing.assert_close(gradient, expected)
    torch.testing.assert_close(loss, frozen(inputs.log_probs).detach())


def test_gspo_is_the_sequence_form_where_a_response_has_one_advantage_and_weight():
    """By finite differences of max(-A s, -A clip(s)) with s = exp(mean log r)."""
    inputs = dataclasses.replace(random_inputs(3, per_row=True, step=0.15), weights=None)
    inputs.response_mask[0] = 0
    mask, config = inputs.response_mask, ActorConfig(loss_agg_mode="seq-mean-token-mean")

    def sequence_form(log_probs):
        ratio = (((log_probs - inputs.old_log_probs) * mask).sum(-1) / mask.sum(-1).clamp(min=1)).exp()
        advantage = inputs.advantages[:, 0]
        loss = torch.maximum(-advantage * ratio, -advantage * ratio.clamp(0.8, 1.2))
        return (loss * mask.any(-1)).sum()

    assert torch.autograd.gradcheck(sequence_form, inputs.log_probs)
    expected = torch.autograd.grad(sequence_form(inputs.log_probs), inputs.log_probs)[0]
    loss, _ = POLICY_LOSSES["gspo"](inputs, config)
    torch.testing.assert_close(loss, sequence_form(inputs.log_probs))
    torch.testing.assert_close(torch.autograd.grad(loss, inputs.log_probs)[0], expected)


@pytest.mark.parametrize("name", sorted(set(NAMES) - {"geo_mean", "clip_cov"}))
@pytest.mark.parametrize("mode", AGGREGATION_MODES)
def test_on_policy_the_gradient_is_that_of_reinforce(name, mode):
    inputs = random_inputs(4, step=0.0)
    expected = run("reinforce", [inputs], inputs.log_probs, mode)[1]
    torch.testing.assert_close(run(name, [inputs], inputs.log_probs, mode)[1], expected)


def test_on_policy_geo_mean_is_reinforce_for_one_advantage_a_response():
    inputs = dataclasses.replace(random_inputs(5, step=0.0, per_row=True), weights=None)
    for mode in AGGREGATION_MODES:
        expected = run("reinforce", [inputs], inputs.log_probs, mode)[1]
        torch.testing.assert_close(run("geo_mean", [inputs], inputs.log_probs, mode)[1], expected)


def test_on_policy_clip_cov_is_reinforce_on_what_is_not_left_out():
    inputs = random_inputs(6, step=0.0)
    expected = run("reinforce", [inputs], inputs.log_probs)[1].masked_fill(inputs.selected, 0.0)
    torch.testing.assert_close(run("clip_cov", [inputs], inputs.log_probs)[1], expected)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("mode", AGGREGATION_MODES)
def test_b4_nothing_valid_gives_zero_and_no_nan(name, mode):
    inputs = tensors(random_inputs(7), lambda t: t)
    inputs.response_mask.zero_()
    loss, gradient, _ = run(name, [inputs], inputs.log_probs, mode)
    assert loss == 0 and gradient.abs().sum() == 0
    assert loss_denominator(inputs.response_mask, mode) in (0, 1)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("advantage", [1.0, -1.0])
@pytest.mark.parametrize("difference", [200.0, -200.0, 1e4])
def test_extreme_differences_stay_finite(name, advantage, difference):
    inputs = tensors(random_inputs(8, dtype=torch.float32), lambda t: t.detach())
    inputs = dataclasses.replace(
        inputs,
        log_probs=(inputs.old_log_probs + difference).requires_grad_(),
        advantages=torch.full_like(inputs.advantages, advantage),
    )
    loss, gradient, metrics = run(name, [inputs], inputs.log_probs)
    assert loss.isfinite() and gradient.isfinite().all()
    assert all(torch.tensor(value).isfinite() for value in metrics.values())


@pytest.mark.parametrize("name", NAMES)
def test_half_precision_gives_what_float32_gives(name):
    half = tensors(random_inputs(9), lambda t: t.detach().bfloat16() if t.is_floating_point() else t)
    half = dataclasses.replace(half, log_probs=half.log_probs.requires_grad_())
    full = tensors(half, lambda t: t.detach().float() if t.is_floating_point() else t)
    full = dataclasses.replace(full, log_probs=full.log_probs.requires_grad_())
    found, expected = run(name, [half], half.log_probs), run(name, [full], full.log_probs)
    assert found[0].dtype == torch.float32
    torch.testing.assert_close(found[0], expected[0])
    torch.testing.assert_close(found[1].float(), expected[1], rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("name", NAMES)
def test_one_row_and_one_token(name):
    inputs = random_inputs(10, rows=1, width=1)
    inputs.response_mask.fill_(1)
    loss, gradient, metrics = run(name, [inputs], inputs.log_probs)
    assert loss.isfinite() and gradient.isfinite().all()
    assert metrics["ratio_max"] == metrics["ratio_min"] == pytest.approx(metrics["ratio_mean"])


@pytest.mark.parametrize("name", NAMES)
def test_zero_advantages_move_nothing(name):
    """A group whose rewards are all equal trains nothing (kl_cov still pulls back what has drifted)."""
    inputs = random_inputs(11, step=0.0 if name == "kl_cov" else 0.3)
    inputs = dataclasses.replace(inputs, advantages=torch.zeros_like(inputs.advantages))
    assert run(name, [inputs], inputs.log_probs)[1].abs().sum() == 0
