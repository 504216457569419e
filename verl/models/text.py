"""The same text in another model's tokens."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
import torch
from tensordict import TensorDict

TextFormat = Literal["auto", "chat", "pair", "text"]
_NO_LIMIT = 1 << 24
"""Tokenizers without a limit of their own say a number beyond any model."""


class Retokenizer:
    """Turns a batch of one tokenizer's prompts and responses into another's.

    Formats: `chat` renders the conversation, which must be at hand, in the target's chat template; `pair` gives prompt
    and response as two texts, as encoders that score answers were trained; `text` joins the two. `auto` is the first of
    these that can be: the template with a chat, the pair with a separator token, else the text. A text longer than
    `max_length` loses its beginning, so that the response stays.

    ValueError when `chat` is asked of a target without a chat template, or `pair` of one without a separator.
    """

    def __init__(
        self, source: Any, target: Any, max_length: int | None = None, text_format: TextFormat = "auto"
    ) -> None:
        self.source = source
        self.target = target
        limit = max_length or getattr(target, "model_max_length", None)
        self.max_length = limit if limit and limit < _NO_LIMIT else None
        self.text_format = text_format
        self.target.truncation_side = "left"
        for wanted, attribute in (("chat", "chat_template"), ("pair", "sep_token")):
            if text_format == wanted and not getattr(target, attribute, None):
                raise ValueError(f"reward.reward_model.text_format={wanted}, but its tokenizer has no {attribute}")

    def __call__(self, batch: TensorDict, raw_prompts: Sequence[Any] | np.ndarray | None = None) -> TensorDict:
        """input_ids, attention_mask and position_ids [B, T], padded on the right."""
        mask = batch["response_mask"].bool()
        prompt_mask = batch["attention_mask"][:, : -mask.shape[1]].bool()
        prompt_ids = batch["input_ids"][:, : -mask.shape[1]]
        rows = []
        for row in range(batch.batch_size[0]):
            answer = self.source.decode(batch["responses"][row][mask[row]], skip_special_tokens=True)
            prompt = self.source.decode(prompt_ids[row][prompt_mask[row]], skip_special_tokens=True)
            rows.append(self._encode(prompt, answer, None if raw_prompts is None else raw_prompts[row]))
        return self._padded(rows)

    def _encode(self, prompt: str, answer: str, raw_prompt: Any) -> list[int]:
        chat = raw_prompt if isinstance(raw_prompt, Sequence) and not isinstance(raw_prompt, str) else None
        if self.text_format == "chat" and chat is None:
            raise ValueError("reward.reward_model.text_format=chat needs chats: set data.return_raw_chat=true")
        cutting = {"truncation": self.max_length is not None, "max_length": self.max_length}
        if self.text_format in ("auto", "chat") and chat is not None and self.target.chat_template:
            text = self.target.apply_chat_template([*chat, {"role": "assistant", "content": answer}], tokenize=False)
            ids = self.target(text, add_special_tokens=False, **cutting)[
                "input_ids"
            ]  # the template wrote the special ones
        elif self.text_format in ("auto", "pair") and getattr(self.target, "sep_token", None):
            ids = self.target(_question(chat, prompt), answer, **cutting)["input_ids"]
        else:
            ids = self.target(prompt + answer, **cutting)["input_ids"]
        return list(ids)

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


def keep_last(attention_mask: torch.Tensor, count: int) -> torch.Tensor:
    """The attention mask [B, L] with only the last `count` tokens of each row left."""
    from_end = attention_mask.flip(-1).cumsum(-1).flip(-1)
    return attention_mask * (from_end <= count)


def _question(chat: Sequence[Any] | None, prompt: str) -> str:
    """What was asked, without the marks of another model's chat template."""
    if chat is None:
        return prompt
    return "\n".join(str(message["content"]) for message in chat if isinstance(message, Mapping))
