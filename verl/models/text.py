"""The same text in another model's tokens."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
import torch
from tensordict import TensorDict

from verl.utils.chat import without_null_fields
from verl.utils.control_tokens import ControlTokens

TextFormat = Literal["auto", "chat", "pair", "text"]
TextEnd = Literal["template", "turn"]
_NO_LIMIT = 1 << 24
"""Tokenizers without a limit of their own say a number beyond any model."""
_PROBE = "\ue002"
"""An answer that no template changes and that stands nowhere else."""


class Retokenizer:
    """Turns a batch of one tokenizer's prompts and responses into another's.

    Formats: `chat` renders the conversation, which must be at hand, in the target's chat template; `pair` gives prompt
    and response as two texts, as encoders that score answers were trained; `text` joins the two. `auto` is the first of
    these that can be: the template with a chat, the pair with a separator token, else the text. A text longer than
    `max_length` loses its beginning, so that the response stays. Control tokens of the target that a prompt or response
    spells out are plain text.

    A causal model is asked at the last token, so that token says whether the response had ended: what the template
    writes after an answer (`text_end="turn"`: of that what leads up to its last control token, as verl trains reward
    models), or the EOS of a text. Behind a response of the full width [R] that ends in no control token, which was cut,
    nothing is written.

    ValueError when `chat` is asked of a target without a chat template, or `pair` of one without a separator.
    """

    def __init__(
        self,
        source: Any,
        target: Any,
        max_length: int | None = None,
        text_format: TextFormat = "auto",
        text_end: TextEnd = "template",
    ) -> None:
        self.source = source
        self.target = target
        limit = max_length or getattr(target, "model_max_length", None)
        self.max_length = limit if limit and limit < _NO_LIMIT else None
        self.text_format = text_format
        self.text_end = text_end
        self._source_control, self._control = ControlTokens(source), ControlTokens(target)
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
            sampled = batch["responses"][row][mask[row]].tolist()
            ended = len(sampled) < mask.shape[1] or sampled[-1] in self._source_control.ids
            answer = self.source.decode(sampled, skip_special_tokens=True)
            prompt = self.source.decode(prompt_ids[row][prompt_mask[row]], skip_special_tokens=True)
            rows.append(self._encode(prompt, answer, None if raw_prompts is None else raw_prompts[row], ended))
        return self._padded(rows)

    def _encode(self, prompt: str, answer: str, raw_prompt: Any, ended: bool) -> list[int]:
        chat = raw_prompt if isinstance(raw_prompt, Sequence) and not isinstance(raw_prompt, str) else None
        if self.text_format == "chat" and chat is None:
            raise ValueError("reward.reward_model.text_format=chat needs chats, but the batch has none (raw_prompt)")
        if self.text_format in ("auto", "chat") and chat is not None and self.target.chat_template:
            return self._chat(chat, answer, ended)
        if self.text_format in ("auto", "pair") and getattr(self.target, "sep_token", None):
            return self._tokenize(_question(chat, prompt), answer)
        return self._text(prompt + answer, ended)

    def _chat(self, chat: Sequence[Any], answer: str, ended: bool) -> list[int]:
        text, with_probe = (
            self.target.apply_chat_template(
                self._control.mark([*without_null_fields(chat), {"role": "assistant", "content": content}]),
                tokenize=False,
            )
            for content in (answer, _PROBE)
        )
        end = with_probe.rpartition(_PROBE)[2]  # what the template writes after an answer
        wanted = end if self.text_end == "template" else self._control.up_to_last(end)
        ids = self._control.encode(text.removesuffix(end) + (wanted if ended else ""))
        return ids if self.max_length is None else ids[-self.max_length :]

    def _text(self, text: str, ended: bool) -> list[int]:
        end = self.target.eos_token_id
        if end is None or getattr(self.target, "sep_token", None):  # an encoder's tokenizer, which marks ends itself
            return self._tokenize(text)
        ids = self._tokenize(text, room=1)
        if ids[-1:] == [end]:
            ids.pop()
        return [*ids, end] if ended else ids

    def _tokenize(self, *texts: str, room: int = 0) -> list[int]:
        """With the special tokens that the tokenizer puts around texts; none that is written in them counts as one."""
        limit = None if self.max_length is None else self.max_length - room
        texts = tuple(map(self._control.spaced, texts))
        encoded = self.target(*texts, truncation=limit is not None, max_length=limit)
        return list(encoded["input_ids"])

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
