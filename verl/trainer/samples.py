"""Rows of a batch as people read them: text, scores, and what the reward functions said."""

import json
import math
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pyarrow.parquet as pq

from verl.protocol import DataProto
from verl.trainer.steps import SCORE_COLUMN

DumpFormat = Literal["jsonl", "parquet"]

_KINDS = {bool: pa.bool_(), int: pa.int64(), float: pa.float64(), str: pa.string()}
_NUMBERS = {"step": pa.int64(), "tokens": pa.int64(), "score": pa.float64()}
"""Columns whose type does not follow from their values, so that one without any (all rows excluded) has it as well."""
_AS_JSON = {b"encoding": b"json"}
"""Metadata of a parquet column that holds JSON text."""


def sample_rows(batch: DataProto, tokenizer: Any, limit: int | None = None) -> list[dict[str, Any]]:
    """`input`, `output`, `score`, `tokens` (sampled), then `data_source`, `uid`, `index`, `gts` (the ground truth) and
    whatever the reward functions returned (as `score/<name>` where the name is one of these), where the batch has
    them. A row that was excluded has the score None."""
    tensors, columns = batch.batch[:limit], batch.non_tensor_batch
    width = tensors["response_mask"].shape[1]
    valid = tensors["attention_mask"].bool()
    prompts = [ids[keep].tolist() for ids, keep in zip(tensors["prompts"], valid[:, :-width], strict=True)]
    responses = [ids[keep].tolist() for ids, keep in zip(tensors["responses"], valid[:, -width:], strict=True)]
    scores, tokens = tensors["token_level_scores"].sum(-1).tolist(), tensors["response_mask"].sum(-1).tolist()
    rows = []
    for number, (prompt, response) in enumerate(zip(prompts, responses, strict=True)):
        row: dict[str, Any] = {
            "input": tokenizer.decode(prompt, skip_special_tokens=True),
            "output": tokenizer.decode(response, skip_special_tokens=True),
            "score": scores[number] if tokens[number] else None,
            "tokens": tokens[number],
        }
        row |= {name: columns[name][number] for name in ("data_source", "uid", "index") if name in columns}
        truth = columns["reward_model"][number] if "reward_model" in columns else None
        if isinstance(truth, dict) and "ground_truth" in truth:
            row["gts"] = truth["ground_truth"]
        for name in (name for name in columns if name.startswith(SCORE_COLUMN)):
            short = name.removeprefix(SCORE_COLUMN)
            row[name if short in row else short] = columns[name][number]
        rows.append(row)
    return rows


def write_rows(folder: str, step: int, rows: Sequence[Mapping[str, Any]], dump_format: DumpFormat = "jsonl") -> Path:
    """Write `<folder>/<step>.jsonl` or `.parquet`, with `step` in each row; it replaces the file of an earlier run of
    this step. `read_rows` gives back what was written.

    What JSON does not have is written as what comes nearest: NaN and infinities as null, arrays as lists, the rest as
    text. A parquet column is of booleans, integers, numbers or text where all its values are of that one kind, and
    otherwise (lists, dicts, kinds that mix) of JSON text.
    """
    path = Path(folder) / f"{step}.{dump_format}"
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    _WRITERS[dump_format](part, [_plain({"step": step, **row}) for row in rows])
    os.replace(part, path)
    return path


def read_rows(path: str | Path) -> list[dict[str, Any]]:
    """The rows of a file that `write_rows` wrote. In parquet a key that a row lacked is None."""
    path = Path(path)
    if path.suffix != ".parquet":
        with path.open(encoding="utf-8") as file:  # splitlines() would also split at U+2028 and the like
            return [json.loads(line) for line in file]
    table = pq.read_table(path)
    rows = table.to_pylist()
    for name in (field.name for field in table.schema if (field.metadata or {}).items() >= _AS_JSON.items()):
        for row in rows:
            row[name] = None if row[name] is None else json.loads(row[name])
    return rows


def _write_jsonl(path: Path, rows: list[dict[str, Any]]) -> None:
    with path.open("w", encoding="utf-8") as file:
        file.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


def _write_parquet(path: Path, rows: list[dict[str, Any]]) -> None:
    columns = {
        name: _column(name, [row.get(name) for row in rows]) for name in dict.fromkeys(k for r in rows for k in r)
    }
    fields = [pa.field(name, array.type, metadata=metadata) for name, (array, metadata) in columns.items()]
    pq.write_table(pa.Table.from_arrays([array for array, _ in columns.values()], schema=pa.schema(fields)), path)


def _column(name: str, values: list[Any]) -> tuple[pa.Array, dict[bytes, bytes] | None]:
    """The values and, when they stand there as JSON text, what says so."""
    chosen = _NUMBERS.get(name) or _type_of({type(value) for value in values if value is not None})
    try:
        if chosen is not None:
            return pa.array(values, chosen), None
    except (ValueError, TypeError, OverflowError):  # such as an integer of more than 64 bits
        pass
    texts = [None if value is None else json.dumps(value, ensure_ascii=False) for value in values]
    return pa.array(texts, pa.string()), _AS_JSON


def _type_of(kinds: set[type]) -> pa.DataType | None:
    """The type of a column of values of these kinds; None when no plain one holds them."""
    if len(kinds) == 1:
        return _KINDS.get(next(iter(kinds)))
    if kinds == {int, float}:
        return pa.float64()
    return None if kinds else pa.string()


_WRITERS: dict[str, Callable[[Path, list[dict[str, Any]]], None]] = {
    "jsonl": _write_jsonl,
    "parquet": _write_parquet,
}


def _plain(value: Any) -> Any:
    """`value` in what JSON has."""
    if hasattr(value, "tolist"):  # a tensor, an array or one of numpy's scalars
        value = value.tolist()
    if isinstance(value, Mapping):
        return {_text(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if value is None or isinstance(value, bool | int) else _text(value)


def _text(value: Any) -> str:
    """Text that can be written; half of a surrogate pair, which UTF-8 cannot hold, is spelt out."""
    return str(value).encode("utf-8", "backslashreplace").decode()
