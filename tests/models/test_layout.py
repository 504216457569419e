import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from verl.models.layout import layout_tokens, response_slots

IDS = torch.tensor([[9, 9, 1, 2, 9], [9, 3, 4, 5, 9]])
MASK = torch.tensor([[0, 0, 1, 1, 0], [0, 1, 1, 1, 0]])


def test_rows_align_to_the_left() -> None:
    layout = layout_tokens(IDS, MASK)
    assert layout.input_ids.tolist() == [[1, 2, 0], [3, 4, 5]]
    assert layout.attention_mask.tolist() == [[1, 1, 0], [1, 1, 1]]
    assert layout.position_ids.tolist() == [[0, 1, 2], [0, 1, 2]]
    assert layout.slot[MASK.bool()].tolist() == [0, 1, 3, 4, 5]


def test_packed_rows_stand_end_to_end_and_positions_restart() -> None:
    layout = layout_tokens(IDS, MASK, packed=True)
    assert layout.input_ids.tolist() == [[1, 2, 3, 4, 5]]
    assert layout.position_ids.tolist() == [[0, 1, 0, 1, 2]]
    assert layout.slot[MASK.bool()].tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("packed", [False, True])
def test_b12_labels_of_packed_rows_never_cross_rows(packed: bool) -> None:
    # B12: rows [1,2] and [3,4,5] predict 2 | none, 4, 5 | none: slots 0 (packed or aligned) and the first two of row 1
    response = torch.tensor([[1, 0], [1, 1]])
    mask = torch.tensor([[1, 1, 0], [1, 1, 1]])
    ids = torch.tensor([[1, 2, 9], [3, 4, 5]])
    rows, columns, slots = response_slots(layout_tokens(ids, mask, packed), mask, response)
    assert ids[:, 1:][rows, columns].tolist() == [2, 4, 5]
    assert slots.tolist() == ([0, 2, 3] if packed else [0, 3, 4])


def test_a_response_hidden_from_attention_is_an_error_that_names_the_row() -> None:
    mask = torch.tensor([[1, 1, 1], [1, 1, 0]])
    with pytest.raises(ValueError, match="row 1: response_mask is 1 on a token whose attention_mask is 0"):
        response_slots(layout_tokens(mask, mask), mask, torch.tensor([[1, 1], [1, 1]]))


def test_an_empty_prompt_is_an_error_that_names_the_row() -> None:
    mask = torch.tensor([[1, 1], [0, 1]])
    with pytest.raises(ValueError, match="row 1: .*no token before it"):
        response_slots(layout_tokens(mask, mask), mask, torch.tensor([[1], [1]]))


def test_no_valid_token_at_all_still_gives_something_to_run_on() -> None:
    nothing = torch.zeros(2, 3, dtype=torch.long)
    assert layout_tokens(nothing, nothing).input_ids.tolist() == [[0], [0]]
    assert layout_tokens(nothing, nothing, packed=True).input_ids.tolist() == [[0]]


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=1, max_size=5), st.booleans())
def test_every_valid_token_is_found_at_its_slot(shape: list[tuple[int, int]], packed: bool) -> None:
    """Rows of a prompt (padded left to 4) and a response (padded right to 4): slots lead back to their ids."""
    mask = torch.tensor([[0] * (4 - p) + [1] * p + [1] * r + [0] * (4 - r) for p, r in shape])
    ids = torch.arange(mask.numel()).view(mask.shape) + 1
    layout = layout_tokens(ids, mask, packed)
    valid = mask.bool()
    assert torch.equal(layout.input_ids.flatten()[layout.slot[valid]], ids[valid])
    assert torch.equal(layout.position_ids.flatten()[layout.slot[valid]], layout.rank[valid])
    assert int(layout.attention_mask.sum()) == int(mask.sum())
