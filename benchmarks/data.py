"""How fast prompts are read, put into the chat template and tokenized, and what memory their rows take.

    python benchmarks/data.py [--rows 200000] [--workers 2] [--rounds 1] [--memory-rows 200000 2000000]

The same work in one run, in rounds that alternate; medians are compared:

    datasets.map     of the package `datasets` (pip install datasets), row by row, which writes the ids to a file
    plain loop       `tokenizer.apply_chat_template` over the rows
    RLHFDataset      opening the file and measuring all prompts for the overlong filter
    loader           going through a training epoch: items, padded and collated to batches of 256

each with 1 process and with `--workers`, by the clock and by CPU time, which other work on the machine does not change.
Memory is that of a new process after it has opened the file and read 1,000
items of it: resident, and the part of it that is its own (the rest is file that the system may drop).
"""

import argparse
import importlib.util
import json
import math
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import pyarrow as pa
import pyarrow.parquet as pq
from transformers import AutoTokenizer, PreTrainedTokenizerBase, PreTrainedTokenizerFast

from verl.config import DataConfig
from verl.data import RLHFDataset, build_dataloader

TEMPLATE = "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}\n{% endfor %}<|assistant|>"
WORDS = tuple(
    "what is the sum of two numbers that a train leaves station at noon while every third apple costs five".split()  # noqa: SIM905
)
_WRITE_AT_ONCE = 50_000


def write_tokenizer(folder: Path) -> None:
    """A byte-level BPE of 400 tokens, trained on the words of the prompts."""
    from tokenizers import ByteLevelBPETokenizer

    trained = ByteLevelBPETokenizer()
    trained.train_from_iterator([" ".join(WORDS)] * 100, vocab_size=400, min_frequency=1, special_tokens=["<eos>"])
    PreTrainedTokenizerFast(
        tokenizer_object=trained._tokenizer, eos_token="<eos>", pad_token="<eos>", chat_template=TEMPLATE
    ).save_pretrained(folder)


def prompt_rows(count: int) -> Iterator[dict[str, Any]]:
    """Chats of 5 to 60 words."""
    rng = random.Random(0)
    for index in range(count):
        question = " ".join(rng.choices(WORDS, k=rng.randint(5, 60)))
        yield {
            "data_source": "bench",
            "prompt": [{"role": "user", "content": question}],
            "reward_model": {"style": "rule", "ground_truth": str(index)},
            "extra_info": {"index": index, "split": "train"},
        }


def write_rows(path: Path, count: int) -> Path:
    rows = prompt_rows(count)
    with pq.ParquetWriter(path, pa.Table.from_pylist(list(prompt_rows(1))).schema) as writer:
        for start in range(0, count, _WRITE_AT_ONCE):
            part = [next(rows) for _ in range(min(_WRITE_AT_ONCE, count - start))]
            writer.write_table(pa.Table.from_pylist(part, schema=writer.schema))
    return path


class Spent(NamedTuple):
    """Seconds of the clock, and of CPU time, that of processes started meanwhile included."""

    wall: float
    cpu: float


def seconds(work: Callable[[], Any]) -> Spent:
    wall, cpu = time.perf_counter(), sum(os.times()[:4])
    work()
    return Spent(time.perf_counter() - wall, sum(os.times()[:4]) - cpu)


def plain_loop(path: Path, tokenizer: PreTrainedTokenizerBase) -> list[int]:
    table = pq.read_table(path)
    return [len(tokenizer.apply_chat_template(row["prompt"])["input_ids"]) for row in table.to_pylist()]


def datasets_map(path: Path, tokenizer: PreTrainedTokenizerBase, workers: int) -> None:
    import datasets

    datasets.disable_progress_bars()
    with tempfile.TemporaryDirectory(dir=path.parent) as cache:  # or it would find what it wrote before
        rows = datasets.Dataset.from_parquet(str(path), cache_dir=cache)
        rows.map(lambda row: tokenizer.apply_chat_template(row["prompt"]), num_proc=workers if workers > 1 else None)


def measure(path: Path, tokenizer: PreTrainedTokenizerBase, workers: int) -> RLHFDataset:
    config = DataConfig(filter_overlong_prompts=True, filter_overlong_prompts_workers=workers)
    return RLHFDataset(str(path), tokenizer, config)


def epoch(path: Path, tokenizer: PreTrainedTokenizerBase, workers: int) -> None:
    config = DataConfig(dataloader_num_workers=workers if workers > 1 else 0)
    dataset = RLHFDataset(str(path), tokenizer, config)
    for _ in build_dataloader(dataset, config, train=True, batch_size=256, seed=0):
        pass


def compare(path: Path, tokenizer: PreTrainedTokenizerBase, rows: int, workers: int, rounds: int) -> None:
    """Print rows/s of each way, and how that compares with datasets.map in as many processes."""
    ways: dict[tuple[str, int], Callable[[], Any]] = {("plain loop", 1): lambda: plain_loop(path, tokenizer)}
    for count in dict.fromkeys((1, workers)):
        if importlib.util.find_spec("datasets") is not None:
            ways["datasets.map", count] = lambda n=count: datasets_map(path, tokenizer, n)
        ways["RLHFDataset", count] = lambda n=count: measure(path, tokenizer, n)
        ways["loader", count] = lambda n=count: epoch(path, tokenizer, n)
    spent: dict[tuple[str, int], list[Spent]] = {way: [] for way in ways}
    for _ in range(rounds):
        for way, work in ways.items():
            spent[way].append(seconds(work))
            print(".", end="", flush=True)
    print()
    medians = {way: Spent(*map(statistics.median, zip(*found, strict=True))) for way, found in spent.items()}
    for (name, count), median in medians.items():
        base = medians.get(("datasets.map", count), Spent(math.nan, math.nan))
        print(
            f"{name:<12} {count} process{'es' if count > 1 else '  '} "
            f"{rows / median.wall:>7.0f} rows/s, {base.wall / median.wall:>4.2f} x datasets.map; "
            f"{rows / median.cpu:>7.0f} rows per second of CPU, {base.cpu / median.cpu:>4.2f} x datasets.map"
        )


def memory_of(path: Path, tokenizer: Path) -> dict[str, float]:
    """MiB of a new process that holds the rows."""
    command = [sys.executable, __file__, "--hold", str(path), str(tokenizer)]
    return json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def hold(path: str, tokenizer_folder: str) -> None:
    tokenizer = AutoTokenizer.from_pretrained(tokenizer_folder)
    process = psutil.Process()
    before = process.memory_info()
    dataset = RLHFDataset(path, tokenizer, DataConfig())
    for number in range(0, len(dataset), max(len(dataset) // 1000, 1)):
        dataset[number]
    after = process.memory_info()
    own = (after.rss - after.shared) - (before.rss - before.shared)  # shared is what lies in files
    print(json.dumps({"resident": (after.rss - before.rss) / 2**20, "own": own / 2**20}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--memory-rows", type=int, nargs="*", default=[200_000, 2_000_000])
    parser.add_argument("--hold", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.hold:
        hold(*args.hold)
        return
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        os.environ["VERL_CACHE_DIR"] = str(folder / "cache")
        write_tokenizer(folder / "tokenizer")
        tokenizer = AutoTokenizer.from_pretrained(folder / "tokenizer")
        if args.rounds:
            file = write_rows(folder / "rows.parquet", args.rows)
            compare(file, tokenizer, args.rows, args.workers, args.rounds)
        for count in args.memory_rows:
            path = write_rows(folder / f"{count}.parquet", count)
            first, again = (memory_of(path, folder / "tokenizer") for _ in range(2))
            size = path.stat().st_size / 2**20
            print(
                f"memory of {count} rows ({size:.0f} MiB parquet): first {_mib(first)}; again {_mib(again)}", flush=True
            )


def _mib(memory: dict[str, float]) -> str:
    return f"{memory['resident']:.0f} MiB resident, {memory['own']:.0f} MiB own"


if __name__ == "__main__":
    main()
