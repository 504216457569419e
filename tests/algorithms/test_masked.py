import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from verl.algorithms.masked import keep_valid, masked_mean, masked_sum, masked_var, masked_whiten

VALUES = torch.tensor([[1.0, 3.0, 99.0], [5.0, 99.0, 99.0]])
MASK = torch.tensor([[1, 1, 0], [1, 0, 0]])


def test_statistics_by_hand():
    assert masked_sum(VALUES, MASK) == 9
    assert masked_mean(VALUES, MASK) == 3
    assert masked_var(VALUES, MASK) == 4  # (4 + 0 + 4) / (3 - 1)
    assert masked_var(VALUES, MASK, ddof=0).item() == pytest.approx(8 / 3)
    assert masked_sum(VALUES, MASK, dim=-1).tolist() == [4, 5]
    assert masked_mean(VALUES, MASK, dim=-1).tolist() == [2, 5]


def test_a3_whitening_over_valid_tokens():
    expected = torch.tensor([[-1.0, 0.0, 0.0], [1.0, 0.0, 0.0]])
    torch.testing.assert_close(masked_whiten(VALUES, MASK), expected)


def test_whitening_without_shift_keeps_the_mean():
    expected = torch.tensor([[0.5, 1.5, 0.0], [2.5, 0.0, 0.0]])
    torch.testing.assert_close(masked_whiten(VALUES, MASK, shift_mean=False), expected)


@pytest.mark.parametrize("mask", [[[1, 0, 0]], [[0, 0, 0]]])
def test_a3_one_valid_token_or_none_is_zero(mask):
    assert masked_whiten(torch.tensor([[7.0, 1.0, 2.0]]), torch.tensor(mask)).tolist() == [[0, 0, 0]]
    assert masked_var(torch.tensor([[7.0, 1.0, 2.0]]), torch.tensor(mask)) == 0


@given(st.floats(-1e6, 1e6, width=32), st.integers(1, 40))
@settings(deadline=None)
def test_a3_equal_values_whiten_to_exactly_zero(value, count):
    values = torch.full((1, count), value)
    assert masked_whiten(values, torch.ones_like(values)).abs().max() == 0


@pytest.mark.parametrize("garbage", [float("nan"), float("inf"), -float("inf"), 1e30])
@pytest.mark.parametrize("function", [masked_sum, masked_mean, masked_var, masked_whiten])
def test_garbage_under_the_mask_reaches_neither_value_nor_gradient(function, garbage):
    clean = torch.where(MASK.bool(), VALUES, 0.0).requires_grad_()
    dirty = torch.where(MASK.bool(), VALUES, garbage).requires_grad_()
    assert torch.equal(function(clean, MASK), function(dirty, MASK))
    for values in (clean, dirty):
        (function(values, MASK) * torch.arange(1.0, 7.0).view(2, 3)).sum().backward()
    assert torch.equal(clean.grad, dirty.grad)
    assert (dirty.grad[MASK == 0] == 0).all()


def test_half_precision_is_computed_in_float32_and_float64_kept():
    assert masked_mean(VALUES.bfloat16(), MASK).dtype == torch.float32
    assert masked_whiten(VALUES.half(), MASK).dtype == torch.float32
    assert masked_whiten(VALUES.double(), MASK).dtype == torch.float64
    # 300 ones: bfloat16 cannot count beyond 256.
    ones = torch.ones(1, 300, dtype=torch.bfloat16)
    assert masked_sum(ones, torch.ones(1, 300)) == 300


def test_a_mask_of_another_shape_is_refused():
    with pytest.raises(ValueError, match=r"\(2, 3\) and mask \(2,\)"):
        keep_valid(VALUES, torch.ones(2))


def test_gradients_by_finite_differences():
    values = VALUES.double().requires_grad_()
    for function in (masked_mean, masked_var, masked_whiten):
        assert torch.autograd.gradcheck(lambda x, f=function: f(x, MASK), values)
