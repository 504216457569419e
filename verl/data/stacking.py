"""From rows of token ids of different lengths to tensors: prompts padded on the left, what follows on the right."""

from collections.abc import Sequence

import torch
from torch import Tensor

from verl.data.conversations import Encoded


def pad(rows: Sequence[Sequence[int]], fill: int, left: bool = False) -> Tensor:
    """int64 [rows, longest row]."""
    width = max(map(len, rows), default=0)
    padded = torch.full((len(rows), width), fill, dtype=torch.int64)
    for row, values in enumerate(rows):
        start = width - len(values) if left else 0
        padded[row, start : start + len(values)] = torch.tensor(values, dtype=torch.int64)
    return padded


def stack_answers(answers: Sequence[Encoded], pad_id: int) -> dict[str, Tensor]:
    """`input_ids` and `attention_mask` [B, P + R], and `response_mask` [B, R]; P and R are those of the longest row."""
    cuts = [answer.prompt_length for answer in answers]
    prompts = [answer.ids[:cut] for answer, cut in zip(answers, cuts, strict=True)]
    responses = [answer.ids[cut:] for answer, cut in zip(answers, cuts, strict=True)]
    prompt_mask = pad([[1] * len(ids) for ids in prompts], 0, left=True)
    return {
        "input_ids": torch.cat([pad(prompts, pad_id, left=True), pad(responses, pad_id)], dim=1),
        "attention_mask": torch.cat([prompt_mask, pad([[1] * len(ids) for ids in responses], 0)], dim=1),
        "response_mask": pad([answer.trained[cut:] for answer, cut in zip(answers, cuts, strict=True)], 0),
    }
