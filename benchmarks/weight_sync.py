"""How fast and in how much memory new weights reach vLLM, against one plain copy of the same tensors.

    python benchmarks/weight_sync.py [--sizes 135 500] [--bucket 64] [--dtype bf16] [--repeats 5]

Random Llama models of about so many million weights, in fp32 as a trainer holds them. Peak memory is what a sync adds
at its highest to the resident memory before it (Linux only).
"""

import argparse
import statistics
import time
from collections.abc import Iterator
from pathlib import Path

import verl  # noqa: F401 (before torch: it lets OpenMP's waiting threads sleep)

# isort: split
import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from verl.rollout import vLLMRolloutEngine
from verl.rollout.vllm_setup import VLLMSettings
from verl.rollout.weight_sync import sync_weights
from verl.utils.backends import resolve_dtype

MIB = 2**20
SHAPES = {  # million weights -> width, layers, attention heads, key/value heads
    135: (576, 30, 9, 3),
    500: (1024, 36, 16, 4),
}


def status(field: str) -> float:
    """A line of /proc/self/status, in MiB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(field)).split()[1]) / 1024


def forget_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5")


def build(size: int) -> LlamaForCausalLM:
    width, layers, heads, key_heads = SHAPES[size]
    config = LlamaConfig(
        vocab_size=49152,
        hidden_size=width,
        intermediate_size=8 * width // 3 // 32 * 32,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=key_heads,
        max_position_embeddings=256,
        tie_word_embeddings=True,
    )
    return LlamaForCausalLM(config).requires_grad_(False)


def cast(model: LlamaForCausalLM, dtype: torch.dtype) -> Iterator[tuple[str, Tensor]]:
    """As a trainer hands its weights over: one at a time, in the rollout's dtype."""
    return ((name, weight.to(dtype)) for name, weight in model.named_parameters())


def start(model: LlamaForCausalLM, dtype: torch.dtype) -> vLLMRolloutEngine:
    engine = vLLMRolloutEngine.for_module(model, dtype, "cpu", 0, VLLMSettings(max_model_len=64, max_num_seqs=4))
    sync_weights(cast(model, dtype), engine, 0, 64 * MIB)
    return engine


def compare(size: int, dtype: torch.dtype, bucket: int, repeats: int) -> None:
    model = build(size)
    engine = start(model, dtype)
    copy = {name: weight.to(dtype) for name, weight in model.named_parameters()}
    total = sum(weight.nbytes for weight in copy.values())
    layer = max(weight.nbytes for weight in copy.values())
    seconds: dict[str, list[float]] = {"sync": [], "copy": []}
    peaks = []
    for _ in range(repeats):
        began = time.perf_counter()
        for name, weight in model.named_parameters():
            copy[name].copy_(weight)
        seconds["copy"].append(time.perf_counter() - began)
        forget_peak()
        before, began = status("VmRSS"), time.perf_counter()
        sync_weights(cast(model, dtype), engine, 1, bucket * MIB)
        seconds["sync"].append(time.perf_counter() - began)
        peaks.append(status("VmHWM") - before)
    middle = {what: statistics.median(taken) for what, taken in seconds.items()}
    for what, taken in middle.items():
        print(f"{total / MIB:5.0f} MiB  {what}  {taken:6.3f} s  {total / taken / 1e9:6.2f} GB/s")
    print(
        f"{total / MIB:5.0f} MiB  a sync takes {middle['sync'] / middle['copy']:.1f} copies, and at its peak "
        f"{statistics.median(peaks):.0f} MiB more (bucket {bucket} MiB, largest weight {layer / MIB:.0f} MiB)"
    )
    engine.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=[135, 500], choices=(135, 500))
    parser.add_argument("--bucket", type=int, default=64, help="MiB")
    parser.add_argument("--dtype", default="bf16", help="of the rollout: fp32 or bf16")
    parser.add_argument("--repeats", type=int, default=5)
    args = parser.parse_args()
    for size in args.sizes:
        compare(size, resolve_dtype(args.dtype, "cpu"), args.bucket, args.repeats)


if __name__ == "__main__":
    main()
