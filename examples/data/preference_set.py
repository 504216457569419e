r"""Turn local copies of a public preference set into train and test files with `prompt`, `chosen`, `rejected`.

    python examples/data/preference_set.py --train helpful/train.jsonl --test helpful/test.jsonl --out data/helpful

`chosen` and `rejected` may be whole dialogues as text ("\n\nHuman: ...\n\nAssistant: ..."), lists of messages, or
answers to a `prompt`. In the files written, `prompt` is a list of messages and the answers are strings.
"""

import argparse
import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from verl.data.files import JoinedRows, open_rows

_TURN = re.compile(r"(?:^|\n\n)(Human|Assistant): ?")
_ROLES = {"Human": "user", "Assistant": "assistant"}

Messages = list[dict[str, str]]


def messages_of(dialogue: Any) -> Messages:
    """A dialogue, text or messages, as messages. ValueError for text without turns."""
    if not isinstance(dialogue, str):
        return [{"role": message["role"], "content": message["content"]} for message in dialogue]
    pieces = _TURN.split(dialogue)
    if len(pieces) < 3:
        raise ValueError(f"the text has no Human: and Assistant: turns: {dialogue!r:.100}")
    return [
        {"role": _ROLES[who], "content": said.strip()} for who, said in zip(pieces[1::2], pieces[2::2], strict=True)
    ]


def preference_row(row: dict[str, Any]) -> dict[str, Any]:
    """One pair. ValueError when the two dialogues differ before their last message, or end with another's turn."""
    prompt = row.get("prompt")
    if prompt is not None and isinstance(row["chosen"], str):
        history = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else messages_of(prompt)
        return {"prompt": history, "chosen": row["chosen"], "rejected": row["rejected"]}
    chosen, rejected = messages_of(row["chosen"]), messages_of(row["rejected"])
    if chosen[:-1] != rejected[:-1] or {chosen[-1]["role"], rejected[-1]["role"]} != {"assistant"}:
        raise ValueError("the two dialogues must be the same up to a last answer of the assistant")
    return {"prompt": chosen[:-1], "chosen": chosen[-1]["content"], "rejected": rejected[-1]["content"]}


def write_preference_set(folder: Path, train: list[Path], test: list[Path]) -> dict[Path, tuple[int, int]]:
    """Write train.parquet and test.parquet into `folder`. Returns, of each, the rows written and those left out since
    they are no pairs (see `preference_row`) or since both answers are the same."""
    folder.mkdir(parents=True, exist_ok=True)
    counts = {}
    for split, sources in (("train", train), ("test", test)):
        rows = JoinedRows([open_rows(path, ["chosen", "rejected"]) for path in sources])
        pairs = []
        for number in range(len(rows)):
            try:
                pair = preference_row(rows[number])
            except ValueError:
                continue
            if pair["chosen"] != pair["rejected"]:
                pairs.append({**pair, "extra_info": {"split": split, "index": number}})
        path = folder / f"{split}.parquet"
        pq.write_table(pa.Table.from_pylist(pairs), path)
        counts[path] = (len(pairs), len(rows) - len(pairs))
    return counts


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--train", type=Path, nargs="+", required=True, help="the public training files")
    parser.add_argument("--test", type=Path, nargs="+", required=True, help="the public test files")
    parser.add_argument("--out", type=Path, required=True, help="folder of train.parquet and test.parquet")
    args = parser.parse_args()
    for file, (written, left_out) in write_preference_set(args.out, args.train, args.test).items():
        print(f"{file}: {written} pairs, {left_out} rows left out")
