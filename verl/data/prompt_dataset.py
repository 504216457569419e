"""Prompts for scripts: from a file, a list, a data set object or a stream, in batches of rows or of tokens."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset, IterableDataset, get_worker_info

from verl.data.collate import collate_fn
from verl.data.files import JoinedRows, open_rows
from verl.data.overlong import prompt_lengths
from verl.data.prompts import PromptEncoder, SettingNames, located, pad_token_id, truncate
from verl.data.rl_dataset import left_pad
from verl.data.rows import Row, Rows, values_of
from verl.data.sampler import TokenBatchSampler, pack_by_length
from verl.data.sources import local_files

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_ARGUMENTS = SettingNames(
    chat_template="chat_template",
    system_prompt="system_prompt",
    strings_as_chat="as_chat=True",
    max_prompt_length="max_prompt_length",
    cutting="truncation to left, right or middle",
)
_DEFAULT_LENGTH = 512
_BUFFER = 256
"""Prompts of a stream that are looked at together to make batches of near length."""


class PromptDataset(Dataset[dict[str, Any]]):
    """Prompts as items of token ids.

    Args:
        data_path: a file, glob or URL (parquet, arrow, jsonl, json, csv, tsv, txt: see `verl.data.files`), a list of
            prompts (strings, or chats), a list of dicts, an object with `len()` and `[]` that gives dicts or prompts (a
            Hugging Face data set), or a stream: an iterator, a generator, any other iterable, or a function that
            returns a new one for each epoch. A stream's length is unknown, and it has no random order.
        tokenizer: the policy's.
        max_prompt_length: longest prompt in tokens, also spelt `max_prompt_len`; 512 when not given.
        dynamic_batching: batches of any number of rows that fill `max_tokens_per_batch`, rows of near length together.
        max_tokens_per_batch: cells of a batch, padding included: rows x longest prompt. A batch may have fewer, so that
            long prompts do not make short ones as wide.
        prompt_key: where the prompt is in a dict.
        truncation: `error`, or cut `left`, `right` or `middle` of longer prompts.
        as_chat: a prompt that is a string is a user's message in the chat template.
        chat_template, system_prompt: as `data.chat_template` and `data.system_prompt`.
        parse_special_tokens: read control tokens in strings as such (they are plain text otherwise).

    An item is a dict with `input_ids` [length], `raw_prompt`, `index`, and whatever else the row has. `collate_fn`
    makes of items a batch padded on the left to the longest of them; `verl.data.build_dataloader` uses it.

    Raises:
        ValueError: for a bad file or row; for a prompt longer than `max_tokens_per_batch`, or than
            `max_prompt_length` with truncation `error` (at its row); for contradicting arguments.
    """

    def __new__(cls, data_path: Any, *args: Any, **kwargs: Any) -> "PromptDataset":
        return super().__new__(_Stream if cls is PromptDataset and _is_stream(data_path) else cls)

    def __init__(
        self,
        data_path: Any,
        tokenizer: "PreTrainedTokenizerBase",
        max_prompt_length: int | None = None,
        *,
        max_prompt_len: int | None = None,
        dynamic_batching: bool = False,
        max_tokens_per_batch: int | None = None,
        prompt_key: str = "prompt",
        truncation: str = "error",
        as_chat: bool = False,
        chat_template: str | None = None,
        system_prompt: str | None = None,
        parse_special_tokens: bool = False,
    ) -> None:
        if max_prompt_length is not None and max_prompt_len is not None and max_prompt_length != max_prompt_len:
            raise ValueError(f"max_prompt_length={max_prompt_length} and max_prompt_len={max_prompt_len} are one thing")
        given = max_prompt_len if max_prompt_length is None else max_prompt_length
        self.max_prompt_length = _DEFAULT_LENGTH if given is None else given
        if not isinstance(self.max_prompt_length, int) or self.max_prompt_length < 1:
            raise ValueError(f"max_prompt_length={given!r}: expected a number of tokens, at least 1")
        if not hasattr(tokenizer, "pad_token_id"):
            raise TypeError(f"tokenizer is {tokenizer!r:.100}: expected one of transformers")
        if dynamic_batching and max_tokens_per_batch is None:
            raise ValueError("dynamic_batching=True needs max_tokens_per_batch")
        if truncation not in ("error", "left", "right", "middle"):
            raise ValueError(f"truncation={truncation!r}: expected error, left, right or middle")
        self.max_tokens_per_batch = max_tokens_per_batch if dynamic_batching else None
        self.tokenizer = tokenizer
        self._prompt_key, self._truncation = prompt_key, truncation
        self._pad_id = pad_token_id(tokenizer)
        self._encode = PromptEncoder(
            tokenizer, chat_template, {}, system_prompt, as_chat, parse_special_tokens, _ARGUMENTS
        )
        self._open(data_path)

    def _open(self, data_path: Any) -> None:
        self._rows = _rows_of(data_path, self._prompt_key)
        self._lengths: np.ndarray | None = None
        if self.max_tokens_per_batch is not None:
            lengths = self.lengths()
            if lengths.max() > self.max_tokens_per_batch:
                row = int(lengths.argmax())
                raise ValueError(
                    f"{self._rows.place(row)}: the prompt has {lengths[row]} tokens, more than max_tokens_per_batch="
                    f"{self.max_tokens_per_batch}"
                )

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, item: int) -> dict[str, Any]:
        if not -len(self) <= item < len(self):
            raise IndexError(f"row {item} does not exist: there are {len(self)} rows")
        number = item % len(self)
        return self._item(self._rows[number], number, self._rows.place(number))

    def _item(self, row: Row, number: int, place: str) -> dict[str, Any]:
        prompt = row[self._prompt_key]
        with located(place):
            ids = self._encode(prompt, row.get("tools"))
            ids = truncate(ids, self.max_prompt_length, self._truncation, _ARGUMENTS)
        others = {key: value for key, value in row.items() if key != self._prompt_key}
        return {"index": number, **others, "raw_prompt": prompt, "input_ids": torch.tensor(ids)}

    def lengths(self) -> np.ndarray:
        """Tokens of each prompt, int64 [len(self)], as cut."""
        if self._lengths is None:
            self._lengths = prompt_lengths(self._rows, len(self._rows), self._prompt_key, self._encode)
        return np.minimum(self._lengths, self.max_prompt_length)

    def column(self, name: str) -> list[Any]:
        """The value of each row at `name`; None where there is none."""
        return [value for (value,) in self._rows.columns((name,))]

    def collate_fn(self, items: Sequence[dict[str, Any]]) -> dict[str, Tensor | np.ndarray]:
        """A batch of B items: `input_ids`, `attention_mask`, `position_ids` int64 [B, longest], all else object [B]."""
        width = max(len(item["input_ids"]) for item in items)
        padded = [left_pad(item["input_ids"].tolist(), width, self._pad_id) for item in items]
        return collate_fn([{**item, **tensors} for item, tensors in zip(items, padded, strict=True)])

    def batches(
        self, batch_size: int | None = None, *, shuffle: bool = False, seed: int = 0, epoch: int = 0
    ) -> Iterator[dict[str, Tensor | np.ndarray]]:
        """One epoch of batches, of `batch_size` rows (the last may have fewer) or by `max_tokens_per_batch`."""
        if self.max_tokens_per_batch is None and not batch_size:
            raise ValueError("batches() needs a batch_size, unless the data set has dynamic_batching")
        for items in self._batches_of_items(batch_size, shuffle, seed, epoch):
            yield self.collate_fn(items)

    def _batches_of_items(
        self, batch_size: int | None, shuffle: bool, seed: int, epoch: int
    ) -> Iterator[list[dict[str, Any]]]:
        if self.max_tokens_per_batch is not None:
            sampler = TokenBatchSampler(self.lengths(), self.max_tokens_per_batch, seed, shuffle)
            yield from ([self[row] for row in rows] for rows in sampler.order(epoch))
            return
        assert batch_size is not None
        order = np.random.default_rng([seed, epoch]).permutation(len(self)) if shuffle else np.arange(len(self))
        for start in range(0, len(self), batch_size):
            yield [self[int(row)] for row in order[start : start + batch_size]]


class _Stream(PromptDataset, IterableDataset[dict[str, Any]]):
    """Prompts that come one after the other. With worker processes, each takes its share of them."""

    def _open(self, data_path: Any) -> None:
        self._source: Callable[[], Iterable[Any]] = data_path if callable(data_path) else lambda: data_path
        self._once = isinstance(data_path, Iterator)
        self._begun = False

    def __len__(self) -> int:
        raise TypeError("the length of a stream of prompts is unknown")

    def __getitem__(self, item: int) -> dict[str, Any]:
        raise TypeError("a stream of prompts has no rows by number: iterate over it")

    def lengths(self) -> np.ndarray:
        raise TypeError("the lengths of a stream of prompts are unknown")

    def __iter__(self) -> Iterator[Any]:
        """Items; with dynamic batching lists of them, one a batch."""
        items = self._items()
        return items if self.max_tokens_per_batch is None else self._packed(items)

    def _items(self) -> Iterator[dict[str, Any]]:
        if self._once and self._begun:
            raise RuntimeError(
                "the stream of prompts has been read; for another epoch give a function that returns a new one"
            )
        self._begun = True
        worker = get_worker_info()
        share, shares = (worker.id, worker.num_workers) if worker is not None else (0, 1)
        for number, value in islice(enumerate(self._source()), share, None, shares):
            place = f"prompt {number} of the stream"
            yield self._item(_row_of(value, self._prompt_key, place), number, place)

    def _packed(self, items: Iterator[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
        assert self.max_tokens_per_batch is not None
        while buffer := list(islice(items, _BUFFER)):
            lengths = np.array([len(item["input_ids"]) for item in buffer])
            if lengths.max() > self.max_tokens_per_batch:
                number = buffer[int(lengths.argmax())]["index"]
                raise ValueError(
                    f"prompt {number} of the stream has {lengths.max()} tokens, more than max_tokens_per_batch="
                    f"{self.max_tokens_per_batch}"
                )
            for rows in pack_by_length(np.arange(len(buffer)), lengths, self.max_tokens_per_batch):
                yield [buffer[row] for row in rows]

    def _batches_of_items(
        self, batch_size: int | None, shuffle: bool, seed: int, epoch: int
    ) -> Iterator[list[dict[str, Any]]]:
        if shuffle:
            raise ValueError("a stream of prompts cannot be shuffled")
        if self.max_tokens_per_batch is not None:
            yield from iter(self)
            return
        items = iter(self)
        while items_of_batch := list(islice(items, batch_size)):
            yield items_of_batch


class _SequenceRows:
    """Rows of an object with `len()` and `[]`."""

    def __init__(self, values: Sequence[Any], prompt_key: str) -> None:
        self._values = values
        self._prompt_key = prompt_key

    def __len__(self) -> int:
        return len(self._values)

    def __getitem__(self, row: int) -> Row:
        return _row_of(self._values[row], self._prompt_key, self.place(row))

    def place(self, row: int) -> str:
        return f"prompt {row}"

    def columns(self, names: Sequence[str]) -> Iterator[tuple[Any, ...]]:
        return values_of(self, names)


def _is_stream(data: Any) -> bool:
    if isinstance(data, str | Path):
        return False
    sized = hasattr(data, "__len__") and hasattr(data, "__getitem__")
    return not sized and (isinstance(data, Iterable) or callable(data))


def _rows_of(data: Any, prompt_key: str) -> Rows:
    if isinstance(data, str | Path):
        return JoinedRows([open_rows(path, {prompt_key: "prompt_key"}) for path in local_files(data)])
    if isinstance(data, Mapping) or not (hasattr(data, "__len__") and hasattr(data, "__getitem__")):
        raise ValueError(
            f"prompts must be a path, a list of prompts or dicts, a data set or a stream, not a {type(data).__name__}"
        )
    if len(data) == 0:
        raise ValueError("there are no prompts")
    return _SequenceRows(data, prompt_key)


def _row_of(value: Any, prompt_key: str, place: str) -> Row:
    """A prompt by itself, or a dict that has one."""
    if not isinstance(value, Mapping):
        return {prompt_key: value}
    if value.get(prompt_key) is None:
        raise ValueError(f"{place}: there is no {prompt_key!r}, only {', '.join(map(str, value))}")
    return dict(value)
