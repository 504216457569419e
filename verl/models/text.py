"""The same text in another model's tokens."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from tensordict import TensorDict


class Retokenizer:
    """Turns a batch of one tokenizer's prompts and responses into another's.

    With the chat itself at hand and a chat template in `target`, the conversation is rendered by that template;
    otherwise the text of prompt and response is tokenized as it stands, without the source's special tokens.
    A text longer than `max_length` loses its beginning, so that the response stays.
    """

    def __init__(self, source: Any, target: Any, max_length: int | None = None) -> None:
        self.source = source
        self.target = target
        self.max_length = max_length or getattr(target, "model_max_length", None)

    def __call__(self, batch: TensorDict, raw_prompts: Sequence[Any] | np.ndarray | None = None) -> TensorDict:
        """input_ids, attention_mask and position_ids [B, T], padded on the right."""
        mask = batch["response_mask"].bool()
        prompt_mask = batch["attention_mask"][:, : -mask.shape[1]].bool()
        prompt_ids = batch["input_ids"][:, : -mask.shape[1]]
        rows = []
        for row in range(batch.batch_size[0]):
            answer = self.source.decode(batch["responses"][row][mask[row]], skip_special_tokens=True)
            chat = None if raw_prompts is None else raw_prompts[row]
            if self.target.chat_template and isinstance(chat, Sequence) and not isinstance(chat, str):
                messages = [*chat, {"role": "assistant", "content": answer}]
                text = self.target.apply_chat_template(messages, tokenize=False)
                # The template writes the special tokens itself.
                ids = self.target(text, add_special_tokens=False)["input_ids"]
            else:
                prompt = self.source.decode(prompt_ids[row][prompt_mask[row]], skip_special_tokens=True)
                ids = self.target(prompt + answer)["input_ids"]
            rows.append(ids[-self.max_length :] if self.max_length else ids)
        return self._padded(rows)

    def _padded(self, rows: list[list[int]]) -> TensorDict:
        width = max(map(len, rows), default=0)
        input_ids = torch.full((len(rows), width), self.target.pad_token_id, dtype=torch.long)
        attention_mask = torch.zeros((len(rows), width), dtype=torch.long)
        for row, ids in enumerate(rows):
            input_ids[row, : len(ids)] = torch.tensor(ids)
            attention_mask[row, : len(ids)] = 1
        position_ids = torch.arange(width).expand(len(rows), width) * attention_mask
        return TensorDict(
            {"input_ids": input_ids, "attention_mask": attention_mask, "position_ids": position_ids},
            batch_size=[len(rows)],
        )
