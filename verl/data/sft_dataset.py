"""Rows for supervised fine-tuning: token ids with a mask of what is trained on."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor
from torch.utils.data import Dataset

from verl.config import SFTDataConfig
from verl.data.columns import DataFiles, RowTooLongError, open_with_columns, short_enough
from verl.data.conversations import Encoded, conversation_encoder
from verl.data.prompts import located, pad_token_id
from verl.data.rl_dataset import rows_used
from verl.data.stacking import pad

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class SFTDataset(Dataset[Encoded]):
    """Chats (column `config.messages_key`), or prompts and responses, as `Encoded` rows of at most `max_length` tokens.

    Raises:
        FileNotFoundError, ValueError: for a bad file, column or row; at the row when it is longer than `max_length`
            (`truncation="error"`) or has nothing to train on.
    """

    def __init__(
        self, files: DataFiles, tokenizer: "PreTrainedTokenizerBase", config: SFTDataConfig, *, max_samples: int = -1
    ) -> None:
        self._config = config
        self._encoder = conversation_encoder(tokenizer, config)
        self.pad_id = pad_token_id(tokenizer)
        chats = {config.messages_key: "data.messages_key"}
        plain = {config.prompt_key: "data.prompt_key", config.response_key: "data.response_key"}
        self._rows = open_with_columns(files, [chats, plain])
        # The first row shows what is wrong with all of them, such as a missing chat template.
        with located(self._rows.place(0)):
            self._encode(self._rows[0])
        count = rows_used(len(self._rows), max_samples)
        drop = config.filter_overlong_rows
        self._kept: Sequence[int] = short_enough(self._rows, count, self._read_whole) if drop else range(count)

    def __len__(self) -> int:
        return len(self._kept)

    def __getitem__(self, item: int) -> Encoded:
        number = self._kept[item]
        with located(self._rows.place(number)):
            return cut_row(self._encode(self._rows[number]), self._config.max_length, self._config.truncation)

    def _read_whole(self, number: int) -> Encoded:
        return cut_row(self._encode(self._rows[number]), self._config.max_length, "error")

    def _encode(self, row: dict[str, Any]) -> Encoded:
        messages = row.get(self._config.messages_key)
        if messages is not None:
            return self._encoder.chat(messages)
        return self._encoder.answer(row[self._config.prompt_key], row[self._config.response_key])

    def collate_fn(self, rows: Sequence[Encoded]) -> dict[str, Tensor | np.ndarray]:
        """`input_ids`, `attention_mask` and `response_mask`, int64 [B, W], W the longest row; padded on the right.

        A row's first token is never trained on: nothing predicts it.
        """
        masks = [[0, *row.trained[1:]] for row in rows]
        return {
            "input_ids": pad([row.ids for row in rows], self.pad_id),
            "attention_mask": pad([[1] * len(row.ids) for row in rows], 0),
            "response_mask": pad(masks, 0),
        }


def cut_row(row: Encoded, max_length: int, side: str) -> Encoded:
    """At most `max_length` tokens: `left` loses the first ones, `right` the last, `error` is a RowTooLongError."""
    extra = len(row.ids) - max_length
    if extra <= 0:
        return row
    if side == "error":
        raise RowTooLongError(
            f"the row has {len(row.ids)} tokens, but data.max_length is {max_length}: raise it, or set "
            "data.truncation=left or right, or data.filter_overlong_rows=true"
        )
    kept = slice(extra, None) if side == "left" else slice(max_length)
    return Encoded(row.ids[kept], row.trained[kept])
