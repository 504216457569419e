"""What a process is doing right now. Memory is in GiB (2**30 bytes)."""

import os
import resource
import sys

import psutil
import torch

_GIB = 2**30


def memory_metrics() -> dict[str, float]:
    """Peaks of this process so far: `perf/peak_rss_gib` and, with CUDA in use, `perf/peak_cuda_gib` (tensors) and
    `perf/peak_cuda_reserved_gib` (what the allocator held)."""
    metrics = {"perf/peak_rss_gib": _peak_rss() / _GIB}
    if torch.cuda.is_initialized():
        metrics["perf/peak_cuda_gib"] = torch.cuda.max_memory_allocated() / _GIB
        metrics["perf/peak_cuda_reserved_gib"] = torch.cuda.max_memory_reserved() / _GIB
    return metrics


def print_memory_usage(label: str = "memory") -> None:
    """Print one line with the resident memory of this process, now and at its peak, and that of its CUDA device."""
    rss = psutil.Process().memory_info().rss
    parts = [f"rss {rss / _GIB:.2f} GiB", f"peak rss {_peak_rss() / _GIB:.2f} GiB"]
    if torch.cuda.is_initialized():
        free, total = torch.cuda.mem_get_info()
        parts += [
            f"cuda {torch.cuda.memory_allocated() / _GIB:.2f} GiB",
            f"peak cuda {torch.cuda.max_memory_allocated() / _GIB:.2f} GiB",
            f"device {(total - free) / _GIB:.2f} of {total / _GIB:.2f} GiB in use",
        ]
    print(f"[{label}, pid {os.getpid()}] " + " | ".join(parts), flush=True)


def _peak_rss() -> int:
    """Bytes. getrusage counts in KiB, except on macOS."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
