"""Rows of a batch as people read them: text, scores, and what the reward functions said."""

import json
import os
from pathlib import Path
from typing import Any

from verl.protocol import DataProto
from verl.trainer.steps import SCORE_COLUMN


def sample_rows(batch: DataProto, tokenizer: Any, limit: int | None = None) -> list[dict[str, Any]]:
    """`input`, `output`, `score`, `tokens` (sampled), then `data_source`, `uid`, `index`, `gts` (the ground truth) and
    whatever the reward functions returned, where the batch has them. A row that was excluded has the score None."""
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
        row |= {name.removeprefix(SCORE_COLUMN): columns[name][number] for name in columns if SCORE_COLUMN in name}
        rows.append(row)
    return rows


def write_rows(folder: str, step: int, rows: list[dict[str, Any]]) -> Path:
    """Write `<folder>/<step>.jsonl`, a JSON object a row, with `step` in each; it replaces the file of an earlier run
    of this step. What JSON cannot hold is written as its text."""
    path = Path(folder) / f"{step}.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    with part.open("w", encoding="utf-8") as file:
        for row in rows:
            file.write(json.dumps({"step": step, **row}, ensure_ascii=False, default=_plain) + "\n")
    os.replace(part, path)
    return path


def _plain(value: Any) -> Any:
    return value.tolist() if hasattr(value, "tolist") else str(value)
