import math

import pytest
import torch

from verl.algorithms.kl import (
    KL_KINDS,
    AdaptiveKLController,
    FixedKLController,
    apply_kl_penalty,
    kl_estimate,
    make_kl_controller,
)
from verl.config.algorithm import KLControlConfig

VALUES_AT = {  # of d = log p - log p_ref = 0.5 and -1
    "k1": (0.5, -1.0),
    "abs": (0.5, 1.0),
    "k2": (0.125, 0.5),
    "k3": (math.exp(-0.5) - 0.5, math.e - 2),
}
ALIASES = {"kl": "k1", "mse": "k2", "low_var_kl": "k3"}


@pytest.mark.parametrize("kind", KL_KINDS)
def test_estimators_by_hand(kind):
    base = kind.removesuffix("+")
    found = kl_estimate(torch.tensor([-1.0, -2.0]), torch.tensor([-1.5, -1.0]), kind)
    torch.testing.assert_close(found, torch.tensor(VALUES_AT[ALIASES.get(base, base)]))


@pytest.mark.parametrize("kind", [kind for kind in KL_KINDS if not kind.endswith("+")])
def test_gradients_by_finite_differences(kind):
    log_probs = torch.tensor([-1.0, -2.0, -0.3], dtype=torch.float64, requires_grad=True)
    ref = torch.tensor([-1.5, -1.0, -9.0], dtype=torch.float64)
    assert torch.autograd.gradcheck(lambda x: kl_estimate(x, ref, kind), log_probs)


@pytest.mark.parametrize("kind", ["kl+", "k1+", "abs+", "mse+", "k2+", "low_var_kl+", "k3+"])
def test_straight_through_has_the_gradient_of_k2(kind):
    log_probs = torch.tensor([-1.0, -2.0], requires_grad=True)
    kl_estimate(log_probs, torch.tensor([-1.5, -1.0]), kind).sum().backward()
    torch.testing.assert_close(log_probs.grad, torch.tensor([0.5, -1.0]))  # d itself


def test_gradients_of_k2_and_k1_are_what_they_are_said_to_be():
    """Exactly, over a whole vocabulary: E[grad k2] is the gradient of KL, E[grad k1] is zero."""
    torch.manual_seed(0)
    logits, ref_logits = torch.randn(5, dtype=torch.float64), torch.randn(5, dtype=torch.float64)
    logits.requires_grad_()
    log_p, log_ref = logits.log_softmax(0), ref_logits.log_softmax(0)
    exact = torch.autograd.grad((log_p.exp() * (log_p - log_ref)).sum(), logits, retain_graph=True)[0]
    expected = {"k2": exact, "k3+": exact, "k1": torch.zeros_like(exact)}
    for kind, gradient in expected.items():
        mean = (log_p.exp().detach() * kl_estimate(log_p, log_ref, kind)).sum()
        torch.testing.assert_close(torch.autograd.grad(mean, logits, retain_graph=True)[0], gradient)


@pytest.mark.parametrize("kind", KL_KINDS)
@pytest.mark.parametrize("difference", [200.0, -200.0, 1e4, -1e4])
def test_extreme_differences_stay_finite_and_push_the_right_way(kind, difference):
    log_probs = torch.tensor([difference], requires_grad=True)
    value = kl_estimate(log_probs, torch.tensor([0.0]), kind)
    value.sum().backward()
    assert value.isfinite().all() and log_probs.grad.isfinite().all()
    if kind not in ("kl", "k1"):
        assert torch.sign(log_probs.grad) == math.copysign(1, difference)


def test_k3_is_smooth_where_its_tangent_begins():
    log_probs = torch.tensor([-19.999, -20.001], dtype=torch.float64, requires_grad=True)
    value = kl_estimate(log_probs, torch.zeros(2, dtype=torch.float64), "k3")
    value.sum().backward()
    slope = math.expm1(20)
    assert (value[1] - value[0]).item() == pytest.approx(0.002 * slope, rel=2e-3)
    torch.testing.assert_close(log_probs.grad, torch.tensor([-slope, -slope], dtype=torch.float64), rtol=2e-3, atol=0)


@pytest.mark.parametrize("kind", KL_KINDS)
def test_garbage_under_the_mask_reaches_neither_value_nor_gradient(kind):
    mask = torch.tensor([[1, 0, 0, 1]])
    log_probs = torch.tensor([[-1.0, float("nan"), float("inf"), -2.0]], requires_grad=True)
    ref = torch.tensor([[-1.5, float("nan"), -3.0, -1.0]])
    value = kl_estimate(log_probs, ref, kind, mask)
    value.sum().backward()
    base = kind.removesuffix("+")
    first, last = VALUES_AT[ALIASES.get(base, base)]
    torch.testing.assert_close(value, torch.tensor([[first, 0.0, 0.0, last]]))
    assert log_probs.grad.isfinite().all() and log_probs.grad[mask == 0].abs().sum() == 0


def test_half_precision_is_computed_in_float32():
    log_probs, ref = torch.tensor([-1.0, -2.0]).bfloat16(), torch.tensor([-1.5, -1.0]).bfloat16()
    found = kl_estimate(log_probs, ref, "k3")
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, torch.tensor(VALUES_AT["k3"]))


def test_unknown_kind_lists_the_known():
    with pytest.raises(ValueError, match="'full'; known: kl, k1, abs"):
        kl_estimate(torch.zeros(1), torch.zeros(1), "full")


def test_b8_kl_in_the_reward():
    nan = float("nan")
    log_probs = torch.tensor([[-1.0, -2.0, nan]])
    ref = torch.tensor([[-1.5, -1.0, nan]])
    scores, mask = torch.tensor([[0.0, 1.0, nan]]), torch.tensor([[1, 1, 0]])
    rewards, kl = apply_kl_penalty(scores, log_probs, ref, mask, 0.1, "kl")
    torch.testing.assert_close(rewards, torch.tensor([[-0.05, 1.1, 0.0]]))
    torch.testing.assert_close(kl, torch.tensor([[0.5, -1.0, 0.0]]))


@pytest.mark.parametrize("kind", KL_KINDS)
def test_b8_an_equal_reference_leaves_rewards_alone(kind):
    log_probs, scores = torch.tensor([[-1.0, -2.0]]), torch.tensor([[0.0, 1.0]])
    rewards, kl = apply_kl_penalty(scores, log_probs, log_probs.clone(), torch.ones(1, 2), 0.1, kind)
    assert torch.equal(rewards, scores) and kl.abs().sum() == 0


@pytest.mark.parametrize("kind", ["abs", "k2", "k3", "k1+", "k3+"])
def test_b8_a_step_on_the_kl_loss_brings_the_policy_nearer(kind):
    log_probs, ref = torch.tensor([-1.0, -2.0], requires_grad=True), torch.tensor([-1.5, -1.0])
    (0.1 * kl_estimate(log_probs, ref, kind)).sum().backward()
    stepped = log_probs.detach() - 0.1 * log_probs.grad
    assert ((stepped - ref).abs() < (log_probs.detach() - ref).abs()).all()


@pytest.mark.parametrize(("kl", "coefficient"), [(12, 0.100512), (6.6, 0.100256), (6, 0.1), (3, 0.099488)])
def test_b11_adaptive_coefficient(kl, coefficient):
    controller = AdaptiveKLController(0.1, target_kl=6, horizon=10000)
    controller.update(kl, n_steps=256)
    assert controller.value == pytest.approx(coefficient, abs=1e-9)


def test_b11_the_coefficient_survives_save_and_load():
    controller = AdaptiveKLController(0.1, 6, 10000)
    controller.update(12, 256)
    fresh = AdaptiveKLController(0.1, 6, 10000)
    fresh.load_state_dict(controller.state_dict())
    assert fresh.value == controller.value == pytest.approx(0.100512)


@pytest.mark.parametrize("bad", [{"target_kl": 0.0}, {"target_kl": -1.0}, {"horizon": 0}, {"horizon": -5}])
def test_b11_bad_settings_are_errors_at_start(bad):
    with pytest.raises(ValueError, match=f"algorithm.kl_ctrl.{next(iter(bad))} must be above 0"):
        make_kl_controller(KLControlConfig(type="adaptive", **bad))


def test_a_kl_that_is_not_finite_does_not_poison_the_coefficient():
    controller = AdaptiveKLController(0.1, 6, 10000)
    with pytest.raises(ValueError, match="KL of nan"):
        controller.update(float("nan"), 256)
    assert controller.value == 0.1


def test_fixed_coefficient_stays_and_ignores_target_and_horizon():
    controller = make_kl_controller(KLControlConfig(type="fixed", kl_coef=0.2, target_kl=0, horizon=0))
    controller.update(12, 256)
    assert isinstance(controller, FixedKLController) and controller.value == 0.2
