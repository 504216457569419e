import pickle
from collections.abc import Callable

import numpy as np
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from verl.protocol import DataProto, pad_dataproto_to_divisor, unpad_dataproto

Same = Callable[..., None]
DTYPES = (torch.float32, torch.bfloat16, torch.int64, torch.bool)
ITEMS = st.one_of(
    st.none(),
    st.integers(),
    st.text(max_size=3),
    st.floats(),
    st.lists(st.integers(), max_size=3),
    st.dictionaries(st.text(max_size=2), st.floats(), max_size=2),
    hnp.arrays(np.float32, st.integers(0, 3)),
)
check = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@st.composite
def batches(draw: st.DrawFn, min_rows: int = 0) -> DataProto:
    rows = draw(st.integers(min_rows, 7))
    tensors = {}
    for number in range(draw(st.integers(0, 3))):
        width = draw(st.lists(st.integers(0, 3), max_size=2))
        values = draw(hnp.arrays(np.float32, (rows, *width), elements=st.floats(-9, 9, width=32) | st.just(np.nan)))
        dtype = draw(st.sampled_from(DTYPES))
        if not dtype.is_floating_point:
            values = np.nan_to_num(values)
        tensors[f"t{number}"] = torch.from_numpy(values).to(dtype)
    if draw(st.booleans()):
        tensors["response_mask"] = torch.from_numpy(draw(hnp.arrays(np.int64, (rows, 2), elements=st.integers(0, 1))))
    objects = {"o": draw(st.lists(ITEMS, min_size=rows, max_size=rows))} if draw(st.booleans()) else {}
    arrays = {"s": np.array([f"row{row}" for row in range(rows)], dtype="<U8")} if draw(st.booleans()) else {}
    data = DataProto.from_dict(tensors, {**objects, **arrays}, {"k": draw(ITEMS)})
    # A batch without any column has no rows of its own; an empty selection of some has.
    return data if tensors or objects or arrays else DataProto.from_dict({"t": torch.zeros(rows)}).select([])


@check
@given(batches(), st.integers(1, 4))
def test_chunk_concat(assert_same: Same, data: DataProto, chunks: int) -> None:
    data = data.repeat(chunks)
    parts = data.chunk(chunks)
    assert [len(part) for part in parts] == [len(data) // chunks] * chunks
    assert_same(DataProto.concat(parts), data)


@check
@given(batches(), st.integers(1, 9))
def test_split_concat(assert_same: Same, data: DataProto, size: int) -> None:
    parts = data.split(size)
    assert all(len(part) == size for part in parts[:-1]) and len(parts[-1]) <= size
    assert_same(DataProto.concat(parts), data)


@check
@given(batches(min_rows=1), st.integers(1, 20))
def test_pad_unpad(assert_same: Same, data: DataProto, divisor: int) -> None:
    padded, pad_size = pad_dataproto_to_divisor(data, divisor)
    rows = len(data)
    assert len(padded) % divisor == 0 and 0 <= pad_size < divisor and len(padded) == rows + pad_size
    assert_same(unpad_dataproto(padded, pad_size), data)
    pads, sources = padded[rows:], data[[row % rows for row in range(rows, rows + pad_size)]]
    if data.batch is not None and "response_mask" in set(data.batch.keys()):
        assert pads.pop("response_mask").batch["response_mask"].sum() == 0
        sources.pop("response_mask")
    assert_same(pads, sources)


@check
@given(batches(), st.integers(1, 4))
def test_repeat(assert_same: Same, data: DataProto, times: int) -> None:
    assert_same(data.repeat(times)[::times], data)
    tiled = data.repeat(times, interleave=False)
    for copy in tiled.chunk(times):
        assert_same(copy, data)


@check
@given(batches(), st.randoms(use_true_random=False))
def test_reorder_and_its_inverse(assert_same: Same, data: DataProto, random) -> None:  # type: ignore[no-untyped-def]
    order = list(range(len(data)))
    random.shuffle(order)
    shuffled = data.reorder(order)
    assert_same(shuffled.reorder(np.argsort(order)), data)
    assert_same(shuffled, DataProto.concat([data[row : row + 1] for row in order]) if order else data)


@check
@given(batches(), st.booleans())
def test_pickle(assert_same: Same, data: DataProto, out_of_band: bool) -> None:
    buffers: list[pickle.PickleBuffer] = []
    stream = pickle.dumps(data, protocol=5, buffer_callback=buffers.append if out_of_band else None)
    assert_same(pickle.loads(stream, buffers=[bytes(buffer.raw()) for buffer in buffers]), data)


@check
@given(batches())
def test_union_of_parts_and_with_itself(assert_same: Same, data: DataProto) -> None:
    assert_same(data.union(data), data)
    rest = data.select()
    popped = rest.pop([] if rest.batch is None else [str(key) for key, _ in rest.batch.items()])
    assert_same(popped.union(rest), data)


@check
@given(batches(), st.data())
def test_boolean_and_integer_rows_agree(assert_same: Same, data: DataProto, draw: st.DataObject) -> None:
    mask = draw.draw(st.lists(st.booleans(), min_size=len(data), max_size=len(data)))
    chosen = [row for row, keep in enumerate(mask) if keep]
    assert_same(data[mask], data[np.array(chosen, dtype=int)])
    assert_same(data[torch.tensor(mask, dtype=torch.bool)], data.select_idxs(chosen))
