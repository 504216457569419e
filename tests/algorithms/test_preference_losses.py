import dataclasses
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from verl.algorithms.preference_losses import (
    PREFERENCE_LOSSES,
    LabelledResponses,
    PreferencePairs,
    bradley_terry,
    get_preference_loss,
    kto_kl_point,
)
from verl.utils.metrics import merge_metrics, metric_values

PAIR_LOSSES = ["dpo", "ipo", "simpo"]


def pairs(chosen, rejected, ref_chosen=None, ref_rejected=None, lengths=((1,), (1,))):
    tensors = [None if x is None else torch.tensor(x) for x in (chosen, rejected, ref_chosen, ref_rejected)]
    return PreferencePairs(tensors[0], tensors[1], torch.tensor(lengths[0]), torch.tensor(lengths[1]), *tensors[2:])


C1 = pairs([-10.0], [-11.0], [-12.0], [-12.0])


def test_c1_dpo():
    loss, metrics = get_preference_loss("dpo")(C1, beta=0.1)
    assert loss.item() == pytest.approx(0.644397, abs=1e-6)
    found = metric_values(metrics)
    assert found["rewards/chosen"] == pytest.approx(0.2) and found["rewards/rejected"] == pytest.approx(0.1)
    assert found["rewards/margins"] == pytest.approx(0.1) and found["rewards/accuracies"] == 1


def test_c1_dpo_at_the_reference():
    loss, metrics = get_preference_loss("dpo")(pairs([-3.0], [-4.0], [-3.0], [-4.0]))
    assert loss.item() == pytest.approx(0.693147, abs=1e-6)
    assert metric_values(metrics)["rewards/accuracies"] == 0  # a tie is no success


def test_c1_cdpo():
    loss, _ = get_preference_loss("dpo")(C1, beta=0.1, label_smoothing=0.1)
    assert loss.item() == pytest.approx(0.654397, abs=1e-6)


@pytest.mark.parametrize("name", PAIR_LOSSES)
@pytest.mark.parametrize("half", [0, 1])
def test_c1_prompt_tokens_change_nothing_on_either_half(name, half):
    """Columns 0 and 1 are the prompt (mask 0): whatever stands there reaches neither value nor gradient."""
    torch.manual_seed(0)
    clean, ref = torch.randn(2, 4, 5)
    mask = torch.tensor([[0, 0, 1, 1, 1], [0, 0, 1, 0, 0]] * 2)
    results = []
    for garbage in (None, 77.0, float("nan")):
        log_probs, reference = clean.clone(), ref.clone()
        if garbage is not None:
            log_probs[half::2, :2] = garbage
            reference[half::2, :2] = garbage
        log_probs.requires_grad_()
        loss, metrics = get_preference_loss(name)(PreferencePairs.from_rows(log_probs, mask, reference))
        loss.backward()
        results.append((loss.item(), log_probs.grad.tolist(), metric_values(metrics)))
    assert results[0] == results[1] == results[2]


@pytest.mark.parametrize("lengths", [([1, 0], [1, 1]), ([1, 1], [1, 0])])
@pytest.mark.parametrize("name", PAIR_LOSSES)
def test_a_pair_with_an_empty_response_does_not_count(name, lengths):
    whole = pairs([-10.0, -1.0], [-11.0, -1.0], [-12.0, -1.0], [-12.0, -1.0], lengths)
    one = pairs([-10.0], [-11.0], [-12.0], [-12.0])
    loss = get_preference_loss(name)
    assert loss(whole)[0] == loss(one)[0] and whole.count() == 1
    assert metric_values(loss(whole)[1]) == metric_values(loss(one)[1])


def test_ipo_by_hand():
    loss, _ = get_preference_loss("ipo")(C1, beta=0.25)
    assert loss.item() == pytest.approx((1 - 2) ** 2)


def test_simpo_by_hand_needs_no_reference():
    inputs = pairs([-4.0], [-9.0], lengths=((2,), (3,)))
    loss, metrics = get_preference_loss("simpo")(inputs, beta=2.0, gamma=0.5)
    assert loss.item() == pytest.approx(math.log1p(math.exp(-1.5)))  # 2 (-2) - 2 (-3) - 0.5 = 1.5
    assert metric_values(metrics)["rewards/margins"] == pytest.approx(2)


def labelled(log_ratios, labels, kl_point, lengths=None):
    log_ratios = torch.tensor(log_ratios)
    ref = torch.full_like(log_ratios, -5.0)
    lengths = [1] * len(labels) if lengths is None else lengths
    return LabelledResponses(log_ratios + ref, ref, torch.tensor(labels), torch.tensor(lengths), torch.tensor(kl_point))


def test_c2_kto():
    point = kto_kl_point(torch.tensor([0.5, -1.5]), torch.zeros(2), torch.ones(2, dtype=torch.bool))
    assert point == 0  # the mean is -0.5
    kto = get_preference_loss("kto")
    assert kto(labelled([2.0], [True], 0.0))[0].item() == pytest.approx(0.450166, abs=1e-6)
    assert kto(labelled([-1.0], [False], 0.0))[0].item() == pytest.approx(0.475021, abs=1e-6)
    both, metrics = kto(labelled([2.0, -1.0], [True, False], 0.0), desirable_weight=2.0, undesirable_weight=3.0)
    assert both.item() == pytest.approx(2 * 0.450166 + 3 * 0.475021, abs=1e-5)
    found = metric_values(metrics)
    assert found["rewards/chosen"] == pytest.approx(0.2) and found["rewards/rejected"] == pytest.approx(-0.1)
    assert found["rewards/margins"] == pytest.approx(0.3)
    assert found["rewards/accuracies"] == 1 and found["kl_point"] == 0


@pytest.mark.parametrize("label", [True, False])
def test_c2_a_batch_of_one_class_is_finite(label):
    inputs = labelled([2.0, -1.0], [label, label], 0.3)
    inputs.log_probs.requires_grad_()
    loss, _ = get_preference_loss("kto")(inputs)
    loss.backward()
    assert loss.isfinite() and inputs.log_probs.grad.isfinite().all()
    assert (torch.sign(inputs.log_probs.grad) == (-1 if label else 1)).all()


def test_kto_point_is_a_mean_over_valid_rows_without_gradient():
    log_probs = torch.tensor([1.0, 3.0, float("nan")], requires_grad=True)
    point = kto_kl_point(log_probs, torch.tensor([0.0, 0.0, float("inf")]), torch.tensor([True, True, False]))
    assert point == 2 and not point.requires_grad
    assert kto_kl_point(torch.ones(2), torch.zeros(2), torch.zeros(2, dtype=torch.bool)) == 0


def test_c3_pair_loss_of_scores():
    valid = torch.tensor([True])
    loss, metrics = bradley_terry(torch.tensor([2.0]), torch.tensor([0.5]), valid)
    assert loss.item() == pytest.approx(0.201413, abs=1e-6)
    assert metric_values(metrics) == {
        "rewards/chosen": 2, "rewards/rejected": 0.5, "rewards/margins": 1.5, "rewards/accuracies": 1,
    }  # fmt: skip
    with_margin, _ = bradley_terry(torch.tensor([2.0]), torch.tensor([0.5]), valid, margin=1.5)
    assert with_margin.item() == pytest.approx(math.log(2))


# -- What holds for all ------------------------------------------------------------------------------------------------


def random_inputs(name, seed, count=4, dtype=torch.float64):
    """`count` rows; of `count` the last may be empty (a pad row)."""
    generator = torch.Generator().manual_seed(seed)
    a, b, ref_a, ref_b = torch.randn(4, count, generator=generator, dtype=dtype) * 3
    lengths = torch.randint(0, 4, (2, count), generator=generator)
    if name == "kto":
        labels = torch.rand(count, generator=generator) < 0.5
        return LabelledResponses(a.requires_grad_(), ref_a, labels, lengths[0], torch.tensor(0.4, dtype=dtype))
    return PreferencePairs(a.requires_grad_(), b, lengths[0], lengths[1], ref_a, ref_b)


def leaf_of(inputs):
    return inputs.log_probs if isinstance(inputs, LabelledResponses) else inputs.chosen


def change(inputs, how):
    fields = {f.name: getattr(inputs, f.name) for f in dataclasses.fields(inputs)}
    return type(inputs)(**{k: how(v) if v is not None and v.dim() else v for k, v in fields.items()})


@pytest.mark.parametrize("name", sorted(PREFERENCE_LOSSES))
@given(seed=st.integers(0, 2**16), count=st.integers(1, 6))
@settings(max_examples=30, deadline=None)
def test_parts_order_and_rows_without_tokens_change_nothing(name, seed, count):
    loss_of, inputs = PREFERENCE_LOSSES[name], random_inputs(name, seed, count)

    def run(pieces):
        results = [loss_of(piece) for piece in pieces]
        total = sum(loss for loss, _ in results)
        (gradient,) = torch.autograd.grad(total, leaf_of(inputs))
        return total.detach(), gradient, metric_values(merge_metrics(m for _, m in results))

    expected = run([inputs])
    order = torch.randperm(count)
    valid = inputs.valid()
    garbage = change(inputs, lambda t: torch.where(valid, t, float("nan")) if t.is_floating_point() else t)
    for pieces in (
        [change(inputs, lambda t, i=i: t[i : i + 1]) for i in range(count)],
        [change(inputs, lambda t: t[order])],
        [garbage],
    ):
        found = run(pieces)
        torch.testing.assert_close(found[:2], expected[:2])
        assert found[2] == pytest.approx(expected[2], nan_ok=True)
        assert sum(piece.count() for piece in pieces) == inputs.count() == valid.sum()
    assert expected[1][~valid].abs().sum() == 0


LEAVES = [
    ("log_probs" if name == "kto" else leaf, name) for name in PREFERENCE_LOSSES for leaf in ("chosen", "rejected")
]


@pytest.mark.parametrize(("leaf", "name"), sorted(set(LEAVES)))
def test_gradients_by_finite_differences(leaf, name):
    inputs = random_inputs(name, 0)
    assert torch.autograd.gradcheck(
        lambda x: PREFERENCE_LOSSES[name](dataclasses.replace(inputs, **{leaf: x}))[0],
        getattr(inputs, leaf).detach().requires_grad_(),
    )


@pytest.mark.parametrize("name", sorted(PREFERENCE_LOSSES))
def test_the_reference_gets_no_gradient(name):
    inputs = random_inputs(name, 0)
    field = "ref_log_probs" if name == "kto" else "ref_chosen"
    reference = getattr(inputs, field).clone().requires_grad_()
    PREFERENCE_LOSSES[name](dataclasses.replace(inputs, **{field: reference}))[0].backward()
    assert reference.grad is None


@pytest.mark.parametrize("name", sorted(PREFERENCE_LOSSES))
def test_half_precision_gives_what_float32_gives(name):
    inputs = random_inputs(name, 3, count=6)

    def run(dtype):
        cast = change(inputs, lambda t: t.detach().bfloat16().to(dtype) if t.is_floating_point() else t)
        leaf_of(cast).requires_grad_()
        loss, metrics = PREFERENCE_LOSSES[name](cast)
        loss.backward()
        return loss, leaf_of(cast).grad.float(), metric_values(metrics)

    found, expected = run(torch.bfloat16), run(torch.float32)
    assert found[0].dtype == torch.float32
    torch.testing.assert_close(found[0], expected[0])
    torch.testing.assert_close(found[1], expected[1], rtol=1e-2, atol=1e-2)
    assert found[2] == pytest.approx(expected[2], nan_ok=True)


def test_gradients_of_the_score_loss_by_finite_differences():
    scores = torch.randn(2, 3, dtype=torch.float64, requires_grad=True)
    valid = torch.tensor([True, False, True])
    assert torch.autograd.gradcheck(lambda s: bradley_terry(s[0], s[1], valid, 0.3)[0], scores)


@given(seed=st.integers(0, 2**16), count=st.integers(1, 6))
@settings(max_examples=30, deadline=None)
def test_score_loss_parts_order_and_garbage_change_nothing(seed, count):
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randn(2, count, generator=generator, dtype=torch.float64).requires_grad_()
    valid, order = torch.rand(count, generator=generator) < 0.7, torch.randperm(count, generator=generator)

    def run(pieces, chosen, rejected):
        results = [bradley_terry(chosen[piece], rejected[piece], valid[piece], 0.3) for piece in pieces]
        total = sum(loss for loss, _ in results)
        (gradient,) = torch.autograd.grad(total, scores)
        return total.detach(), gradient, metric_values(merge_metrics(metrics for _, metrics in results))

    expected = run([torch.arange(count)], *scores)
    garbage = [torch.where(valid, half, float("nan")) for half in scores]
    for found in (run([order], *scores), run(torch.arange(count)[:, None], *scores), run([order], *garbage)):
        torch.testing.assert_close(found[:2], expected[:2])
        assert found[2] == pytest.approx(expected[2], nan_ok=True)
    assert expected[1][:, ~valid].abs().sum() == 0


def test_score_loss_in_half_precision_gives_what_float32_gives():
    chosen, rejected = torch.tensor([[2.0, 0.3], [0.5, 0.7]]).bfloat16()
    valid = torch.tensor([True, True])
    found, expected = (
        bradley_terry(chosen, rejected, valid)[0],
        bradley_terry(chosen.float(), rejected.float(), valid)[0],
    )
    assert found.dtype == torch.float32 and found == expected


@pytest.mark.parametrize("name", sorted(PREFERENCE_LOSSES))
@pytest.mark.parametrize("scale", [1e3, -1e3])
def test_extreme_log_probs_stay_finite(name, scale):
    inputs = change(random_inputs(name, 1, dtype=torch.float32), lambda t: t.detach())
    leaf = torch.full((4,), scale, requires_grad=True)
    inputs = dataclasses.replace(inputs, **{"log_probs" if name == "kto" else "chosen": leaf})
    loss, _ = PREFERENCE_LOSSES[name](inputs)
    loss.backward()
    assert loss.isfinite() and leaf.grad.isfinite().all()


def test_half_precision_sums_in_float32():
    log_probs = torch.full((2, 300), -1.0, dtype=torch.bfloat16)
    inputs = PreferencePairs.from_rows(log_probs, torch.ones(2, 300))
    assert inputs.chosen == -300 and inputs.chosen.dtype == torch.float32


def test_rows_alternate_and_come_in_twos():
    log_probs = torch.tensor([[-1.0, -2.0], [-3.0, 9.0], [-5.0, 9.0], [-6.0, -7.0]])
    mask = torch.tensor([[1, 1], [1, 0], [1, 0], [1, 1]])
    inputs = PreferencePairs.from_rows(log_probs, mask)
    assert inputs.chosen.tolist() == [-3, -5] and inputs.rejected.tolist() == [-3, -13]
    assert inputs.chosen_lengths.tolist() == [2, 1] and inputs.rejected_lengths.tolist() == [1, 2]
    with pytest.raises(ValueError, match="pairs stand in two rows each, got 3 rows"):
        PreferencePairs.from_rows(log_probs[:3], mask[:3])


def test_mistakes_are_named():
    with pytest.raises(ValueError, match="ref_chosen and ref_rejected are missing"):
        get_preference_loss("dpo")(pairs([1.0], [0.0]))
    with pytest.raises(TypeError, match="'kto' takes LabelledResponses, got PreferencePairs"):
        get_preference_loss("kto")(C1)
    with pytest.raises(ValueError, match="'dpo' knows no gamma; known: beta, label_smoothing"):
        get_preference_loss("dpo")(C1, gamma=1)
    with pytest.raises(ValueError, match="beta must be above 0"):
        get_preference_loss("ipo")(C1, beta=0)
    with pytest.raises(ValueError, match="label_smoothing must be from 0 to below 0.5"):
        get_preference_loss("dpo")(C1, label_smoothing=0.5)
