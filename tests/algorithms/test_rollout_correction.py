import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from verl.algorithms.rollout_correction import parse_bounds, rollout_correction


def correct(log_ratios, mask=None, **kwargs):
    """Correction for log(train / rollout) as given; the rollout's log-probs are -1."""
    log_ratios = torch.tensor(log_ratios)
    mask = torch.ones_like(log_ratios, dtype=torch.int64) if mask is None else torch.tensor(mask)
    rollout = torch.full_like(log_ratios, -1.0)
    return rollout_correction((rollout + log_ratios).requires_grad_(), rollout, mask, **kwargs)


def close(found, expected):
    torch.testing.assert_close(found, torch.tensor(expected), rtol=1e-5, atol=1e-6)


def test_b10_truncated_token_weights():
    result = correct([[0.5, -0.5, 1.0, 0.0]], rollout_is="token", rollout_is_threshold=2.0)
    close(result.weights, [[1.648721, 0.606531, 2.0, 1.0]])
    assert result.metrics["is_clipped_frac"] == 0.25
    assert result.weights.dtype == torch.float32 and not result.weights.requires_grad


@pytest.mark.parametrize("level", ["token", "sequence"])
def test_b10_an_extreme_ratio_is_cut_and_not_infinite(level):
    result = correct([[200.0]], rollout_is=level)
    assert result.weights.item() == 2
    assert all(math.isfinite(value) for value in result.metrics.values())


def test_sequence_weights_are_the_product_on_every_token():
    result = correct([[0.5, -0.2, 9.0], [1.0, 1.0, 0.0]], [[1, 1, 0], [1, 1, 1]], rollout_is="sequence")
    product = math.exp(0.3)
    close(result.weights, [[product, product, 0.0], [2.0, 2.0, 2.0]])
    assert result.metrics["is_clipped_frac"] == pytest.approx(3 / 5)


def test_weights_are_divided_by_their_mean_when_asked():
    result = correct([[math.log(0.5), math.log(1.5)]], rollout_is="token", rollout_is_batch_normalize=True)
    close(result.weights, [[0.5, 1.5]])
    result = correct([[math.log(0.5), math.log(1.0)]], rollout_is="token", rollout_is_batch_normalize=True)
    close(result.weights, [[2 / 3, 4 / 3]])


def test_effective_sample_size():
    # (1 + 3)^2 / (2 (1 + 9)) over two tokens; the second response has equal weights only
    assert correct([[0.0, math.log(3.0)]], rollout_is="token", rollout_is_threshold=5.0).metrics["is_ess"] == (
        pytest.approx(0.8)
    )
    assert correct([[0.3, 0.3]], rollout_is="token").metrics["is_ess"] == pytest.approx(1)
    found = correct(
        [[0.0, 0.0], [math.log(3.0), 0.0]], [[1, 1], [1, 0]], rollout_is="sequence", rollout_is_threshold=5.0
    )
    assert found.metrics["is_ess"] == pytest.approx(0.8)  # two responses, not three tokens


def test_tokens_outside_the_bounds_leave_the_mask():
    """IcePop: and so they count neither in the loss nor in its denominator."""
    result = correct(
        [[0.0, math.log(1.5), math.log(3.0), math.log(0.3)]], rollout_rs="token_k1", rollout_rs_threshold="0.5_2"
    )
    assert result.response_mask.tolist() == [[1, 1, 0, 0]]
    assert result.weights is None
    assert result.metrics["rejected_tokens_frac"] == 0.5 and result.metrics["rejected_responses_frac"] == 0
    both = correct([[0.0, math.log(1.5), math.log(3.0)]], rollout_is="token", rollout_rs="token_k1")
    close(both.weights, [[1.0, 1.5, 0.0]])


@pytest.mark.parametrize(
    ("level", "expected"),
    [
        ("seq_sum_k1", [[0, 0, 0], [1, 1, 0], [0, 0, 0]]),  # products 3.375, 1.2, 4
        ("seq_mean_k1", [[1, 1, 1], [1, 1, 0], [0, 0, 0]]),  # geometric means 1.5, 1.095, 4
    ],
)
def test_whole_responses_are_rejected(level, expected):
    ratios = [[1.5, 1.5, 1.5], [1.0, 1.2, 99.0], [4.0, 99.0, 99.0]]
    log_ratios = [[math.log(x) for x in row] for row in ratios]
    result = correct(log_ratios, [[1, 1, 1], [1, 1, 0], [1, 0, 0]], rollout_rs=level, rollout_rs_threshold=2.0)
    assert result.response_mask.tolist() == expected
    rejected = [row for row in expected if not any(row)]
    assert result.metrics["rejected_responses_frac"] == pytest.approx(len(rejected) / 3)


def test_figures_of_the_difference_are_always_there():
    metrics = correct([[0.5, -0.2, 50.0]], [[1, 1, 0]]).metrics
    k3 = [math.exp(x) - 1 - x for x in (0.5, -0.2)]
    expected = {
        "rollout_kl": -0.15,
        "rollout_k3_kl": sum(k3) / 2,
        "log_prob_diff_mean": 0.35,
        "log_prob_diff_max": 0.5,
        "ratio_mean": (math.exp(0.5) + math.exp(-0.2)) / 2,
        "ratio_max": math.exp(0.5),
        "ratio_min": math.exp(-0.2),
        "rejected_tokens_frac": 0,
        "rejected_responses_frac": 0,
    }
    assert metrics == pytest.approx(expected, abs=1e-6)


def test_equal_policies_are_left_alone():
    result = correct([[0.0, 0.0]], rollout_is="sequence", rollout_rs="token_k1")
    assert result.weights.tolist() == [[1, 1]] and result.response_mask.tolist() == [[1, 1]]
    assert result.metrics["rollout_kl"] == result.metrics["rollout_k3_kl"] == 0


LEVELS = st.sampled_from([None, "token", "sequence"]), st.sampled_from([None, "token_k1", "seq_sum_k1", "seq_mean_k1"])


@given(seed=st.integers(0, 2**16), weights=LEVELS[0], rejection=LEVELS[1], normalize=st.booleans())
@settings(max_examples=60, deadline=None)
def test_masks_order_and_padding(seed, weights, rejection, normalize):
    generator = torch.Generator().manual_seed(seed)
    train, rollout = torch.randn(2, 5, 4, generator=generator)
    mask = (torch.rand(5, 4, generator=generator) < 0.6).long()
    settings_ = dict(rollout_is=weights, rollout_rs=rejection, rollout_is_batch_normalize=normalize)
    expected = rollout_correction(train, rollout, mask, **settings_)
    if weights is not None:
        assert (expected.weights[expected.response_mask == 0] == 0).all()
        assert expected.weights.isfinite().all()
    assert (expected.response_mask <= mask).all()
    garbage = torch.where(mask.bool(), train, float("nan")), torch.where(mask.bool(), rollout, float("inf"))
    order = torch.randperm(5, generator=generator)
    pad = torch.nn.functional.pad
    for found, back in (
        (rollout_correction(*garbage, mask, **settings_), lambda t: t),
        (rollout_correction(train[order], rollout[order], mask[order], **settings_), lambda t: t[order.argsort()]),
        (
            rollout_correction(pad(train, (0, 2)), pad(rollout, (0, 2)), pad(mask, (0, 2)), **settings_),
            lambda t: t[:, :4],
        ),
    ):
        assert torch.equal(back(found.response_mask), expected.response_mask)
        if weights is not None:
            torch.testing.assert_close(back(found.weights), expected.weights)
        assert found.metrics == pytest.approx(expected.metrics, nan_ok=True)


def test_half_precision_gives_what_float32_gives():
    train, rollout = torch.randn(2, 3, 4, generator=torch.Generator().manual_seed(0)).bfloat16()
    settings_ = dict(rollout_is="sequence", rollout_rs="token_k1", rollout_rs_threshold="0.2_4")
    found, expected = (
        rollout_correction(train.to(dtype), rollout.to(dtype), torch.ones(3, 4), **settings_)
        for dtype in (torch.bfloat16, torch.float32)
    )
    assert torch.equal(found.weights, expected.weights) and found.metrics == expected.metrics
    assert torch.equal(found.response_mask, expected.response_mask)


def test_nothing_valid_is_no_error():
    result = correct(
        [[1.0, 2.0]], [[0, 0]], rollout_is="token", rollout_rs="seq_sum_k1", rollout_is_batch_normalize=True
    )
    assert result.weights.tolist() == [[0, 0]] and result.response_mask.tolist() == [[0, 0]]


def test_bounds():
    assert parse_bounds("0.6_1.6") == (0.6, 1.6)
    assert parse_bounds(4) == (0.25, 4)
    assert parse_bounds("0_5") == (0, 5)
    for bad in ("a_b", "1_2_3", "2_1", 0.5, 0, "-1_2", ""):
        with pytest.raises(ValueError, match="bounds"):
            parse_bounds(bad)


def test_bad_arguments_are_named():
    with pytest.raises(ValueError, match="unknown rollout_is 'tokens'; known: token, sequence, or null"):
        correct([[0.0]], rollout_is="tokens")
    with pytest.raises(ValueError, match="unknown rollout_rs 'token'; known: token_k1"):
        correct([[0.0]], rollout_rs="token")
    with pytest.raises(ValueError, match="rollout_is_threshold must be above 0"):
        correct([[0.0]], rollout_is_threshold=0)
    with pytest.raises(ValueError, match=r"not finite on valid tokens of rows \[1\]"):
        correct([[0.0], [float("nan")]])
