"""What batches of tokens bring over batches of rows, when prompts have very different lengths.

    python benchmarks/dynamic_batching.py [--prompts 256] [--longest 2000] [--batch-size 16]

Prompts of 10 to `--longest` tokens with a long tail (log-normal, median 60). All ways do the same work on the same
rows in one run: generate a response to each prompt, then one training pass (log-probs, backward) over prompt and
response. All hold at most as many cells (rows x longest row, padding included) at once:

    rows       fixed batches of `--batch-size` rows in random order
    by length  the same, of rows of near length (data.sampler.name=length)
    tokens     batches of `batch-size x longest` cells (PromptDataset with dynamic_batching)

The rounds alternate; the medians are compared, by the clock and by CPU time, which other work on the machine does not
change.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
from tiny import write_tiny_model
from transformers import AutoModelForCausalLM, AutoTokenizer

from verl.config import DataConfig
from verl.config.data import SamplerConfig
from verl.data import PromptDataset, build_dataloader
from verl.models.policy import PolicyModel
from verl.protocol import DataProto
from verl.rollout.base import Sampling
from verl.rollout.batching import prompts_from, responses_to_batch
from verl.rollout.hf_engine import HFRolloutEngine

MEDIAN, SPREAD, SHORTEST = 60, 1.2, 10


def prompts_of_many_lengths(count: int, longest: int, seed: int = 0) -> list[str]:
    lengths = np.random.default_rng(seed).lognormal(np.log(MEDIAN), SPREAD, count).clip(SHORTEST, longest).astype(int)
    return ["x" * length for length in lengths]


def work_through(
    batches: Iterable[dict[str, Any]], engine: HFRolloutEngine, policy: PolicyModel, response_length: int
) -> dict[str, float]:
    """Seconds of rollout and training, rows, and what share of the prompts' cells was padding."""
    spent = {"rollout": 0.0, "training": 0.0}
    began = time.process_time()
    rows = cells = tokens = 0
    for columns in batches:
        batch = DataProto.from_single_dict(columns).batch
        rows, cells, tokens = (
            rows + len(batch),
            cells + batch["input_ids"].numel(),
            tokens + int(batch["attention_mask"].sum()),
        )
        started = time.perf_counter()
        sampling = Sampling(max_tokens=response_length, ignore_eos=True)
        completions = engine.generate(prompts_from(batch), sampling, seeds=list(range(len(batch))))
        generated = time.perf_counter()
        full = responses_to_batch(batch, completions, response_length, pad_token_id=0)
        policy.zero_grad()
        policy(full)["log_probs"].sum().backward()
        spent["rollout"] += generated - started
        spent["training"] += time.perf_counter() - generated
    return {**spent, "cpu": time.process_time() - began, "rows": float(rows), "padding": 1 - tokens / cells}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompts", type=int, default=256)
    parser.add_argument("--longest", type=int, default=2000)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--response-length", type=int, default=16)
    parser.add_argument("--hidden", type=int, default=64)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=2)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = write_tiny_model(Path(name), hidden=args.hidden, layers=args.layers)
        tokenizer = AutoTokenizer.from_pretrained(folder)
        load = lambda: AutoModelForCausalLM.from_pretrained(folder, max_position_embeddings=4096)  # noqa: E731
        engine = HFRolloutEngine(load(), eos_token_ids=[2], micro_batch_size=1 << 20)
        policy = PolicyModel(load())
    prompts = prompts_of_many_lengths(args.prompts, args.longest)
    common = {"max_prompt_length": args.longest}
    rows = PromptDataset(prompts, tokenizer, **common)
    cells = args.batch_size * args.longest
    packed = PromptDataset(prompts, tokenizer, **common, dynamic_batching=True, max_tokens_per_batch=cells)
    by_length = DataConfig(sampler=SamplerConfig("length"))
    ways: dict[str, Callable[[int], Iterable[dict[str, Any]]]] = {
        "rows": lambda seed: rows.batches(args.batch_size, shuffle=True, seed=seed),
        "by length": lambda seed: build_dataloader(rows, by_length, train=True, batch_size=args.batch_size, seed=seed),
        "tokens": lambda seed: packed.batches(shuffle=True, seed=seed),
    }
    rounds: dict[str, list[dict[str, float]]] = {way: [] for way in ways}
    for number in range(args.rounds + 1):  # the first warms up
        for way, batches in ways.items():
            rounds[way].append(work_through(batches(number), engine, policy, args.response_length))
    medians = {
        way: {key: statistics.median(each[key] for each in found[1:]) for key in found[0]}
        for way, found in rounds.items()
    }
    base = medians["rows"]
    for way, found in medians.items():
        total, base_total = (each["rollout"] + each["training"] for each in (found, base))
        print(
            f"batches of {way:<9} rollout {found['rollout']:6.2f} s ({base['rollout'] / found['rollout']:.2f} x), "
            f"training {found['training']:6.2f} s ({base['training'] / found['training']:.2f} x), together "
            f"{found['rows'] / total:6.1f} rows/s ({base_total / total:.2f} x; by CPU time "
            f"{base['cpu'] / found['cpu']:.2f} x), padding {found['padding']:.0%}"
        )


if __name__ == "__main__":
    main()
