import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from verl.engine.base import MicroBatching
from verl.engine.fsdp.micro_batches import join_rows, split_rows


def pieces(lengths: list[int], micro: MicroBatching) -> list[list[int]]:
    return [piece.tolist() for piece in split_rows(torch.tensor(lengths, dtype=torch.long), micro)]


def test_by_rows_longest_first() -> None:
    assert pieces([3, 9, 5, 9], MicroBatching(rows=2)) == [[1, 3], [2, 0]]
    assert pieces([3, 9, 5], MicroBatching(rows=2)) == [[1, 2], [0]]


def test_by_tokens() -> None:
    # 9 | 5 + 3 | 3: a third row of 3 would make 11 tokens
    assert pieces([3, 9, 5, 3], MicroBatching(max_tokens=10)) == [[1], [2, 0], [3]]


def test_a_row_that_is_too_long_stands_alone() -> None:
    assert pieces([3, 12, 3], MicroBatching(max_tokens=10)) == [[1], [0, 2]]


def test_neither_is_one_piece_and_no_rows_give_one_empty_piece() -> None:
    assert pieces([3, 9], MicroBatching()) == [[1, 0]]
    for micro in (MicroBatching(), MicroBatching(rows=2), MicroBatching(max_tokens=10)):
        assert pieces([], micro) == [[]]


def test_both_limits_are_refused() -> None:
    with pytest.raises(ValueError, match="not both"):
        MicroBatching(rows=1, max_tokens=10)


@given(
    st.lists(st.integers(0, 20), min_size=1, max_size=12),
    st.one_of(
        st.builds(MicroBatching, rows=st.integers(1, 5)),
        st.builds(MicroBatching, max_tokens=st.integers(1, 40)),
        st.just(MicroBatching()),
    ),
)
def test_every_row_comes_back_to_its_place(lengths: list[int], micro: MicroBatching) -> None:
    cut = split_rows(torch.tensor(lengths), micro)
    rows = torch.arange(len(lengths))
    joined = join_rows([{"row": rows[piece] * 10} for piece in cut], cut)
    assert joined["row"].tolist() == [10 * row for row in range(len(lengths))]
    for piece in cut:
        assert micro.rows is None or len(piece) <= micro.rows
        total = sum(lengths[row] for row in piece.tolist())
        assert micro.max_tokens is None or total <= micro.max_tokens or len(piece) == 1
