"""Batches of responses, as the generation step leaves them."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from verl.protocol import DataProto


@pytest.fixture
def responses_batch(tiny_tokenizer: Any) -> Callable[..., DataProto]:
    """`responses_batch(["text", ...], prompts=[...], **columns)` -> rows of ground truth "2" and data_source "s"."""

    def build(responses: list[str], prompts: list[str] | None = None, **columns: list[Any]) -> DataProto:
        rows = len(responses)
        answers = [[*tiny_tokenizer(text)["input_ids"], tiny_tokenizer.eos_token_id] for text in responses]
        questions = [tiny_tokenizer(text)["input_ids"] for text in (prompts or ["1+1="] * rows)]
        width, left = max(map(len, answers)) + 1, max(map(len, questions))
        padded = torch.tensor([row + [0] * (width - len(row)) for row in answers])
        mask = torch.tensor([[1] * len(row) + [0] * (width - len(row)) for row in answers])
        prompt = torch.tensor([[0] * (left - len(row)) + row for row in questions])
        prompt_mask = torch.tensor([[0] * (left - len(row)) + [1] * len(row) for row in questions])
        tensors = {
            "prompts": prompt,
            "responses": padded,
            "response_mask": mask,
            "attention_mask": torch.cat([prompt_mask, mask], dim=1),
        }
        objects: dict[str, Any] = {}
        default = {"data_source": ["s"] * rows, "reward_model": [{"ground_truth": "2"}] * rows}
        for key, values in {**default, **columns}.items():
            objects[key] = np.empty(rows, dtype=object)
            objects[key][:] = values
        return DataProto.from_dict(tensors, non_tensors=objects)

    return build
