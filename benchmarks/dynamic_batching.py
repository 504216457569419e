"""What batches of tokens bring over batches of rows, when prompts have very different lengths.

    python benchmarks/dynamic_batching.py [--prompts 96] [--longest 2000] [--batch-size 16]

Prompts of 10 to `--longest` tokens with a long tail (log-normal, median 60). Both ways do the same work on the same
rows in one run: generate a response to each prompt, then one training pass (log-probs, backward) over prompt and
response. Both hold at most as many cells (rows x longest row, padding included) at once: fixed batches of
`--batch-size` rows in random order, and batches of `batch-size x longest` tokens of a PromptDataset. The rounds
alternate; the medians are compared.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from tiny import write_tiny_model
from transformers import AutoModelForCausalLM, AutoTokenizer

from verl.data import PromptDataset
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
    batches: Iterator[dict[str, Any]], engine: HFRolloutEngine, policy: PolicyModel, response_length: int
) -> dict[str, float]:
    """Seconds of rollout and training, rows, and what share of the prompts' cells was padding."""
    spent = {"rollout": 0.0, "training": 0.0}
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
    return {**spent, "rows": float(rows), "padding": 1 - tokens / cells}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompts", type=int, default=96)
    parser.add_argument("--longest", type=int, default=2000)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--response-length", type=int, default=16)
    parser.add_argument("--hidden", type=int, default=128)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = write_tiny_model(Path(name), hidden=args.hidden, layers=args.layers)
        tokenizer = AutoTokenizer.from_pretrained(folder)
        load = lambda: AutoModelForCausalLM.from_pretrained(folder, max_position_embeddings=4096)  # noqa: E731
        engine = HFRolloutEngine(load(), eos_token_ids=[2], micro_batch_size=1 << 20)
        policy = PolicyModel(load())
    prompts = prompts_of_many_lengths(args.prompts, args.longest)
    common = {"max_prompt_length": args.longest}
    fixed = PromptDataset(prompts, tokenizer, **common)
    budget = args.batch_size * args.longest
    dynamic = PromptDataset(prompts, tokenizer, **common, dynamic_batching=True, max_tokens_per_batch=budget)
    rounds: dict[str, list[dict[str, float]]] = {"rows": [], "tokens": []}
    for number in range(args.rounds + 1):  # the first warms up
        for way, batches in (
            ("rows", fixed.batches(args.batch_size, shuffle=True, seed=number)),
            ("tokens", dynamic.batches(shuffle=True, seed=number)),
        ):
            rounds[way].append(work_through(batches, engine, policy, args.response_length))
    medians = {
        way: {key: statistics.median(each[key] for each in found[1:]) for key in found[0]}
        for way, found in rounds.items()
    }
    for way, found in medians.items():
        total = found["rollout"] + found["training"]
        print(
            f"batches of {way:<6}  rollout {found['rollout']:6.2f} s  training {found['training']:6.2f} s  "
            f"{found['rows'] / total:7.1f} rows/s  padding {found['padding']:.0%}"
        )
    for part in ("rollout", "training"):
        print(f"{part}: {medians['rows'][part] / medians['tokens'][part]:.2f} times as fast")
    whole = [found["rollout"] + found["training"] for found in (medians["rows"], medians["tokens"])]
    print(f"together: {whole[0] / whole[1]:.2f} times as fast")


if __name__ == "__main__":
    main()
