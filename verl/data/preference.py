"""Preferences: pairs of answers to one prompt, and answers with a judgement of their own."""

import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from verl.config import PairDataConfig, PreferenceDataConfig
from verl.data.columns import DataFiles, RowTooLongError, open_with_columns, short_enough
from verl.data.conversations import Encoded, conversation_encoder
from verl.data.files import Row
from verl.data.prompts import Prompt, located, pad_token_id
from verl.data.rl_dataset import rows_used
from verl.data.stacking import stack_answers

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

logger = logging.getLogger(__name__)

_TURN = re.compile(r"(?:\A|\n\n)(Human|Assistant): ?")
"""What begins a turn of a dialogue that is written out as text, as public preference sets have it."""

Answer = str | Sequence[Mapping[str, Any]]
"""Text, the messages that follow the prompt, or a whole chat with the prompt in it."""


@dataclass(frozen=True)
class Pair:
    index: int
    chosen: Encoded
    rejected: Encoded


@dataclass(frozen=True)
class Judged:
    index: int
    answer: Encoded
    desirable: bool


class AnswerEncoder:
    """Prompt and answer as token ids, within the lengths of `config`."""

    def __init__(self, tokenizer: "PreTrainedTokenizerBase", config: PairDataConfig) -> None:
        self._config = config
        self._encode = conversation_encoder(tokenizer, config)
        self._warned = False

    def __call__(self, prompt: Prompt, answer: Answer, whole: bool = False) -> Encoded:
        """ValueError for an answer that is no answer to `prompt`. With `truncation="error"`, or if it must be `whole`,
        RowTooLongError for one that is too long."""
        if isinstance(answer, str):
            encoded = self._encode.answer(prompt, answer)
        else:
            context = _as_chat(prompt)
            messages = answer if _begins_with_assistant(answer) else _after(context, answer)
            encoded = self._encode.chat([*context, *messages], context=len(context))
        return self._cut(encoded, "error" if whole else self._config.truncation)

    def pair(self, row: Row, place: str, whole: bool = False) -> tuple[Encoded, Encoded]:
        """Chosen and rejected of a row, which is at `place`. ValueError as for one answer, and as `split_pair`."""
        config = self._config
        given = row.get(config.prompt_key)
        prompt, chosen, rejected = split_pair(given, row[config.chosen_key], row[config.rejected_key])
        if given is None and isinstance(prompt, str) and _answer_start(prompt) != len(prompt) and not self._warned:
            self._warned = True
            logger.warning(
                "%s has no prompt: the words that both answers begin with, here %r, count as the prompt and not as "
                "part of the answers, which changes the losses of simpo and kto: write prompts into a column %r",
                place,
                prompt[-80:],
                config.prompt_key,
            )
        return self(prompt, chosen, whole), self(prompt, rejected, whole)

    def _cut(self, encoded: Encoded, side: str) -> Encoded:
        config, length = self._config, encoded.prompt_length
        limits = {"prompt": config.max_prompt_length, "response": config.max_response_length}
        lengths = {"prompt": length, "response": len(encoded.ids) - length}
        for part, limit in limits.items():
            if lengths[part] > limit and side == "error":
                raise RowTooLongError(
                    f"the {part} has {lengths[part]} tokens, but data.max_{part}_length is {limit}: raise it, or set "
                    "data.truncation=left or right (the side on which prompts are cut; answers lose their end), or "
                    "data.filter_overlong_rows=true"
                )
        extra = max(length - limits["prompt"], 0)
        kept = slice(extra, length) if side == "left" else slice(length - extra)
        answer = slice(length, length + limits["response"])
        return Encoded(encoded.ids[kept] + encoded.ids[answer], encoded.trained[kept] + encoded.trained[answer])


class PairDataset(Dataset[Pair]):
    """(prompt, chosen, rejected), or (chosen, rejected) that begin alike, as `Pair` items.

    Chats that begin with the same messages share these as their prompt. Strings share what leads up to the last
    "Assistant:" of a dialogue that is written out, or else the words that they begin with, of which some may be the
    answers'; a warning says so. Where the cut is changes no loss of the difference of two log-probs (dpo, ipo) and no
    reward model, since what both begin with adds the same to both. It does change losses that divide by the length of
    an answer (simpo) or look at one answer by itself (kto).

    Raises:
        FileNotFoundError, ValueError: for a bad file, column or row; at the row for answers that are too long
            (`truncation="error"`) or have no beginning in common.
    """

    def __init__(
        self, files: DataFiles, tokenizer: "PreTrainedTokenizerBase", config: PairDataConfig, *, max_samples: int = -1
    ) -> None:
        self._config = config
        self._encode = AnswerEncoder(tokenizer, config)
        self.pad_id = pad_token_id(tokenizer)
        self._rows = open_with_columns(files, [_pair_columns(config)])
        count = rows_used(len(self._rows), max_samples)
        drop = config.filter_overlong_rows
        self._kept: Sequence[int] = short_enough(self._rows, count, self._read_whole) if drop else range(count)
        self[0]  # the first row shows what is wrong with all of them, such as a missing chat template

    def __len__(self) -> int:
        return len(self._kept)

    def __getitem__(self, item: int) -> Pair:
        number = self._kept[item]
        with located(self._rows.place(number)):
            return Pair(item, *self._read(number))

    def _read_whole(self, number: int) -> tuple[Encoded, Encoded]:
        return self._read(number, whole=True)

    def _read(self, number: int, whole: bool = False) -> tuple[Encoded, Encoded]:
        chosen, rejected = self._encode.pair(self._rows[number], self._rows.place(number), whole)
        if chosen.ids[: chosen.prompt_length] != rejected.ids[: rejected.prompt_length]:
            raise ValueError("the chat template writes the prompt of the two answers differently")
        return chosen, rejected

    def collate_fn(self, pairs: Sequence[Pair]) -> dict[str, Tensor | np.ndarray]:
        """`input_ids` and `attention_mask` [B, 2, P + R], `response_mask` [B, 2, R] (0 is chosen, 1 is rejected) and
        `index` [B], the number of the row."""
        answers = [answer for pair in pairs for answer in (pair.chosen, pair.rejected)]
        columns = stack_answers(answers, self.pad_id)
        return {
            **{name: column.unflatten(0, (len(pairs), 2)) for name, column in columns.items()},
            "index": torch.tensor([pair.index for pair in pairs]),
        }


class JudgedDataset(Dataset[Judged]):
    """(prompt, completion, label) as `Judged` items. A file of pairs (see `PairDataset`) gives two items a row, a good
    and a bad one."""

    def __init__(
        self,
        files: DataFiles,
        tokenizer: "PreTrainedTokenizerBase",
        config: PreferenceDataConfig,
        *,
        max_samples: int = -1,
    ) -> None:
        self._config = config
        self._encode = AnswerEncoder(tokenizer, config)
        self.pad_id = pad_token_id(tokenizer)
        judged = {
            config.prompt_key: "data.prompt_key",
            config.completion_key: "data.completion_key",
            config.label_key: "data.label_key",
        }
        self._rows = open_with_columns(files, [judged, _pair_columns(config)])
        count = rows_used(len(self._rows), max_samples)
        drop = config.filter_overlong_rows
        kept: Sequence[int] = short_enough(self._rows, count, self._read_whole) if drop else range(count)
        self._items = [(number, part) for number in kept for part in range(1 if self._is_judged(number) else 2)]
        self[0]

    def _is_judged(self, number: int) -> bool:
        return self._rows[number].get(self._config.completion_key) is not None

    def __len__(self) -> int:
        return len(self._items)

    def __getitem__(self, item: int) -> Judged:
        number, part = self._items[item]
        with located(self._rows.place(number)):
            return Judged(item, *self._read(number)[part])

    def _read_whole(self, number: int) -> list[tuple[Encoded, bool]]:
        return self._read(number, whole=True)

    def _read(self, number: int, whole: bool = False) -> list[tuple[Encoded, bool]]:
        """The answers of a row with their labels: one, or the two of a pair."""
        config, row = self._config, self._rows[number]
        if self._is_judged(number):
            label = as_label(row[config.label_key], config.label_key)
            return [(self._encode(row[config.prompt_key], row[config.completion_key], whole), label)]
        chosen, rejected = self._encode.pair(row, self._rows.place(number), whole)
        return [(chosen, True), (rejected, False)]

    def collate_fn(self, items: Sequence[Judged]) -> dict[str, Tensor | np.ndarray]:
        """`input_ids` and `attention_mask` [B, P + R], `response_mask` [B, R], `labels` and `index` [B]."""
        return {
            **stack_answers([item.answer for item in items], self.pad_id),
            "labels": torch.tensor([item.desirable for item in items]),
            "index": torch.tensor([item.index for item in items]),
        }


def split_pair(prompt: Prompt | None, chosen: Answer, rejected: Answer) -> tuple[Prompt, Answer, Answer]:
    """Prompt and answers; without a prompt it is what both answers begin with.

    ValueError when they have no beginning in common, or are written in two ways.
    """
    if isinstance(chosen, str) != isinstance(rejected, str):
        raise ValueError("one answer is a string and the other a list of messages")
    if isinstance(chosen, str):
        assert isinstance(rejected, str)
        if prompt is not None:
            return prompt, chosen, rejected
        shared = _shared(chosen, rejected)
        # Words stay whole: tokens reach over the letters that two words share.
        words = max((i + 1 for i in range(shared) if chosen[i].isspace()), default=0)
        cut = _answer_start(chosen[:shared]) or words
        if cut == 0:
            raise ValueError("without a prompt, chosen and rejected must begin with the same words")
        return chosen[:cut], chosen[cut:], rejected[cut:]
    if prompt is not None:
        return prompt, chosen, rejected
    assert not isinstance(rejected, str)
    # The last message of each is an answer, also when both are the same.
    shared = min(_shared(chosen, rejected), len(chosen) - 1, len(rejected) - 1)
    if shared < 1:
        raise ValueError("without a prompt, chosen and rejected must begin with the same messages")
    return list(chosen[:shared]), list(chosen[shared:]), list(rejected[shared:])


def _answer_start(text: str) -> int:
    """Where the answer begins in a dialogue that is written out: after the last "Assistant:". 0 when the last turn is
    not the assistant's, or there are no turns."""
    turns = list(_TURN.finditer(text))
    return turns[-1].end() if turns and turns[-1][1] == "Assistant" else 0


def _pair_columns(config: PairDataConfig) -> dict[str, str]:
    return {config.chosen_key: "data.chosen_key", config.rejected_key: "data.rejected_key"}


def as_label(value: Any, key: str) -> bool:
    """True or false, also written as 1 or 0; ValueError for anything else."""
    if isinstance(value, bool | int | float) and value in (0, 1):
        return bool(value)
    raise ValueError(f"column {key!r} must be true or false, not {value!r}")


def _as_chat(prompt: Prompt) -> list[Mapping[str, Any]]:
    return [{"role": "user", "content": prompt}] if isinstance(prompt, str) else list(prompt)


def _begins_with_assistant(answer: Sequence[Mapping[str, Any]]) -> bool:
    if not answer or not all(isinstance(message, Mapping) for message in answer):
        raise ValueError("an answer must be a string or a list of messages with role and content")
    return answer[0].get("role") == "assistant"


def _after(context: Sequence[Mapping[str, Any]], chat: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
    """What follows `context` in a whole chat."""
    said = [(message.get("role"), message.get("content")) for message in chat[: len(context)]]
    if said != [(message.get("role"), message.get("content")) for message in context]:
        raise ValueError("the answer is a whole chat that does not begin with the prompt")
    return chat[len(context) :]


def _shared(one: Sequence[Any], two: Sequence[Any]) -> int:
    """How many items both begin with."""
    return next((i for i, (a, b) in enumerate(zip(one, two, strict=False)) if a != b), min(len(one), len(two)))
