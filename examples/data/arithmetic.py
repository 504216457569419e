"""Write an arithmetic data set: sums as raw prompts, the answer as ground truth.

A prompt shows one solved sum and asks for another ("7+5=12\\n12+7="), so that a language model sees what is wanted.

    python examples/data/arithmetic.py --out data/arithmetic

Train and test hold different sums. Each row has the columns that the field's data sets have.
"""

import argparse
import random
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

TEMPLATE = "7+5=12\n{a}+{b}="


def arithmetic_rows(largest: int, template: str, split: str, pairs: list[tuple[int, int]]) -> list[dict]:
    """One row for each (a, b); `template` has the fields {a} and {b}."""
    return [
        {
            "data_source": "arithmetic",
            "prompt": template.format(a=a, b=b),
            "ability": "math",
            "reward_model": {"style": "rule", "ground_truth": str(a + b)},
            "extra_info": {"split": split, "index": index, "largest": largest},
        }
        for index, (a, b) in enumerate(pairs)
    ]


def write_arithmetic(
    folder: Path, largest: int = 20, test_size: int = 150, template: str = TEMPLATE, seed: int = 0
) -> tuple[Path, Path]:
    """Write train.parquet and test.parquet into `folder`: sums of 0 to `largest`, `test_size` of them held out."""
    pairs = [(a, b) for a in range(largest + 1) for b in range(largest + 1)]
    if not 0 < test_size < len(pairs):
        raise ValueError(f"test_size must be from 1 to {len(pairs) - 1} (all sums up to {largest}), not {test_size}")
    random.Random(seed).shuffle(pairs)
    folder.mkdir(parents=True, exist_ok=True)
    files = []
    for split, part in (("train", pairs[test_size:]), ("test", pairs[:test_size])):
        path = folder / f"{split}.parquet"
        pq.write_table(pa.Table.from_pylist(arithmetic_rows(largest, template, split, part)), path)
        files.append(path)
    return files[0], files[1]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder of train.parquet and test.parquet")
    parser.add_argument("--largest", type=int, default=20, help="largest number that is added")
    parser.add_argument("--test-size", type=int, default=150, help="sums that are held out")
    parser.add_argument("--template", default=TEMPLATE, help="the prompt, with the fields {a} and {b}")
    args = parser.parse_args()
    for file in write_arithmetic(args.out, args.largest, args.test_size, args.template):
        print(file)
