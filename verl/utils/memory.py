"""Memory of this machine, and of this process and its device, now and at its peak. Figures named `*_gib` are in GiB
(2**30 bytes), all others in bytes."""

import os
import re
import resource
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil
import torch

GIB = 2**30


CONTROL_GROUP = Path("/sys/fs/cgroup")
"""Where a container sees its own control group (version 2)."""


def total_memory() -> int:
    """What this machine has, or the container that this process is in may use of it."""
    total = psutil.virtual_memory().total
    limit = _container_limit()
    return total if limit is None else min(total, limit)


def available_memory() -> int:
    """What can still be taken: of this machine, or of what its container is allowed."""
    available = psutil.virtual_memory().available
    limit = _container_limit()
    if limit is None:
        return available
    used = int((CONTROL_GROUP / "memory.current").read_text())
    # Files that were read count as used, but make room for others, as in psutil's figure.
    files = re.search(r"^inactive_file (\d+)$", (CONTROL_GROUP / "memory.stat").read_text(), re.MULTILINE)
    assert files is not None
    return max(0, min(available, limit - used + int(files[1])))


def gpu_memory() -> int:
    """What a GPU of this machine has. Unlike the question how much of it is free, this opens no context on it."""
    return int(torch.cuda.get_device_properties(0).total_memory)


def _container_limit() -> int | None:
    file = CONTROL_GROUP / "memory.max"  # the whole machine's group has none
    text = file.read_text().strip() if file.exists() else "max"
    return None if text == "max" else int(text)


@dataclass(frozen=True)
class MemoryUsage:
    """What one process uses. The device's figures are None where the process has no memory of a CUDA device.

    Attributes:
        rss, peak_rss: resident memory, now and at most since `reset_peaks`, or since the process began.
        allocated, peak_allocated: memory of tensors on the device, likewise.
        reserved: what the process's allocator holds of the device.
        device_used, device_total: of the whole device, whoever uses it.
    """

    node: str
    pid: int
    rss: int
    peak_rss: int
    device: str = "cpu"
    allocated: int | None = None
    peak_allocated: int | None = None
    reserved: int | None = None
    device_used: int | None = None
    device_total: int | None = None

    @staticmethod
    def here() -> "MemoryUsage":
        """That of this process."""
        rss = psutil.Process().memory_info().rss
        usage = MemoryUsage(socket.gethostname(), os.getpid(), rss, max(rss, _peak_rss()))
        if not torch.cuda.is_initialized() or not torch.cuda.memory_reserved():
            return usage  # asking a device takes a part of its memory, for good
        free, total = torch.cuda.mem_get_info()
        return MemoryUsage(
            usage.node,
            usage.pid,
            usage.rss,
            usage.peak_rss,
            device=f"cuda:{torch.cuda.current_device()}",
            allocated=torch.cuda.memory_allocated(),
            peak_allocated=torch.cuda.max_memory_allocated(),
            reserved=torch.cuda.memory_reserved(),
            device_used=total - free,
            device_total=total,
        )


class PeakMemory:
    """Peaks of this process: `perf/peak_rss_gib` and, with CUDA in use, `perf/peak_cuda_gib` (tensors) and
    `perf/peak_cuda_reserved_gib` (what the allocator held), of all time and of phases, such as
    `perf/peak_rss_gib/update_actor`."""

    def __init__(self) -> None:
        self._highest: dict[str, float] = {}
        self._phases: dict[str, float] = {}

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Measure the block's peaks: of resident memory where the kernel can reset its mark (Linux), and of CUDA."""
        self._keep(_peaks())
        measured = reset_peaks()
        try:
            yield
        finally:
            peaks = _peaks()
            self._keep(peaks)
            for key in measured & peaks.keys():
                place = f"{key}/{name}"
                self._phases[place] = max(peaks[key], self._phases.get(place, 0.0))

    def take(self) -> dict[str, float]:
        """The peaks of all time, and of the phases since the last call of this."""
        self._keep(_peaks())
        phases, self._phases = self._phases, {}
        return self._highest | phases

    def _keep(self, peaks: dict[str, float]) -> None:
        self._highest |= {key: max(value, self._highest.get(key, 0.0)) for key, value in peaks.items()}


def reset_peaks() -> set[str]:
    """Let the peaks start again from what is used now. Returns which of `PeakMemory`'s can."""
    done: set[str] = set()
    if torch.cuda.is_initialized():
        torch.cuda.reset_peak_memory_stats()
        done |= {"perf/peak_cuda_gib", "perf/peak_cuda_reserved_gib"}
    try:
        Path("/proc/self/clear_refs").write_text("5")  # see proc(5)
        done.add("perf/peak_rss_gib")
    except OSError:  # not Linux, or a container that forbids it
        pass
    return done


def _peaks() -> dict[str, float]:
    peaks = {"perf/peak_rss_gib": _peak_rss() / GIB}
    if torch.cuda.is_initialized():
        peaks["perf/peak_cuda_gib"] = torch.cuda.max_memory_allocated() / GIB
        peaks["perf/peak_cuda_reserved_gib"] = torch.cuda.max_memory_reserved() / GIB
    return peaks


def _peak_rss() -> int:
    """Bytes."""
    # Of the two only VmHWM can be reset, and getrusage counts what the parent had when it started this process, too.
    mark = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text()) if sys.platform == "linux" else None
    if mark is not None:
        return int(mark[1]) * 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
