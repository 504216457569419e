import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from verl.algorithms.aggregation import AGGREGATION_MODES, loss_denominator, loss_weights

# Three responses of 3, 1 and 0 tokens; the losses of the tokens are 1 to 4.
MASK = torch.tensor([[1, 1, 1], [1, 0, 0], [0, 0, 0]])
LOSS = torch.tensor([[1.0, 2.0, 3.0], [4.0, 50.0, 50.0], [50.0, 50.0, 50.0]])


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        ("token-mean", 10 / 4),
        ("token-sum", 10),
        ("seq-mean-token-sum", (6 + 4) / 2),
        ("seq-mean-token-mean", (2 + 4) / 2),
        ("seq-mean-token-sum-norm", (6 + 4) / (2 * 5)),
    ],
)
def test_aggregation_by_hand(mode, expected):
    total = (LOSS * loss_weights(MASK, mode, max_length=5)).sum()
    assert (total / loss_denominator(MASK, mode)).item() == pytest.approx(expected)


@given(st.data())
@settings(deadline=None)
def test_parts_add_up_to_the_whole(data):
    """Law 2: any cut into micro-batches or processes gives the same loss."""
    rows, width = data.draw(st.integers(1, 8)), data.draw(st.integers(1, 6))
    mask = torch.tensor(data.draw(st.lists(st.lists(st.integers(0, 1), min_size=width, max_size=width),
                                           min_size=rows, max_size=rows)))  # fmt: skip
    cut = data.draw(st.integers(0, rows))
    loss = torch.arange(rows * width).view(rows, width).float()
    for mode in AGGREGATION_MODES:
        pieces = [piece for piece in (slice(0, cut), slice(cut, rows)) if mask[piece].numel()]
        total = sum((loss[p] * loss_weights(mask[p], mode, 7)).sum() for p in pieces)
        denominator = sum(loss_denominator(mask[p], mode, parts=len(pieces)) for p in pieces)
        torch.testing.assert_close(total, (loss * loss_weights(mask, mode, 7)).sum())
        torch.testing.assert_close(denominator, loss_denominator(mask, mode))


@pytest.mark.parametrize("mode", AGGREGATION_MODES)
def test_padding_width_changes_nothing(mode):
    wide = torch.nn.functional.pad(MASK, (0, 4))
    assert torch.equal(loss_weights(wide, mode, 5)[:, :3], loss_weights(MASK, mode, 5))
    assert torch.equal(loss_denominator(wide, mode), loss_denominator(MASK, mode))


@pytest.mark.parametrize("mode", AGGREGATION_MODES)
def test_b4_nothing_valid_weighs_nothing(mode):
    empty = torch.zeros(2, 3, dtype=torch.int64)
    assert loss_weights(empty, mode, 5).abs().sum() == 0
    assert loss_denominator(empty, mode) == (1 if mode == "token-sum" else 0)


def test_bad_arguments_are_named():
    with pytest.raises(ValueError, match="unknown loss_agg_mode 'mean'; known: token-mean"):
        loss_weights(MASK, "mean")
    with pytest.raises(ValueError, match="unknown loss_agg_mode"):
        loss_denominator(MASK, "mean")
    for length in (None, 0):
        with pytest.raises(ValueError, match="constant length above 0"):
            loss_weights(MASK, "seq-mean-token-sum-norm", length)
