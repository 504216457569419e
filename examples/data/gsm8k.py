"""Turn local copies of GSM8K (parquet or JSON lines with `question` and `answer`) into train and test files.

python examples/data/gsm8k.py --train gsm8k/main/train-*.parquet --test gsm8k/main/test-*.parquet --out data/gsm8k
"""

import argparse
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from verl.data.files import JoinedRows, open_rows

INSTRUCTION = "Think step by step and write the final answer, a number, after ####."


def final_number(answer: str) -> str:
    """What stands after the last ####, without grouping commas. ValueError without one."""
    _, mark, number = answer.rpartition("####")
    if not mark:
        raise ValueError(f"the answer has no ####: {answer!r:.100}")
    return number.strip().replace(",", "")


def gsm8k_row(row: dict[str, Any], split: str, index: int, instruction: str = INSTRUCTION) -> dict[str, Any]:
    """A row of the public file as a row with the columns that the field's data sets have."""
    return {
        "data_source": "openai/gsm8k",
        "prompt": [{"role": "user", "content": f"{row['question']} {instruction}"}],
        "ability": "math",
        "reward_model": {"style": "rule", "ground_truth": final_number(row["answer"])},
        "extra_info": {"split": split, "index": index, "question": row["question"], "answer": row["answer"]},
    }


def write_gsm8k(folder: Path, train: list[Path], test: list[Path]) -> tuple[Path, Path]:
    """Write train.parquet and test.parquet into `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    files = []
    for split, sources in (("train", train), ("test", test)):
        rows = JoinedRows([open_rows(path, ["question", "answer"]) for path in sources])
        path = folder / f"{split}.parquet"
        table = pa.Table.from_pylist([gsm8k_row(rows[index], split, index) for index in range(len(rows))])
        pq.write_table(table, path)
        files.append(path)
    return files[0], files[1]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--train", type=Path, nargs="+", required=True, help="the public training files")
    parser.add_argument("--test", type=Path, nargs="+", required=True, help="the public test files")
    parser.add_argument("--out", type=Path, required=True, help="folder of train.parquet and test.parquet")
    args = parser.parse_args()
    for file in write_gsm8k(args.out, args.train, args.test):
        print(file)
