import gc
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tensordict import TensorDict

from verl.protocol import DataProto, DataProtoItem

Same = Callable[..., None]

E5 = {
    "no tensors": DataProto.from_dict(non_tensors={"uid": ["a", "b"]}, meta_info={"k": 1}),
    "no columns": DataProto(meta_info={"k": [1, 2]}),
    "0 rows": DataProto.from_dict({"x": torch.zeros(0, 3)}, {"uid": [], "n": np.zeros(0)}),
    "3 rows without keys": DataProto(TensorDict({}, batch_size=[3])),
    "ragged": DataProto.from_dict({"x": torch.ones(2)}, {"r": [[1], [2, 3]], "a": [np.zeros(2), np.zeros(5)]}),
    "dtypes": DataProto.from_dict(
        {
            str(dtype): torch.tensor([[0, 1], [1, 0], [1, 1]]).to(dtype)
            for dtype in (
                torch.bfloat16,
                torch.float8_e4m3fn,
                torch.float16,
                torch.float64,
                torch.bool,
                torch.uint8,
                torch.int8,
                torch.int16,
                torch.int32,
                torch.uint32,
                torch.complex64,
            )
        }
    ),
    "0 rows of bfloat16": DataProto.from_dict({"x": torch.zeros(0, 3, dtype=torch.bfloat16)}),
    "not contiguous": DataProto.from_dict(
        {
            "t": torch.arange(12.0).reshape(4, 3).T,
            "b": torch.arange(12).reshape(4, 3).T.bfloat16()[:, ::2],
            "e": torch.ones(1, 1).expand(3, 5),
        },
        {"n": np.arange(12).reshape(4, 3).T, "s": np.array(["a", "bc", "def"])[::-1]},
    ),
    "views and lazy bits": DataProto.from_dict(
        {
            "conj": torch.tensor([1 + 2j]).conj(),
            "neg": torch.tensor([1 + 2j]).conj().imag,
            "grad": torch.ones(1, requires_grad=True),
        }
    ),
}


def tensors_of(data: DataProto) -> dict[str, Any]:
    return {} if data.batch is None else {str(key): tensor for key, tensor in data.batch.items()}


def out_of_band(data: Any) -> Any:
    """Pickle and unpickle as an object store does: the buffers come back as read-only memory."""
    buffers: list[pickle.PickleBuffer] = []
    stream = pickle.dumps(data, protocol=5, buffer_callback=buffers.append)
    return pickle.loads(stream, buffers=[bytes(buffer.raw()) for buffer in buffers])


def in_band(data: Any) -> Any:
    return pickle.loads(pickle.dumps(data))


@pytest.mark.parametrize("send", [in_band, out_of_band])
@pytest.mark.parametrize("name", E5)
def test_e5_pickle(name: str, send: Callable[[Any], Any], assert_same: Same) -> None:
    data, before = E5[name], E5[name].select()
    strides = {key: tensor.stride() for key, tensor in tensors_of(data).items()}
    got = send(data)
    assert_same(got, data)
    rows = len(got)
    if got.batch is not None:
        got.batch["new"] = torch.arange(rows)
        moved = got.to("cpu")
        assert moved.batch["new"].tolist() == list(range(rows))
        for tensor in tensors_of(moved).values():
            tensor.zero_()
    for column in got.non_tensor_batch.values():
        column[:] = column[::-1].copy()
    assert_same(data, before)
    assert strides == {key: tensor.stride() for key, tensor in tensors_of(data).items()}


def test_writes_do_not_reach_other_readers_of_shared_memory() -> None:
    data = DataProto.from_dict({"x": torch.ones(4)}, {"n": np.ones(4)})
    buffers: list[pickle.PickleBuffer] = []
    stream = pickle.dumps(data, protocol=5, buffer_callback=buffers.append)
    shared = [memoryview(bytes(buffer.raw())) for buffer in buffers]
    one, two = (pickle.loads(stream, buffers=shared) for _ in range(2))
    one.batch["x"].mul_(2)
    one.non_tensor_batch["n"] *= 2
    assert one.batch["x"].tolist() == one.non_tensor_batch["n"].tolist() == [2.0] * 4
    assert two.batch["x"].tolist() == two.non_tensor_batch["n"].tolist() == [1.0] * 4


def test_64_mib_travel_as_buffers_and_not_in_the_stream() -> None:
    data = DataProto.from_dict(
        {"x": torch.zeros(16, 2**20), "b": torch.zeros(16, 2**10, dtype=torch.bfloat16)}, {"n": np.zeros(16)}
    )
    buffers: list[pickle.PickleBuffer] = []
    stream = pickle.dumps(data, protocol=5, buffer_callback=buffers.append)
    sizes = sorted(buffer.raw().nbytes for buffer in buffers)
    assert sizes == [16 * 8, 16 * 2**11, 64 * 2**20] and len(stream) < 2000


def test_a_chunk_sends_its_own_rows_only() -> None:
    data = DataProto.from_dict({"x": torch.zeros(64, 2**14)})
    assert len(pickle.dumps(data.chunk(64)[5])) < 2**16 + 2000
    assert len(pickle.dumps(data[5])) < 2**16 + 2000


def test_items_travel_too() -> None:
    tensors = {"x": torch.tensor([1, 2]), "b": torch.ones(2, 2, dtype=torch.bfloat16)}
    data = DataProto.from_dict(tensors, {"u": ["a", "b"]})
    for item in (in_band(data[1]), out_of_band(data[1])):
        assert isinstance(item, DataProtoItem) and item.non_tensor_batch == {"u": "b"}
        assert item.batch["x"].item() == 2 and item.batch["b"].dtype == torch.bfloat16
        item.batch["x"] += 1
    assert data.batch["x"].tolist() == [1, 2]


def test_received_memory_outlives_the_sender() -> None:
    data = out_of_band(DataProto.from_dict({"x": torch.full((1000,), 7)}))
    gc.collect()
    assert data.batch["x"].sum().item() == 7000


def test_nested_tensors_put_in_later_are_refused() -> None:
    data = DataProto(TensorDict({}, batch_size=[2]))
    data.batch["r"] = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged)
    with pytest.raises(ValueError, match=r"batch\['r'\] is a nested"):
        pickle.dumps(data)


# ---- disk ----


@pytest.mark.parametrize("name", E5)
def test_disk_round_trip(name: str, tmp_path: Path, assert_same: Same) -> None:
    path = tmp_path / "deep" / "batch.dp"
    E5[name].save_to_disk(path)
    got = DataProto.load_from_disk(path)
    assert_same(got, E5[name])
    for tensor in tensors_of(got).values():
        tensor.zero_()
    assert [file.name for file in path.parent.iterdir()] == ["batch.dp"]


def test_saving_replaces_whole_files_only(tmp_path: Path) -> None:
    path = tmp_path / "batch.dp"
    DataProto.from_dict({"x": torch.tensor([1])}).save_to_disk(str(path))
    unpicklable = DataProto.from_dict({"x": torch.tensor([2])}, {"f": [lambda: None]})
    with pytest.raises((pickle.PicklingError, AttributeError)):
        unpicklable.save_to_disk(path)
    assert DataProto.load_from_disk(str(path)).batch["x"].tolist() == [1]
    DataProto.from_dict({"x": torch.tensor([3])}).save_to_disk(path)
    assert DataProto.load_from_disk(path).batch["x"].tolist() == [3]

    folder = tmp_path / "folder"
    (folder / "inside").mkdir(parents=True)
    with pytest.raises(OSError):
        DataProto.from_dict({"x": torch.tensor([3])}).save_to_disk(folder)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["batch.dp", "folder"]


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="no such file: .*gone.dp"):
        DataProto.load_from_disk(tmp_path / "gone.dp")


def test_any_damage_is_found(tmp_path: Path) -> None:
    path = tmp_path / "batch.dp"
    DataProto.from_dict({"x": torch.arange(6)}, {"uid": list("abcdef")}).save_to_disk(path)
    whole = path.read_bytes()
    for end in range(0, len(whole), 5):
        path.write_bytes(whole[:end])
        with pytest.raises(ValueError, match="batch.dp"):
            DataProto.load_from_disk(path)
    for place in range(len(whole)):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 0x55]) + whole[place + 1 :])
        with pytest.raises(ValueError, match="batch.dp"):
            DataProto.load_from_disk(path)
    path.write_bytes(whole + b"x")
    with pytest.raises(ValueError, match="batch.dp is damaged"):
        DataProto.load_from_disk(path)
