"""Batches as numpy buffers, for pickling and for disk.

A tensor pickled by torch is copied several times; the same bytes as a numpy array go out of band under pickle
protocol 5, which is what Ray's object store moves without a copy. Only the rows of a view are sent, not the storage
behind it.
"""

import os
import pickle
import struct
import uuid
import zlib
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from tensordict import TensorDict
from torch import Tensor

from verl.protocol.columns import check_tensor

EncodedBatch = tuple[tuple[int, ...], dict[str, tuple[np.ndarray, torch.dtype]]]
"""The batch size and, by key, each tensor's array and dtype."""

_NUMPY_FLOATS = (torch.float16, torch.float32, torch.float64)
_BITS_OF_SIZE = {1: torch.uint8, 2: torch.int16}


def encode_batch(batch: TensorDict | None) -> EncodedBatch | None:
    """Tensors of any device as contiguous CPU arrays; gradients are not kept. ValueError for nested or sparse ones."""
    if batch is None:
        return None
    return tuple(batch.batch_size), {key: (_to_array(key, value), value.dtype) for key, value in batch.items()}


def decode_batch(encoded: EncodedBatch | None) -> TensorDict | None:
    """The tensors again, on the CPU and safe to write to."""
    if encoded is None:
        return None
    batch_size, arrays = encoded
    tensors = {key: torch.from_numpy(writable(array)).view(dtype) for key, (array, dtype) in arrays.items()}
    return TensorDict(tensors, batch_size=list(batch_size))


def writable(array: np.ndarray) -> np.ndarray:
    """`array`, or a copy if its memory is read-only: shared memory that other processes read as well."""
    return array if array.flags.writeable else array.copy()


def _to_array(key: str, tensor: Any) -> np.ndarray:
    check_tensor(key, tensor)
    tensor = cast(Tensor, tensor).detach().contiguous()
    if tensor.is_floating_point() and tensor.dtype not in _NUMPY_FLOATS:
        tensor = tensor.view(_BITS_OF_SIZE[tensor.dtype.itemsize])  # numpy knows neither bfloat16 nor float8
    return tensor.numpy(force=True)


# The file: _MAGIC, the number of frames, then length and CRC-32 of each frame, then the frames one after another.
# Frame 0 is the pickle stream; the others are its out-of-band buffers.
_MAGIC = b"VERLDP01"
_COUNT = struct.Struct("<Q")
_FRAME = struct.Struct("<QI")


def write_file(value: Any, path: str | os.PathLike[str]) -> None:
    """Pickle `value` to `path`, which holds the old content or the new one and never a part; makes the folder."""
    target = Path(path)
    buffers: list[pickle.PickleBuffer] = []
    stream = pickle.dumps(value, protocol=5, buffer_callback=buffers.append)
    frames = [memoryview(stream), *(buffer.raw() for buffer in buffers)]
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_name(f".{target.name}.{uuid.uuid4().hex}.tmp")
    try:
        with open(partial, "xb") as file:
            file.write(_MAGIC + _COUNT.pack(len(frames)))
            for frame in frames:
                file.write(_FRAME.pack(frame.nbytes, zlib.crc32(frame)))
            for frame in frames:
                file.write(frame)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, target)
    finally:
        partial.unlink(missing_ok=True)


def read_file(path: str | os.PathLike[str]) -> Any:
    """What `write_file` wrote. It unpickles, so read only files that you trust.

    Raises FileNotFoundError for a missing file and ValueError for one that is not whole; both name it.
    """
    source = Path(path)
    if not source.is_file():
        raise FileNotFoundError(f"no such file: {source}")
    with open(source, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        head = file.read(len(_MAGIC) + _COUNT.size)
        if not head.startswith(_MAGIC):
            raise ValueError(f"{source} was not written by save_to_disk: it does not start with {_MAGIC!r}")
        count = _COUNT.unpack(head[len(_MAGIC) :])[0] if len(head) == len(_MAGIC) + _COUNT.size else 0
        # Sizes are checked against the file's before any is believed: a damaged one could ask for all memory.
        if not 0 < count <= (size - len(head)) // _FRAME.size:
            raise ValueError(f"{source} is damaged or cut short: {size} bytes cannot hold {count} frames")
        table = [_FRAME.unpack(file.read(_FRAME.size)) for _ in range(count)]
        expected = file.tell() + sum(length for length, _ in table)
        if size != expected:
            raise ValueError(f"{source} is damaged or cut short: {size} bytes, its header says {expected}")
        frames = [bytearray(length) for length, _ in table]
        for number, (frame, (_, checksum)) in enumerate(zip(frames, table, strict=True)):
            file.readinto(frame)
            if zlib.crc32(frame) != checksum:
                raise ValueError(f"{source} is damaged: the checksum of part {number} of {count} does not match")
    return pickle.loads(frames[0], buffers=frames[1:])
