"""Weights from a trainer to rollout engines in other processes, in buckets.

    rank 0 (holds the trainer's weights)   send     -> broadcast of a header and a buffer for each bucket
    ranks 1, 2, ... (rollout engines)      receive  -> tensors, one bucket at a time

The members are joined by a process group of their own, beside those of training and of generating. Buffers go by NCCL
when each member has a GPU of its own, otherwise by gloo through the CPU's memory; headers always go by gloo.
"""

import pickle
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

ALIGNMENT = 16
"""Bytes: tensors of every dtype may start at a multiple of it."""


class WeightChannel:
    """One member's end. All members must be made at the same time, and a `send` meets one `receive` of each other.

    Args:
        store: where the members meet.
        rank, size: this member among them; 0 sends.
        device: of this member's engine, "cpu" or "cuda".
        timeout_s: seconds that one broadcast may take.
    """

    def __init__(self, store: dist.Store, rank: int, size: int, device: str, timeout_s: float) -> None:
        self.rank = rank
        timeout = timedelta(seconds=timeout_s)
        store.set_timeout(timeout)
        store.set(f"device/{rank}", _identity(device))
        members = [store.get(f"device/{member}").decode() for member in range(size)]
        self._store = store  # gloo goes on asking it for the other members' addresses
        self._headers: Any = dist.ProcessGroupGloo(dist.PrefixStore("headers", store), rank, size, timeout)
        self._buffers: Any = self._headers
        self.device = "cpu"
        if fit_for_nccl(members):
            # Builds of torch without CUDA lack the class.
            nccl: Any = dist.ProcessGroupNCCL  # type: ignore[attr-defined, unused-ignore]
            options = nccl.Options()
            options._timeout = timeout
            self._buffers = nccl(dist.PrefixStore("buffers", store), rank, size, options)
            self.device = "cuda"

    def send(self, weights: Iterable[tuple[str, Tensor]], version: int, bucket_bytes: int) -> int:
        """Send `weights` with their `version`. Returns the number of bytes of all tensors.

        Holds one buffer of `bucket_bytes`, or as large as the largest tensor, beside the tensor that is being copied.
        When `weights` raises, the receivers raise too.
        """
        if bucket_bytes < 1:
            raise ValueError(f"bucket_bytes must be at least 1, not {bucket_bytes}")
        sent = 0
        buffer = torch.empty(0, dtype=torch.uint8, device=self.device)
        entries: list[tuple[str, tuple[int, ...], torch.dtype, int]] = []
        filled = 0
        self._broadcast_object({"version": version})
        for name, tensor in self._telling_failure(weights):
            if entries and filled + tensor.nbytes > bucket_bytes:
                self._send_bucket(entries, buffer[:filled])
                entries, filled = [], 0
            if filled + tensor.nbytes > len(buffer):  # the first tensor of all, or one larger than a bucket
                assert not entries
                buffer = torch.empty(max(bucket_bytes, tensor.nbytes), dtype=torch.uint8, device=self.device)
            _view(buffer, filled, tensor.shape, tensor.dtype).copy_(tensor)
            entries.append((name, tuple(tensor.shape), tensor.dtype, filled))
            sent += tensor.nbytes
            filled = _aligned(filled + tensor.nbytes)
            del tensor
        if entries:
            self._send_bucket(entries, buffer[:filled])
        self._broadcast_object({})
        return sent

    def receive(self) -> tuple[int, Iterator[tuple[str, Tensor]]]:
        """The version of what comes, and its tensors, each made when it is asked for.

        All must be taken, or `drain`ed: the sender waits for it. RuntimeError when the sender fails.
        """
        header = self._broadcast_object(None)
        return header["version"], self._buckets()

    def drain(self, weights: Iterator[tuple[str, Tensor]]) -> None:
        """Take what is left of `weights` and drop it, so that the sender is free."""
        with suppress(RuntimeError):  # the sender's own failure is not news here
            for _ in weights:
                pass

    def _buckets(self) -> Iterator[tuple[str, Tensor]]:
        while header := self._broadcast_object(None):
            if "error" in header:
                raise RuntimeError(f"the trainer stopped sending its weights: {header['error']}")
            # A new one each time: the engine may hold on to tensors of the bucket before.
            buffer = torch.empty(header["bytes"], dtype=torch.uint8, device=self.device)
            self._buffers.broadcast(buffer, 0).wait()
            for name, shape, dtype, start in header["entries"]:
                yield name, _view(buffer, start, shape, dtype)
            del buffer

    def _telling_failure(self, weights: Iterable[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
        try:
            yield from weights
        except Exception as error:
            self._broadcast_object({"error": f"{type(error).__name__}: {error}"})
            raise

    def _send_bucket(self, entries: list[tuple[str, tuple[int, ...], torch.dtype, int]], buffer: Tensor) -> None:
        self._broadcast_object({"entries": entries, "bytes": len(buffer)})
        self._buffers.broadcast(buffer, 0).wait()

    def _broadcast_object(self, value: Any) -> Any:
        data = torch.frombuffer(bytearray(pickle.dumps(value)), dtype=torch.uint8) if self.rank == 0 else None
        size = torch.tensor([0 if data is None else len(data)])
        self._headers.broadcast(size, 0).wait()
        if data is None:
            data = torch.empty(int(size), dtype=torch.uint8)
        self._headers.broadcast(data, 0).wait()
        return pickle.loads(data.numpy().tobytes())


def fit_for_nccl(members: Sequence[str]) -> bool:
    """Whether the members, "cpu" or the id of a GPU each, can talk by NCCL, which refuses two of them on one GPU."""
    return "cpu" not in members and len(set(members)) == len(members)


def _identity(device: str) -> str:
    """ "cpu", or what tells this process's GPU from all others, whichever number it has in each process."""
    return device if device == "cpu" else str(torch.cuda.get_device_properties(torch.cuda.current_device()).uuid)


def _aligned(position: int) -> int:
    return -(-position // ALIGNMENT) * ALIGNMENT


def _view(buffer: Tensor, start: int, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    size = dtype.itemsize * torch.Size(shape).numel()
    return buffer[start : start + size].view(dtype).view(shape)
