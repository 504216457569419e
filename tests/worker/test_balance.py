import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from verl.worker.balance import balanced_shards


def test_heaviest_first_to_the_lightest_part() -> None:
    # 9 -> part 0; 7 -> part 1; 6 -> part 1 (7 < 9), which is now full at 13; 1 -> part 0.
    parts = balanced_shards([1, 9, 6, 7], 2)
    assert [part.tolist() for part in parts] == [[0, 1], [2, 3]]


def test_ties_go_to_the_earlier_row_and_part() -> None:
    assert [part.tolist() for part in balanced_shards([5, 5, 5, 5], 2)] == [[0, 2], [1, 3]]


def test_rows_that_do_not_divide() -> None:
    with pytest.raises(ValueError, match="3 rows do not divide into 2 parts"):
        balanced_shards([1, 2, 3], 2)


@given(st.integers(1, 5), st.integers(1, 8), st.data())
def test_equal_counts_each_row_once_and_bounded_spread(shards: int, room: int, data: st.DataObject) -> None:
    weights = np.array(data.draw(st.lists(st.integers(0, 50), min_size=shards * room, max_size=shards * room)))
    parts = balanced_shards(weights, shards)
    assert [len(part) for part in parts] == [room] * shards
    assert sorted(np.concatenate(parts)) == list(range(shards * room))
    assert all((np.diff(part) > 0).all() for part in parts)
    assert [part.tolist() for part in parts] == [part.tolist() for part in balanced_shards(weights, shards)]


def test_it_balances_better_than_order_does() -> None:
    weights = np.arange(64)
    greedy = [int(weights[part].sum()) for part in balanced_shards(weights, 4)]
    in_order = [int(part.sum()) for part in np.split(weights, 4)]
    assert max(greedy) - min(greedy) <= 4 < max(in_order) - min(in_order)
