"""How fast prompts are read, put into the chat template and tokenized, and what memory their rows take.

    python benchmarks/data.py [--rows 200000] [--workers 2] [--memory-rows 200000 2000000]

The same work three ways: RLHFDataset's measuring of prompts with one process and with `--workers`, a plain loop over
`tokenizer.apply_chat_template`, and, where the package `datasets` is installed, its `map` with as many processes. Then
the training loader, which also pads and collates. Memory is that of a new process after it has opened the file and read
1,000 rows of it: resident, and the part of it that is its own (the rest is file that the system may drop).
"""

import argparse
import importlib.util
import json
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pyarrow.parquet as pq
from transformers import AutoTokenizer, PreTrainedTokenizerBase, PreTrainedTokenizerFast

from verl.config import DataConfig
from verl.data import RLHFDataset, build_dataloader
from verl.data.files import open_rows

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


def seconds(work: Callable[[], Any]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def plain_loop(path: Path, tokenizer: PreTrainedTokenizerBase) -> list[int]:
    table = pq.read_table(path)
    return [len(tokenizer.apply_chat_template(row["prompt"])["input_ids"]) for row in table.to_pylist()]


def datasets_map(path: Path, tokenizer: PreTrainedTokenizerBase, workers: int) -> None:
    import datasets

    datasets.disable_progress_bars()
    rows = datasets.Dataset.from_parquet(str(path), cache_dir=tempfile.mkdtemp(dir=path.parent))
    rows.map(lambda row: tokenizer.apply_chat_template(row["prompt"]), num_proc=workers if workers > 1 else None)


def memory_of(path: Path) -> dict[str, float]:
    """MiB of a new process that holds the rows."""
    done = subprocess.run([sys.executable, __file__, "--hold", str(path)], capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def hold(path: Path) -> None:
    before = psutil.Process().memory_info()
    rows = open_rows(path, ["prompt", "data_source"])
    for number in range(0, len(rows), max(len(rows) // 1000, 1)):
        rows[number]
    after = psutil.Process().memory_info()
    own = (after.rss - after.shared) - (before.rss - before.shared)  # shared is what lies in files
    print(json.dumps({"resident": (after.rss - before.rss) / 2**20, "own": own / 2**20}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--memory-rows", type=int, nargs="*", default=[200_000, 2_000_000])
    parser.add_argument("--hold", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.hold:
        hold(args.hold)
        return
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_tokenizer(folder / "tokenizer")
        tokenizer = AutoTokenizer.from_pretrained(folder / "tokenizer")
        file = write_rows(folder / "rows.parquet", args.rows)
        config = DataConfig(max_prompt_length=512, filter_overlong_prompts=True)

        def ours(workers: int) -> RLHFDataset:
            config.filter_overlong_prompts_workers = workers
            return RLHFDataset(str(file), tokenizer, config)

        figures = {
            "plain loop": seconds(lambda: plain_loop(file, tokenizer)),
            "RLHFDataset, 1": seconds(lambda: ours(1)),
        }
        figures[f"RLHFDataset, {args.workers}"] = seconds(lambda: ours(args.workers))
        if importlib.util.find_spec("datasets") is not None:
            for workers in (1, args.workers):
                figures[f"datasets.map, {workers}"] = seconds(lambda w=workers: datasets_map(file, tokenizer, w))
        dataset = ours(args.workers)
        loader = build_dataloader(dataset, config, train=True, batch_size=256, seed=0)
        figures["training loader"] = seconds(lambda: sum(1 for _ in loader))
        base = figures["plain loop"]
        for what, spent in figures.items():
            print(f"{what:<20} {args.rows / spent:>9.0f} rows/s   {base / spent:>5.2f} x the plain loop", flush=True)
        for count in args.memory_rows:
            path = write_rows(folder / f"{count}.parquet", count)
            first, again = memory_of(path), memory_of(path)
            size = path.stat().st_size / 2**20
            print(
                f"memory of {count} rows ({size:.0f} MiB parquet): first {_mib(first)}; again {_mib(again)}", flush=True
            )


def _mib(memory: dict[str, float]) -> str:
    return f"{memory['resident']:.0f} MiB resident, {memory['own']:.0f} MiB own"


if __name__ == "__main__":
    main()
