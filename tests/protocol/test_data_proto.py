import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from tensordict import TensorDict

from verl.protocol import DataProto, DataProtoItem, align, pad_dataproto_to_divisor, unpad_dataproto

Same = Callable[..., None]


def four_rows() -> DataProto:
    return DataProto.from_dict(
        tensors={"x": torch.tensor([[0, 1], [10, 11], [20, 21], [30, 31]]), "y": torch.tensor([0.0, 0.5, 1.0, 1.5])},
        non_tensors={"uid": ["a", "b", "c", "d"], "n": np.array([4, 5, 6, 7])},
        meta_info={"temperature": 1.0},
    )


def xs(data: DataProto) -> list[int]:
    assert data.batch is not None
    return data.batch["x"][:, 0].tolist()


# ---- making and checking ----


def test_from_single_dict_sorts_columns_by_kind() -> None:
    data = DataProto.from_single_dict({"x": torch.zeros(2, 3), "n": np.array([1, 2]), "s": ["p", "q"]}, {"k": 1})
    assert data.batch is not None and list(data.batch.keys()) == ["x"]
    assert data.non_tensor_batch["n"].dtype == np.int64
    assert data.non_tensor_batch["s"].dtype == object
    assert data.meta_info == {"k": 1} and len(data) == 2


def test_object_columns_are_1d_whatever_the_items() -> None:
    data = DataProto.from_dict(non_tensors={"l": [["a"], ["b"]], "m": np.array([["a"], ["b"]], dtype=object)})
    assert data.non_tensor_batch["l"].shape == data.non_tensor_batch["m"].shape == (2,)
    assert data.non_tensor_batch["l"].tolist() == data.non_tensor_batch["m"].tolist() == [["a"], ["b"]]


def test_from_dict_names_the_columns_that_do_not_fit() -> None:
    with pytest.raises(ValueError, match=r"'a': \(2,\), 'b': \(3, 1\), 'c': \(2,\)"):
        DataProto.from_dict({"a": torch.zeros(2), "b": torch.zeros(3, 1)}, {"c": ["x", "y"]})
    with pytest.raises(ValueError, match=r"'a': \(\)"):
        DataProto.from_dict({"a": torch.tensor(1.0)})
    with pytest.raises(TypeError, match="'c' must be a numpy array or a list, not str"):
        DataProto.from_dict(non_tensors={"c": "text"})
    with pytest.raises(TypeError, match="'a'.*must be a tensor, not ndarray"):
        DataProto.from_dict({"a": np.zeros(2)})  # type: ignore[dict-item]


@pytest.mark.parametrize(
    ("batch", "non_tensors", "error", "match"),
    [
        ({"x": torch.zeros(2)}, {}, TypeError, "must be a TensorDict or None, not dict"),
        (TensorDict({"x": torch.zeros(2, 3)}, [2, 3]), {}, ValueError, r"one batch dimension.*\[2, 3\]"),
        (TensorDict({"x": torch.zeros(2)}, [2]), {"n": np.zeros(3)}, ValueError, "'n'.* has 3 rows.* has 2"),
        (TensorDict({"x": torch.zeros(2)}, [2]), {"x": np.zeros(2)}, ValueError, "'x' is in both"),
        (TensorDict({"x": TensorDict({}, [2])}, [2]), {}, TypeError, "'x'.* must be a tensor, not TensorDict"),
        (None, {"n": np.array([["a"], ["b"]], dtype=object)}, ValueError, r"'n'.*\(2, 1\).*must be 1-D"),
        (None, {"n": ["a", "b"]}, TypeError, "'n'.* must be a numpy array, not list"),
        (None, {"n": np.array(3)}, ValueError, "'n'.* one entry per row"),
    ],
)
def test_inconsistent_batches_are_refused(batch: Any, non_tensors: Any, error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        DataProto(batch, non_tensors)


def test_nested_and_sparse_tensors_are_refused() -> None:
    jagged = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged)
    for bad, kind in ((jagged, "nested"), (torch.eye(2).to_sparse(), "sparse_coo")):
        with pytest.raises(ValueError, match=rf"batch\['r'\] is a .*{kind}.*pad it"):
            DataProto.from_dict({"r": bad})


def test_a_column_of_the_wrong_length_put_in_later_is_found() -> None:
    data = four_rows()
    data.non_tensor_batch["late"] = np.zeros(3)
    with pytest.raises(ValueError, match="'late'.* has 3 rows"):
        data.check_consistency()


def test_no_columns_and_no_tensors() -> None:
    bare = DataProto(meta_info={"step": 3})
    assert len(bare) == 0 and [len(part) for part in bare.chunk(4)] == [0] * 4
    assert bare.chunk(4)[3].meta_info == {"step": 3}
    assert len(bare.to("cpu")) == len(bare.select()) == len(bare.repeat(3)) == 0
    only_objects = DataProto.from_dict(non_tensors={"uid": ["a", "b", "c"]})
    assert only_objects.batch is None and len(only_objects) == 3
    assert only_objects[[2, 0]].non_tensor_batch["uid"].tolist() == ["c", "a"]


# ---- columns ----


def test_select_keeps_rows_even_without_columns() -> None:
    data = four_rows()
    chosen = data.select(["x"], "uid", [])
    assert chosen.batch is not None and list(chosen.batch.keys()) == ["x"]
    assert list(chosen.non_tensor_batch) == ["uid"] and chosen.meta_info == {}
    assert len(data.select([], [])) == 4
    assert len(DataProto.from_dict(non_tensors={"uid": ["a", "b"]}).select(non_tensor_batch_keys=[])) == 2
    assert sorted(data.select().meta_info) == ["temperature"] and len(data.batch.keys()) == 2


@pytest.mark.parametrize(
    ("arguments", "where"),
    [
        ({"batch_keys": ["x", "nope"]}, "batch"),
        ({"non_tensor_batch_keys": "nope"}, "non_tensor_batch"),
        ({"meta_info_keys": ["nope"]}, "meta_info"),
    ],
)
def test_unknown_names_are_errors_that_list_the_known(arguments: dict[str, Any], where: str) -> None:
    data = four_rows()
    known = {"batch": r"\['x', 'y'\]", "non_tensor_batch": r"\['n', 'uid'\]", "meta_info": r"\['temperature'\]"}[where]
    for method in (data.select, data.pop):
        with pytest.raises(KeyError, match=rf"{where} has no \['nope'\]; it has {known}"):
            method(**arguments)
    assert sorted(data.batch.keys()) == ["x", "y"] and sorted(data.non_tensor_batch) == ["n", "uid"]


def test_pop_moves_columns_and_leaves_the_rest() -> None:
    data = four_rows()
    popped = data.pop(["x"], ["uid"], ["temperature"])
    assert list(popped.batch.keys()) == ["x"] and list(popped.non_tensor_batch) == ["uid"]
    assert popped.meta_info == {"temperature": 1.0}
    assert list(data.batch.keys()) == ["y"] and list(data.non_tensor_batch) == ["n"] and data.meta_info == {}
    rest = data.pop(["y"], ["n"])
    assert len(rest) == len(data) == 4
    assert sorted(data.union(popped).union(rest).batch.keys()) == ["x", "y"]


def test_rename_swaps_and_refuses_collisions() -> None:
    data = four_rows()
    swapped = data.rename(["x", "y", "uid"], ["y", "x", "id"])
    assert swapped.batch["x"].tolist() == [0.0, 0.5, 1.0, 1.5] and list(swapped.non_tensor_batch) == ["id", "n"]
    assert xs(data) == [0, 10, 20, 30] and list(data.non_tensor_batch) == ["uid", "n"]
    with pytest.raises(ValueError, match=r"more than one column would be named \['uid'\]"):
        data.rename("x", "uid")
    with pytest.raises(KeyError, match="no .'z'.*'n', 'uid', 'x', 'y'"):
        data.rename("z", "w")
    with pytest.raises(ValueError, match="2 old names .* but 1 new"):
        data.rename(["x", "y"], ["z"])


def test_union_with_something_else() -> None:
    with pytest.raises(TypeError, match="must be a DataProto, not NoneType"):
        DataProto().union(None)  # type: ignore[arg-type]


def test_e1_union_of_the_same_key() -> None:
    base = torch.arange(8.0).reshape(2, 2, 2)
    a = DataProto.from_dict({"a": base})
    assert a.union(a).batch["a"].equal(base)

    with_nan = base.clone()
    with_nan[1, 0, 1] = float("nan")
    left, right = DataProto.from_dict({"a": with_nan}), DataProto.from_dict({"a": with_nan.clone()})
    assert left.union(right).batch["a"][1, 0, 1].isnan()
    with pytest.raises(ValueError, match="'a' has different values"):
        left.union(a)

    changed = base.clone()
    changed[0, 1, 0] = -1
    with pytest.raises(ValueError, match="'a' has different values"):
        a.union(DataProto.from_dict({"a": changed}))
    with pytest.raises(ValueError, match="8 rows on the left but 2 on the right"):
        DataProto.from_dict({"b": torch.zeros(8)}).union(a)


@pytest.mark.parametrize(
    ("left", "right", "equal"),
    [
        ([{"t": np.array([1.0, np.nan])}], [{"t": np.array([1.0, np.nan])}], True),
        ([{"t": np.array([1.0, 2.0])}], [{"t": np.array([1.0, 3.0])}], False),
        ([[1, [2, float("nan")]]], [[1, [2, float("nan")]]], True),
        ([[1, 2]], [[1, 2, 3]], False),
        ([None], ["a"], False),
        ([torch.tensor([1, 2])], [torch.tensor([1, 2])], True),
        ([torch.tensor([1, 2])], [np.array([1, 2])], False),
        ([{"a": 1}], [{"a": 1, "b": 2}], False),
        (np.array(["ab"]), np.array(["ab"], dtype="<U9"), True),
        (np.array([1.5]), np.array([1.5], dtype=object), False),
    ],
)
def test_union_compares_other_columns_by_value(left: Any, right: Any, equal: bool) -> None:
    one, two = (DataProto.from_dict(non_tensors={"o": values}) for values in (left, right))
    if equal:
        assert len(one.union(two)) == 1
    else:
        with pytest.raises(ValueError, match="'o' has different values"):
            one.union(two)


def test_union_joins_columns_and_meta() -> None:
    left = DataProto.from_dict({"x": torch.zeros(2)}, {"uid": ["a", "b"]}, {"k": 1, "timing": {"gen": 1.0}})
    right = DataProto.from_dict({"y": torch.ones(2)}, meta_info={"k": 1, "j": 2, "timing": {"gen": 2.0, "score": 3.0}})
    both = left.union(right)
    assert sorted(both.batch.keys()) == ["x", "y"] and both.non_tensor_batch["uid"].tolist() == ["a", "b"]
    assert both.meta_info == {"k": 1, "j": 2, "timing": {"gen": [1.0, 2.0], "score": [3.0]}}
    assert left.union(left).meta_info == left.meta_info
    assert left.union(DataProto(meta_info={"new": 5})).meta_info["new"] == 5
    with pytest.raises(ValueError, match=r"meta_info\['k'\] is 1 .* and 2 "):
        left.union(DataProto(meta_info={"k": 2}))
    with pytest.raises(ValueError, match="'x' has different values.*Tensor float32.*ndarray object"):
        left.union(DataProto.from_dict(non_tensors={"x": ["a", "b"]}))


# ---- rows ----


@pytest.mark.parametrize(
    "mask",
    [
        [True, False, True, False],
        np.array([True, False, True, False]),
        torch.tensor([True, False, True, False]),
        [np.True_, np.False_, np.True_, np.False_],
    ],
)
def test_e4_boolean_rows(mask: Any) -> None:
    kept = four_rows()[mask]
    assert isinstance(kept, DataProto)
    assert type(len(kept)) is int and len(kept) == 2 and kept.batch.batch_size == torch.Size([2])
    assert xs(kept) == [0, 20] and kept.non_tensor_batch["uid"].tolist() == ["a", "c"]
    first, second = kept.chunk(2)
    assert xs(first) == [0] and second.non_tensor_batch["uid"].tolist() == ["c"]


def test_e4_slices_are_batches() -> None:
    data = four_rows()
    assert xs(data[1:3]) == [10, 20] and data[1:3].non_tensor_batch["uid"].tolist() == ["b", "c"]
    assert xs(data[::2]) == [0, 20]
    assert isinstance(data[3:3], DataProto) and len(data[3:3]) == 0
    assert xs(data[::-1]) == [30, 20, 10, 0] and data[::-1].non_tensor_batch["n"].tolist() == [7, 6, 5, 4]
    assert xs(data.slice(1)) == [10, 20, 30] and xs(data.slice(0, 4, 3)) == [0, 30]


@pytest.mark.parametrize("empty", [[False] * 4, np.zeros(4, bool), torch.zeros(4, dtype=torch.bool), [], slice(0, 0)])
def test_e4_empty_selections(empty: Any) -> None:
    nothing = four_rows()[empty]
    assert len(nothing) == 0 and nothing.batch["x"].shape == (0, 2)
    assert nothing.non_tensor_batch["uid"].shape == (0,) and nothing.meta_info == {"temperature": 1.0}


@pytest.mark.parametrize("index", [[3, 0, -3], np.array([3, 0, 1]), torch.tensor([3, 0, 1]), range(3, -3, -3)])
def test_integer_rows(index: Any) -> None:
    picked = four_rows()[index]
    assert xs(picked)[:2] == [30, 0] and picked.non_tensor_batch["uid"].tolist()[:2] == ["d", "a"]
    if len(picked) == 3:
        assert xs(picked)[2] == 10


def test_one_row_is_an_item() -> None:
    data = four_rows()
    indices: list[Any] = [2, -2, np.int64(2), torch.tensor(2)]
    for index in indices:
        item = data[index]
        assert isinstance(item, DataProtoItem)
        assert item.batch["x"].tolist() == [20, 21] and item.batch.batch_size == torch.Size([])
        assert item.non_tensor_batch == {"uid": "c", "n": 6} and item.meta_info == {"temperature": 1.0}
    assert [item.non_tensor_batch["uid"] for item in data] == ["a", "b", "c", "d"]


@pytest.mark.parametrize(
    ("index", "error", "match"),
    [
        (4, IndexError, "row 4 does not exist: there are 4 rows"),
        (-5, IndexError, "row -5 does not exist"),
        ([0, 7], IndexError, "row 7 does not exist"),
        ([True, False], ValueError, "length 2 does not fit 4 rows"),
        (np.zeros((2, 2), int), ValueError, r"must be 1-D.*\(2, 2\)"),
        (torch.tensor([0.0, 1.0]), TypeError, "integers or booleans, not float32"),
        ("x", TypeError, r"not str; columns are data.batch\[key\]"),
        ((0, 1), TypeError, "not tuple"),
        (True, TypeError, "not bool"),
        (1.5, TypeError, "not float"),
    ],
)
def test_bad_indices(index: Any, error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        four_rows()[index]


def test_e7_repeat() -> None:
    data = DataProto.from_dict({"x": torch.tensor([1, 2])}, {"uid": ["a", "b"], "l": [["p"], ["q", "r"]]})
    woven, tiled = data.repeat(2), data.repeat(2, interleave=False)
    assert woven.batch["x"].tolist() == [1, 1, 2, 2] and tiled.batch["x"].tolist() == [1, 2, 1, 2]
    assert woven.non_tensor_batch["uid"].tolist() == ["a", "a", "b", "b"]
    assert tiled.non_tensor_batch["uid"].tolist() == ["a", "b", "a", "b"]
    assert woven.non_tensor_batch["l"].tolist() == [["p"], ["p"], ["q", "r"], ["q", "r"]]
    with pytest.raises(ValueError, match="at least 1, not 0"):
        data.repeat(0)


def test_chunk_and_split() -> None:
    data = four_rows()
    assert [xs(part) for part in data.chunk(2)] == [[0, 10], [20, 30]]
    assert [xs(part) for part in data.split(3)] == [[0, 10, 20], [30]]
    with pytest.raises(ValueError, match=r"4 rows .* 3 equal chunks: first add 2 rows with pad_dataproto_to_divisor"):
        data.chunk(3)
    with pytest.raises(ValueError, match="at least 1, not 0"):
        data.chunk(0)
    with pytest.raises(ValueError, match="at least 1, not 0"):
        data.split(0)
    assert [len(part) for part in data[:0].split(2)] == [0]


def test_reorder_returns_a_new_batch() -> None:
    data = four_rows()
    assert xs(data.reorder(torch.tensor([2, 0, 3, 1]))) == [20, 0, 30, 10]
    assert xs(data) == [0, 10, 20, 30]
    for bad in ([0, 1, 2], [0, 0, 1, 2], [0, 1, 2, 3, 3]):
        with pytest.raises(ValueError, match="each of the 4 rows exactly once"):
            data.reorder(bad)


def test_make_iterator() -> None:
    data = four_rows()
    assert [xs(mini) for mini in data.make_iterator(2, epochs=2)] == [[0, 10], [20, 30]] * 2
    runs = [[xs(mini) for mini in data.make_iterator(2, epochs=8, seed=seed, shuffle=True)] for seed in (1, 1, 2)]
    assert runs[0] == runs[1] != runs[2]
    epochs = [runs[0][2 * epoch] + runs[0][2 * epoch + 1] for epoch in range(8)]
    assert all(sorted(epoch) == [0, 10, 20, 30] for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) > 1
    with pytest.raises(ValueError, match="4 rows do not divide into mini-batches of 3 rows"):
        data.make_iterator(3, epochs=1)


# ---- concat ----


def test_e2_concat_keeps_both_timings() -> None:
    one, two = (
        DataProto.from_dict({"x": torch.tensor([row])}, meta_info={"temperature": 1, "timing": {"gen": seconds}})
        for row, seconds in ((0, 1.0), (1, 1.1))
    )
    joined = DataProto.concat([one, two])
    assert joined.meta_info == {"temperature": 1, "timing": {"gen": [1.0, 1.1]}}
    assert DataProto.concat([joined, one]).meta_info["timing"] == {"gen": [1.0, 1.1, 1.0]}
    assert one.meta_info["timing"] == {"gen": 1.0}
    two.meta_info["temperature"] = 0.7
    with pytest.raises(ValueError, match=r"concat: meta_info\['temperature'\] is 1 in one part and 0.7 in another"):
        DataProto.concat([one, two])
    with pytest.raises(TypeError, match="timing.*not float"):
        DataProto.concat([DataProto(meta_info={"timing": 1.0})])


def test_concat_collects_metrics_and_keeps_what_one_part_lacks() -> None:
    parts = [DataProto(meta_info={"metrics": [{"loss": 1.0}]}), DataProto(meta_info={"metrics": {"loss": 2.0}, "k": 3})]
    assert DataProto.concat(parts).meta_info == {"metrics": [{"loss": 1.0}, {"loss": 2.0}], "k": 3}


def test_e6_lists_stay_lists() -> None:
    parts = [DataProto.from_dict(non_tensors={"l": items}) for items in ([["a"], ["b"]], [["a"], ["b", "c"]])]
    assert [part.non_tensor_batch["l"].shape for part in parts] == [(2,), (2,)]
    joined = DataProto.concat(parts).non_tensor_batch["l"]
    assert joined.shape == (4,) and joined.dtype == object
    assert joined.tolist() == [["a"], ["b"], ["a"], ["b", "c"]] and all(type(item) is list for item in joined)


@pytest.mark.parametrize(
    ("one", "two", "match"),
    [
        ({"x": torch.zeros(1)}, {"y": torch.zeros(1)}, r"only part 0 has: batch\['x'\]; only part 1 has: batch\['y'\]"),
        ({"x": torch.zeros(1)}, {}, r"only part 0 has: batch\['x'\]; only part 1 has: -"),
        ({"x": torch.zeros(1)}, {"x": ["a"]}, r"has: batch\['x'\]; .* has: non_tensor_batch\['x'\]"),
        ({"x": torch.zeros(1, 2)}, {"x": torch.zeros(1, 3)}, r"batch\['x'\] differs.*\(2,\).*\(3,\)"),
        ({"x": torch.zeros(1)}, {"x": torch.zeros(1).long()}, r"batch\['x'\] differs.*float32.*int64"),
        ({"x": np.array([1])}, {"x": np.array(["a"])}, r"non_tensor_batch\['x'\] differs.*<U1.*int64"),
    ],
)
def test_concat_refuses_other_columns(one: dict[str, Any], two: dict[str, Any], match: str) -> None:
    with pytest.raises(ValueError, match=match):
        DataProto.concat([DataProto.from_single_dict(one), DataProto.from_single_dict(two)])
    with pytest.raises(ValueError, match="empty"):
        DataProto.concat([])


def test_concat_of_0_rows_and_of_rows_without_columns(assert_same: Same) -> None:
    data = four_rows()
    assert_same(DataProto.concat([data[:0], data, data[4:]]), data)
    assert len(DataProto.concat([data.select([], []), data[:2].select([], [])])) == 6
    mixed = [DataProto.from_single_dict({"x": np.array([1])}), DataProto.from_single_dict({"x": ["a"]})]
    assert DataProto.concat(mixed).non_tensor_batch["x"].tolist() == [1, "a"]


# ---- padding ----


def test_pad_rows_repeat_from_the_start_and_count_in_no_loss(assert_same: Same) -> None:
    data = DataProto.from_dict(
        {"x": torch.tensor([1, 2]), "response_mask": torch.tensor([[1, 1], [1, 0]])}, {"uid": ["a", "b"]}
    )
    padded, pad_size = pad_dataproto_to_divisor(data, 7)
    assert pad_size == 5 and padded.batch["x"].tolist() == [1, 2, 1, 2, 1, 2, 1]
    assert padded.batch["response_mask"].tolist() == [[1, 1], [1, 0]] + [[0, 0]] * 5
    assert padded.non_tensor_batch["uid"].tolist() == ["a", "b", "a", "b", "a", "b", "a"]
    assert data.batch["response_mask"].tolist() == [[1, 1], [1, 0]]
    assert_same(unpad_dataproto(padded, pad_size), data)
    same, none = pad_dataproto_to_divisor(data, 2)
    assert none == 0 and same is not data
    assert_same(same, data)


def test_padding_errors() -> None:
    data = four_rows()
    with pytest.raises(ValueError, match="0 rows cannot be padded to a multiple of 2"):
        pad_dataproto_to_divisor(data[:0], 2)
    with pytest.raises(ValueError, match="at least 1, not 0"):
        pad_dataproto_to_divisor(data, 0)
    for pad_size in (5, -1):
        with pytest.raises(ValueError, match=f"cannot drop {pad_size} of 4 rows"):
            unpad_dataproto(data, pad_size)
    assert pad_dataproto_to_divisor(DataProto(meta_info={"a": 1}), 4)[1] == 0


def test_batches_of_several_prompt_widths_and_columns_are_aligned() -> None:
    """E6's kind: what differs between two batches of one run, a prompt's width and what a scorer returned."""

    def part(prompts: list[list[int]], **columns: list[Any]) -> DataProto:
        ids = torch.tensor(prompts)
        responses = torch.tensor([[8, 9]]).expand(len(ids), 2)
        whole = torch.cat([ids, responses], dim=1)
        tensors = {"prompts": ids, "responses": responses, "input_ids": whole, "attention_mask": (whole > 0).long()}
        return DataProto.from_dict(tensors, {"uid": ["a"] * len(ids), **columns})

    parts = [part([[0, 5], [6, 7]], pred=["x", {"y": 1}]), part([[3]])]
    joined = DataProto.concat(align(parts))
    assert joined.batch["prompts"].tolist() == [[0, 5], [6, 7], [0, 3]]
    assert joined.batch["responses"].tolist() == [[8, 9]] * 3
    assert joined.batch["input_ids"].tolist() == [[0, 5, 8, 9], [6, 7, 8, 9], [0, 3, 8, 9]]
    assert joined.batch["attention_mask"].tolist() == [[0, 1, 1, 1], [1, 1, 1, 1], [0, 1, 1, 1]]
    assert joined.non_tensor_batch["pred"].tolist() == ["x", {"y": 1}, None]
    assert parts[1].batch["prompts"].shape == (1, 1) and "pred" not in parts[1].non_tensor_batch
    with pytest.raises(ValueError, match="concat"):
        DataProto.concat(parts)
    assert len(DataProto.concat(align([parts[0][:0], parts[1]]))) == 1


# ---- leaving inputs alone ----


@pytest.mark.parametrize(
    "method",
    [
        lambda d: d.select(),
        lambda d: d.rename("x", "z"),
        lambda d: d.union(DataProto(meta_info={"m": 1})),
        lambda d: d.repeat(2),
        lambda d: d.chunk(2)[0],
        lambda d: d.split(4)[0],
        lambda d: DataProto.concat([d]),
        lambda d: d.reorder([3, 2, 1, 0]),
        lambda d: d.slice(),
        lambda d: d[:],
        lambda d: d.select_idxs([0]),
        lambda d: d.to("cpu"),
        lambda d: next(d.make_iterator(4, 1)),
        lambda d: pad_dataproto_to_divisor(d, 4)[0],
        lambda d: unpad_dataproto(d, 0),
        copy.copy,
        copy.deepcopy,
    ],
)
def test_results_are_new_objects(method: Callable[[DataProto], DataProto], assert_same: Same) -> None:
    data, before = four_rows(), four_rows()
    result = method(data)
    assert result is not data
    result.batch["new"] = torch.zeros(len(result))
    result.batch["y"] = torch.full((len(result),), 9.0)
    result.non_tensor_batch["new"] = np.zeros(len(result))
    result.meta_info["new"] = 1
    result.meta_info["temperature"] = 0.0
    assert_same(data, before)


def test_print_size(capsys: pytest.CaptureFixture[str]) -> None:
    data = DataProto.from_dict({"x": torch.zeros(256, 1024)}, {"n": np.zeros((256, 256)), "o": ["a"] * 256})
    data.print_size("before")
    DataProto().print_size()
    first, second = capsys.readouterr().out.splitlines()
    assert first.startswith("before: 256 rows, tensors 1.000 MiB, non-tensors 0.50")
    assert second == "0 rows, tensors 0.000 MiB, non-tensors 0.000 MiB"
