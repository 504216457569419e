"""Prompts for reinforcement learning, as items of token ids beside whatever else their file says."""

import inspect
import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from verl.config import DataConfig
from verl.data.files import JoinedRows, Row, open_rows
from verl.data.overlong import prompt_lengths
from verl.data.prompts import PromptEncoder, located, pad_token_id, truncate
from verl.data.sources import Files, local_files
from verl.utils.imports import import_from_path

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

logger = logging.getLogger(__name__)

DataFiles = Files


class RLHFDataset(Dataset[dict[str, Any]]):
    """The rows of one or several files (see `verl.data.files.open_rows`) as prompts.

    A row has a prompt (a chat or a string); for rule rewards also a `data_source`, `reward_model` (a dict with
    `ground_truth`) and optionally `extra_info`. P is `config.max_prompt_length`. An item is a dict with

        input_ids, attention_mask, position_ids    int64 [P], padded on the left
        data_source                                the value of column `config.reward_fn_key`, if there is one
        index                                      the row's `index`, that of its `extra_info`, or the row's number
        raw_prompt                                 the prompt as written, if `config.return_raw_chat`
        ...                                        all other columns, as written

    Args:
        data_files: paths, or one.
        tokenizer: the policy's. Without a pad token, masked cells hold the EOS.
        config: keys and lengths.
        max_samples: use only the first so many rows; -1 is all. The overlong filter comes after.
        required: further columns that every row must have.

    Raises:
        FileNotFoundError, ValueError: for a bad file, column or row (see `open_rows`); for chats without a chat
            template; when no prompt is within `max_prompt_length` (`filter_overlong_prompts`), or, at the row, when
            its prompt is not (`truncation="error"`).
    """

    def __init__(
        self,
        data_files: DataFiles,
        tokenizer: "PreTrainedTokenizerBase",
        config: DataConfig,
        *,
        max_samples: int = -1,
        required: Sequence[str] = (),
    ) -> None:
        self._config = config
        self._encode = prompt_encoder(tokenizer, config)
        self._pad_id = pad_token_id(tokenizer)
        if tokenizer.pad_token_id is None:
            logger.warning("tokenizer %r has no pad token: padding with its EOS", tokenizer.name_or_path)
        self._rows = open_data(data_files, config, required)
        # The first prompt shows what is wrong with all of them, such as a missing chat template.
        with located(self._rows.place(0)):
            self._ids(self._rows[0])
        self._kept = np.arange(rows_used(len(self._rows), max_samples))
        self._lengths: np.ndarray | None = None
        if config.filter_overlong_prompts:
            self._drop_overlong()

    def _drop_overlong(self) -> None:
        config, count = self._config, len(self._kept)
        workers = config.filter_overlong_prompts_workers
        lengths = prompt_lengths(
            self._rows, count, config.prompt_key, self._encode, workers, tools_key=config.tools_key
        )
        self._lengths = lengths
        self._kept = np.flatnonzero(lengths <= config.max_prompt_length)
        if len(self._kept) == 0:
            raise ValueError(
                f"all {count} prompts, the first being {self._rows.place(0)}, are longer than data.max_prompt_length="
                f"{config.max_prompt_length} tokens: the shortest has {lengths.min()}, the longest {lengths.max()}"
            )
        if len(self._kept) < count:
            logger.warning(
                "dropped %d of %d prompts, longer than data.max_prompt_length=%d tokens (the longest has %d)",
                count - len(self._kept),
                count,
                config.max_prompt_length,
                lengths.max(),
            )

    def __len__(self) -> int:
        return len(self._kept)

    def __getitem__(self, item: int) -> dict[str, Any]:
        number = int(self._kept[item])
        row = self._rows[number]
        with located(self._rows.place(number)):
            ids = truncate(self._ids(row), self._config.max_prompt_length, self._config.truncation)
        prompt = row.pop(self._config.prompt_key)
        if self._config.reward_fn_key in row:
            row["data_source"] = row[self._config.reward_fn_key]
        row["index"] = _index(row, number)
        if self._config.return_raw_chat:
            row["raw_prompt"] = prompt
        return {**row, **left_pad(ids, self._config.max_prompt_length, self._pad_id)}

    def _ids(self, row: Row) -> list[int]:
        return self._encode(row[self._config.prompt_key], row.get(self._config.tools_key))

    def lengths(self) -> np.ndarray:
        """Tokens of each item's prompt, int64 [len(self)], as cut."""
        count = int(self._kept[-1]) + 1 if len(self._kept) else 0
        config = self._config
        workers = config.filter_overlong_prompts_workers
        if self._lengths is None:
            self._lengths = prompt_lengths(
                self._rows, count, config.prompt_key, self._encode, workers, tools_key=config.tools_key
            )
        return np.minimum(self._lengths[self._kept], config.max_prompt_length)

    def column(self, name: str) -> list[Any]:
        """The value of each item at `name`, which may lead into dicts: `extra_info.level`. None where there is none."""
        outer, *inner = name.split(".")
        wanted = iter(self._kept.tolist())
        found, number = [], next(wanted, None)
        for row, (value,) in enumerate(self._rows.columns((outer,))):
            if row == number:
                for key in inner:
                    value = value.get(key) if isinstance(value, dict) else None
                found.append(value)
                number = next(wanted, None)
        return found


def prompt_encoder(tokenizer: "PreTrainedTokenizerBase", config: DataConfig) -> PromptEncoder:
    """How prompts become token ids by `config`."""
    return PromptEncoder(
        tokenizer,
        config.chat_template,
        dict(config.apply_chat_template_kwargs),
        config.system_prompt,
        config.strings_as_chat,
        config.parse_special_tokens,
    )


def load_dataset(
    data_files: DataFiles,
    tokenizer: "PreTrainedTokenizerBase",
    config: DataConfig,
    *,
    max_samples: int = -1,
    required: Sequence[str] = (),
) -> Dataset[Any]:
    """The data set of `config`: an RLHFDataset, or the class of `data.custom_cls`, called with the keywords that its
    signature has. ValueError for a class that cannot be loaded or is no class of data sets."""
    chosen = config.custom_cls
    arguments: dict[str, Any] = {"max_samples": max_samples, "required": required}
    if chosen.path is None:
        return RLHFDataset(data_files, tokenizer, config, **arguments)
    if chosen.name is None:
        raise ValueError("data.custom_cls.path is set without data.custom_cls.name: name the class")
    try:
        dataset_class = import_from_path(f"{chosen.path}:{chosen.name}")
    except ValueError as error:
        raise ValueError(f"data.custom_cls: {error}") from error
    if not (inspect.isclass(dataset_class) and issubclass(dataset_class, Dataset)):
        raise ValueError(f"data.custom_cls: {chosen.name} in {chosen.path} is no subclass of torch.utils.data.Dataset")
    parameters = inspect.signature(dataset_class).parameters
    takes_all = any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters.values())
    chosen_arguments = {name: value for name, value in arguments.items() if takes_all or name in parameters}
    build: Callable[..., Dataset[Any]] = dataset_class
    dataset = build(data_files, tokenizer=tokenizer, config=config, **chosen_arguments)
    return dataset


def left_pad(ids: Sequence[int], width: int, pad_id: int) -> dict[str, Tensor]:
    """`input_ids`, `attention_mask` and `position_ids`, int64 [width]; positions count the tokens from 0."""
    padding = width - len(ids)
    assert padding >= 0
    # In numpy, whose small operations cost a fraction of torch's; a loader does this for every item.
    input_ids = np.full(width, pad_id, dtype=np.int64)
    attention_mask, position_ids = np.zeros((2, width), dtype=np.int64)
    input_ids[padding:] = ids
    attention_mask[padding:] = 1
    position_ids[padding:] = np.arange(len(ids))
    columns = {"input_ids": input_ids, "attention_mask": attention_mask, "position_ids": position_ids}
    return {name: torch.from_numpy(column) for name, column in columns.items()}


def open_data(data_files: DataFiles, config: DataConfig, required: Sequence[str] = ()) -> JoinedRows:
    """The rows of all files; every one has a prompt and the `required` columns, of which `data_source` is in the file
    what `config.reward_fn_key` says. Who sets that key wants the column in any case."""
    source = config.reward_fn_key
    columns: dict[str, str | None] = {config.prompt_key: "data.prompt_key"}
    if source != "data_source" or "data_source" in required:
        columns[source] = "data.reward_fn_key"
    for name in required:
        if name != "data_source":
            columns.setdefault(name, None)
    return JoinedRows([open_rows(path, columns) for path in local_files(data_files)])


def rows_used(rows: int, max_samples: int) -> int:
    """How many of `rows` a limit leaves; -1 is no limit."""
    if max_samples == 0 or max_samples < -1:
        raise ValueError(f"a number of samples must be -1 (all) or at least 1, not {max_samples}")
    return rows if max_samples == -1 else min(rows, max_samples)


def _index(row: dict[str, Any], number: int) -> Any:
    for source in (row, row.get("extra_info")):
        if isinstance(source, dict) and source.get("index") is not None:
            return source["index"]
    return number
