"""Write sums with right and wrong answers, for training without rollouts. A wrong answer is that to some other sum.

    python examples/data/preferences.py --out data/preferences --kind pairs

Kinds: `pairs` (prompt, chosen, rejected), `judged` (prompt, completion, label), `answers` (prompt, response).
"""

import argparse
import json
import random
from pathlib import Path
from typing import Any


def _rows(a: int, b: int, largest: int, kind: str, rng: random.Random) -> list[dict[str, Any]]:
    prompt, right = f"{a}+{b}=", str(a + b)
    wrong = str(rng.choice([number for number in range(2, 2 * largest + 1) if number != a + b]))
    if kind == "answers":
        return [{"prompt": prompt, "response": right}]
    if kind == "pairs":
        return [{"prompt": prompt, "chosen": right, "rejected": wrong}]
    judged = [(right, True), (wrong, False)]
    return [{"prompt": prompt, "completion": answer, "label": label} for answer, label in judged]


def write_preferences(
    folder: Path, kind: str, largest: int = 50, test_size: int = 200, seed: int = 0
) -> tuple[Path, Path]:
    """Write train.jsonl and test.jsonl into `folder`: all sums of numbers up to `largest`, `test_size` held out."""
    if kind not in ("pairs", "judged", "answers"):
        raise ValueError(f"kind must be pairs, judged or answers, not {kind!r}")
    rng = random.Random(seed)
    sums = [(a, b) for a in range(1, largest + 1) for b in range(1, largest + 1)]
    if not 0 < test_size < len(sums):
        raise ValueError(f"test_size must be from 1 to {len(sums) - 1} (all sums up to {largest}), not {test_size}")
    rng.shuffle(sums)
    folder.mkdir(parents=True, exist_ok=True)
    files = folder / "train.jsonl", folder / "test.jsonl"
    for path, part in zip(files, (sums[test_size:], sums[:test_size]), strict=True):
        rows = [row for a, b in part for row in _rows(a, b, largest, kind, rng)]
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return files


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder of train.jsonl and test.jsonl")
    parser.add_argument("--kind", default="pairs", help="pairs, judged or answers")
    args = parser.parse_args()
    for file in write_preferences(args.out, args.kind):
        print(file)
