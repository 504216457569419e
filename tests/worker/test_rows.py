"""Row identity: split, whatever the split, and join gives the rows back in order."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from verl.protocol import DataProto
from verl.worker.dispatch import split_rows_for
from verl.worker.messages import Call
from verl.worker.rows import RowPlan, plan_batches, plan_rows


def rows_batch(lengths: list[int], width: int = 8, **meta: object) -> DataProto:
    """Row i: id i, `lengths[i]` valid tokens, and the object "row i"."""
    mask = (torch.arange(width) < torch.tensor(lengths)[:, None]).long()
    return DataProto.from_dict(
        {"id": torch.arange(len(lengths)), "attention_mask": mask, "response_mask": torch.ones_like(mask)},
        {"name": [f"row {i}" for i in range(len(lengths))]},
        meta,
    )


def shards_of(batch: DataProto, dp_size: int) -> tuple[list[DataProto], RowPlan]:
    sent = split_rows_for(range(dp_size), dp_size, Call((batch,)))
    assert sent.plan is not None
    return [call.args[0] for call in sent.calls], sent.plan


def ids(shard: DataProto) -> list[int]:
    return shard.batch["id"].tolist()


def test_contiguous_pieces_with_pad_rows_at_the_end() -> None:
    shards, _ = shards_of(rows_batch([8] * 5), 3)
    assert [ids(shard) for shard in shards] == [[0, 1], [2, 3], [4, 0]]
    # The pad row is row 0 again, with nothing in it that a loss would count.
    assert shards[2].batch["response_mask"].sum(-1).tolist() == [8, 0]
    assert shards[2].batch["attention_mask"].sum(-1).tolist() == [8, 8]


def test_fewer_rows_than_ranks() -> None:
    shards, plan = shards_of(rows_batch([8]), 4)
    assert [ids(shard) for shard in shards] == [[0]] * 4
    assert [int(shard.batch["response_mask"].sum()) for shard in shards] == [8, 0, 0, 0]
    assert ids(plan.join(shards)) == [0]


def test_each_mini_batch_is_spread_over_all_ranks() -> None:
    shards, _ = shards_of(rows_batch([8] * 8, mini_batch_size=4), 2)
    assert [ids(shard) for shard in shards] == [[0, 1, 4, 5], [2, 3, 6, 7]]
    assert [shard.meta_info["local_mini_batch_sizes"] for shard in shards] == [[2, 2], [2, 2]]
    (whole,), _ = shards_of(rows_batch([8] * 8, mini_batch_size=4), 1)
    assert ids(whole) == list(range(8)) and whole.meta_info["local_mini_batch_sizes"] == [4, 4]


def test_each_mini_batch_is_padded_by_itself() -> None:
    # Mini-batches 0,1,2 and 3,4,5 and 6: each gets one pad row (numbers 7, 8, 9), which repeat rows 0, 1, 2.
    shards, plan = shards_of(rows_batch([8] * 7, mini_batch_size=3), 2)
    assert [part.tolist() for part in plan.shards] == [[0, 1, 3, 4, 6], [2, 7, 5, 8, 9]]
    assert [ids(shard) for shard in shards] == [[0, 1, 3, 4, 6], [2, 0, 5, 1, 2]]
    assert shards[1].batch["response_mask"].sum(-1).tolist() == [8, 0, 8, 0, 0]
    assert shards[0].meta_info["local_mini_batch_sizes"] == [2, 2, 1]
    assert ids(plan.join(shards)) == list(range(7))


def test_balanced_by_tokens() -> None:
    shards, plan = shards_of(rows_batch([1, 8, 6, 7], balance_batch=True), 2)
    assert [ids(shard) for shard in shards] == [[0, 1], [2, 3]]
    assert [int(shard.batch["attention_mask"].sum()) for shard in shards] == [9, 13]
    assert ids(plan.join(shards)) == [0, 1, 2, 3]


def test_balancing_without_lengths() -> None:
    batch = DataProto.from_dict({"id": torch.arange(4)}, meta_info={"balance_batch": True})
    with pytest.raises(ValueError, match=r"balance_batch.*attention_mask.*columns: \['id'\]"):
        plan_batches({"argument 'batch'": batch}, 2)


def test_batches_of_one_call_must_agree() -> None:
    with pytest.raises(ValueError, match="argument 'a' has 2, argument 'b' has 3"):
        plan_batches({"argument 'a'": rows_batch([1, 1]), "argument 'b'": rows_batch([1, 1, 1])}, 2)
    with pytest.raises(ValueError, match="mini_batch_size.*2 in a, 4 in b"):
        plan_batches({"a": rows_batch([1] * 4, mini_batch_size=2), "b": rows_batch([1] * 4, mini_batch_size=4)}, 2)


@pytest.mark.parametrize("size", [0, -1, 2.0, "4"])
def test_mini_batch_sizes_that_mean_nothing(size: object) -> None:
    with pytest.raises(ValueError, match="mini_batch_size.*must be a positive integer"):
        plan_batches({"batch": rows_batch([1] * 4, mini_batch_size=size)}, 2)


def test_no_rows() -> None:
    with pytest.raises(ValueError, match="a batch of 0 rows cannot be split over 2"):
        shards_of(DataProto.from_dict({"id": torch.arange(0)}), 2)


def test_a_batch_of_meta_only_goes_to_all() -> None:
    batch = DataProto(meta_info={"step": 3})
    sent = split_rows_for(range(3), 3, Call((batch,)))
    assert sent.plan is None and [call.args[0].meta_info for call in sent.calls] == [{"step": 3}] * 3


def test_several_rows_for_each_input_row() -> None:
    shards, plan = shards_of(rows_batch([8] * 3), 2)
    joined = plan.join([shard.repeat(2) for shard in shards])
    assert ids(joined) == [0, 0, 1, 1, 2, 2]
    with pytest.raises(ValueError, match=r"given \[2, 2\] rows returned \[4, 2\]"):
        plan.join([shards[0].repeat(2), shards[1]])


def test_results_without_rows() -> None:
    _, plan = shards_of(rows_batch([8] * 3), 2)
    joined = plan.join([DataProto(meta_info={"metrics": {"loss": rank}}) for rank in range(2)])
    assert joined.meta_info["metrics"] == [{"loss": 0}, {"loss": 1}]


def test_only_shards_that_keep_the_order_can_go_on_as_they_are() -> None:
    assert plan_rows(4, 2).in_order
    assert not plan_rows(3, 2).in_order  # a pad row
    assert not plan_rows(4, 2, mini_batch_size=2).in_order
    assert plan_rows(4, 1, mini_batch_size=2).in_order


@given(
    lengths=st.lists(st.integers(0, 8), min_size=1, max_size=20),
    dp_size=st.integers(1, 5),
    mini_batch_size=st.none() | st.integers(1, 25),
    balance=st.booleans(),
    copies=st.integers(1, 3),
)
def test_row_identity(
    lengths: list[int], dp_size: int, mini_batch_size: int | None, balance: bool, copies: int
) -> None:
    batch = rows_batch(lengths, balance_batch=balance)
    if mini_batch_size is not None:
        batch.meta_info["mini_batch_size"] = mini_batch_size
    shards, plan = shards_of(batch, dp_size)

    # Every rank has equally many rows, of each mini-batch too, and the rows that count are the input's, once each.
    assert len({len(shard) for shard in shards}) == 1
    counted = [row for shard in shards for row in shard[shard.batch["response_mask"].sum(-1) > 0].batch["id"].tolist()]
    assert sorted(counted) == list(range(len(lengths)))
    if mini_batch_size is not None:
        sizes = shards[0].meta_info["local_mini_batch_sizes"]
        assert all(shard.meta_info["local_mini_batch_sizes"] == sizes for shard in shards)
        assert sum(sizes) == len(shards[0])
        stops = np.cumsum(sizes)
        for k, (start, stop) in enumerate(zip(stops - sizes, stops, strict=True)):
            rows = [shard[int(start) : int(stop)] for shard in shards]
            real = [i for part in rows for i in part[part.batch["response_mask"].sum(-1) > 0].batch["id"].tolist()]
            assert sorted(real) == list(range(len(lengths)))[k * mini_batch_size : (k + 1) * mini_batch_size]

    joined = plan.join([shard.repeat(copies) for shard in shards])
    assert ids(joined) == np.repeat(np.arange(len(lengths)), copies).tolist()
    assert joined.non_tensor_batch["name"].tolist() == [f"row {i}" for i in ids(joined)]
    assert joined.batch["attention_mask"].sum(-1).tolist() == np.repeat(lengths, copies).tolist()
    assert bool((joined.batch["response_mask"] == 1).all())
    # The sender's batch is as it was.
    assert ids(batch) == list(range(len(lengths))) and "local_mini_batch_sizes" not in batch.meta_info
