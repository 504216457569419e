import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from verl.algorithms.aggregation import AGGREGATION_MODES
from verl.algorithms.value_losses import value_loss
from verl.utils.metrics import merge_metrics, metric_values

# Row B6 of the known cases: (value, old value, return).
B6 = [((3.0, 1.0, 0.0), 4.5), ((1.0, 3.0, 0.0), 3.125), ((1.2, 1.0, 0.0), 0.72)]


def column(index):
    return torch.tensor([[case[0][index] for case in B6]])


@pytest.mark.parametrize(("numbers", "expected"), B6)
def test_b6_the_larger_square(numbers, expected):
    value, old, target = (torch.tensor([[number]]) for number in numbers)
    loss, _ = value_loss(value, old, target, torch.ones(1, 1), cliprange=0.5, agg_mode="token-mean")
    assert loss.item() == pytest.approx(expected)


def test_b6_sum_and_metrics():
    loss, metrics = value_loss(column(0), column(1), column(2), torch.ones(1, 3), 0.5, "token-mean")
    assert loss.item() == pytest.approx(4.5 + 3.125 + 0.72)
    found = metric_values(metrics)
    assert found["vf_clipfrac"] == pytest.approx(1 / 3)  # only the second takes the clipped square
    assert found["vpred_mean"] == pytest.approx(5.2 / 3)


def test_no_clipping_is_half_the_square():
    loss, metrics = value_loss(column(0), column(1), column(2), torch.ones(1, 3), 0.0, "token-mean")
    assert loss.item() == pytest.approx((9 + 1 + 1.44) / 2)
    assert metric_values(metrics)["vf_clipfrac"] == 0


def test_negative_range_is_refused():
    with pytest.raises(ValueError, match="cliprange_value must not be negative, got -1"):
        value_loss(column(0), column(1), column(2), torch.ones(1, 3), -1, "token-mean")


def test_b4_nothing_valid_gives_zero_and_no_nan():
    values = torch.full((2, 3), float("nan"), requires_grad=True)
    loss, _ = value_loss(values, values.detach(), values.detach(), torch.zeros(2, 3), 0.5, "seq-mean-token-mean")
    loss.backward()
    assert loss == 0 and values.grad.abs().sum() == 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("mode", AGGREGATION_MODES)
def test_garbage_under_the_mask_reaches_neither_value_nor_gradient(mode, dtype):
    mask = torch.tensor([[1, 0, 1]])
    results = []
    for garbage in (0.0, float("nan"), float("inf")):
        values, old, target = (
            torch.where(mask.bool(), column(i), garbage).to(dtype).requires_grad_(i == 0) for i in range(3)
        )
        loss, metrics = value_loss(values, old, target, mask, 0.5, mode, max_length=7)
        loss.backward()
        assert loss.dtype == torch.float32
        results.append((loss.item(), values.grad.tolist(), metric_values(metrics)))
    assert results[0] == results[1] == results[2]


@given(seed=st.integers(0, 2**16), cut=st.integers(0, 4), mode=st.sampled_from(AGGREGATION_MODES))
@settings(max_examples=40, deadline=None)
def test_micro_batches_order_and_padding_change_nothing(seed, cut, mode):
    generator = torch.Generator().manual_seed(seed)
    values, old, target = torch.randn(3, 4, 5, generator=generator, dtype=torch.float64)
    mask = torch.randint(0, 2, (4, 5), generator=generator)

    def run(rows, pad=0):
        leaf = values.clone().requires_grad_()
        total, parts = 0, []
        for chosen in rows:
            padded = [
                torch.nn.functional.pad(x[chosen], (0, pad), value=v)
                for x, v in ((leaf, 9.0), (old, 9.0), (target, 9.0), (mask, 0))
            ]
            loss, metrics = value_loss(*padded, 0.5, mode, max_length=7)
            total = total + loss
            parts.append(metrics)
        total.backward()
        return torch.cat([total.detach().view(1), leaf.grad.flatten()]), metric_values(merge_metrics(parts))

    whole = torch.arange(4)
    expected, figures = run([whole])
    order = torch.randperm(4, generator=generator)
    for rows, pad in (([whole[:cut], whole[cut:]], 0), ([order], 0), ([whole], 3)):
        found, found_figures = run([r for r in rows if len(r)], pad)
        torch.testing.assert_close(found, expected)
        assert found_figures == pytest.approx(figures, nan_ok=True)


def test_gradients_by_finite_differences():
    generator = torch.Generator().manual_seed(0)
    values, old, target = torch.randn(3, 3, 4, generator=generator, dtype=torch.float64)
    mask = torch.tensor([[1, 1, 0, 1], [1, 0, 0, 0], [0, 0, 0, 0]])
    for mode in AGGREGATION_MODES:
        assert torch.autograd.gradcheck(
            lambda v, mode=mode: value_loss(v, old, target, mask, 0.3, mode, max_length=4)[0], values.requires_grad_()
        )
