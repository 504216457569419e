"""The loaders of a PPO run, from its config or from datasets that the user built."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from torch.utils.data import IterableDataset

from verl.config import PPOConfig
from verl.data import build_dataloader, load_dataset
from verl.protocol.schema import SCHEMA

PROMPT_COLUMNS = ("input_ids", "attention_mask", "position_ids")
"""What the rows of a loader must have; all else is optional."""

ITEMS_READ_AHEAD = 1000
"""How many items of a data set are looked at before the run: a second, or less."""


def build_loaders(
    config: PPOConfig,
    tokenizer: Any,
    required: Sequence[str] = (),
    train_dataset: Any = None,
    val_dataset: Any = None,
    collate_fn: Any = None,
    train_sampler: Any = None,
    check_row: Callable[[Mapping[str, Any], str], None] | None = None,
) -> tuple[Any, Any]:
    """(training loader, validation loader or None). A dataset that is None is read from the files of `config.data`.

    `required` are columns that the data must have; `check_row` is of `check_items`. ValueError for data that would fail
    in the first step.
    """
    data = config.data
    seed = config.trainer.seed if data.seed is None else data.seed
    if train_dataset is None:
        train_dataset = load_dataset(
            data.train_files, tokenizer, data, max_samples=data.train_max_samples, required=required
        )
    if val_dataset is None and data.val_files:
        val_dataset = load_dataset(data.val_files, tokenizer, data, max_samples=data.val_max_samples, required=required)
    train = build_dataloader(
        train_dataset,
        data,
        train=True,
        batch_size=data.train_batch_size,
        seed=seed,
        sampler=train_sampler,
        collate_fn=collate_fn,
    )
    check_items("training", train_dataset, train.collate_fn, required, check_row)
    if val_dataset is None:
        return train, None
    if data.val_batch_size is None and isinstance(val_dataset, IterableDataset):
        raise ValueError("the validation data are a stream of unknown length: set data.val_batch_size")
    size = data.val_batch_size or len(val_dataset)
    validation = build_dataloader(val_dataset, data, train=False, batch_size=size, seed=seed)
    check_items("validation", val_dataset, validation.collate_fn, required, check_row)
    return train, validation


def check_items(
    which: str,
    dataset: Any,
    collate_fn: Any,
    required: Sequence[str] = (),
    check_row: Callable[[Mapping[str, Any], str], None] | None = None,
) -> None:
    """Look at the `first_items` for what the loop needs and what it writes itself.

    Args:
        required: columns that the reward function reads.
        check_row: further checks of an item, of which it is told where it is (see RewardManager.check_row).

    Raises:
        ValueError: an item cannot be read, is no dict, lacks the prompt's tensors or a `required` column, or has a
            column of a name that the loop gives to its own.
    """
    for number, item in enumerate(first_items(dataset)):
        if number == 0:
            _check_columns(which, item, collate_fn, required)
        if check_row is not None:
            check_row(item, f"item {number} of the {which} data")


def first_items(dataset: Any) -> Iterator[Any]:
    """Items to read before any model loads: what is wrong with one of them would end the run at its batch. None of a
    stream, which can be read only once."""
    if not isinstance(dataset, IterableDataset):
        yield from (dataset[number] for number in range(min(len(dataset), ITEMS_READ_AHEAD)))


def _check_columns(which: str, item: Any, collate_fn: Any, required: Sequence[str]) -> None:
    columns = collate_fn([item]) if isinstance(item, Mapping) else {}
    missing = [name for name in PROMPT_COLUMNS if name not in columns]
    if missing:
        found = f"the columns {', '.join(columns)}" if columns else f"a {type(item).__name__}: {item!r:.100}"
        raise ValueError(
            f"an item of the {which} data must come with {', '.join(PROMPT_COLUMNS)}, but is {found}. "
            "verl.data.PromptDataset makes such items of texts, chats and dicts with a prompt"
        )
    lacking = [name for name in required if name not in columns]
    if lacking:
        raise ValueError(
            f"the {which} data have no column {', '.join(lacking)}, which the reward function reads, only "
            f"{', '.join(columns)}: add it, or score otherwise, by a reward function that needs none (reward_fn="
            "fn(prompts, responses)) or by a reward model"
        )
    taken = [name for name in columns if name in SCHEMA and SCHEMA[name].tensor and name not in PROMPT_COLUMNS]
    if taken:
        raise ValueError(
            f"the {which} data have a column {taken[0]!r}, the name of one that the run makes itself "
            f"({SCHEMA[taken[0]].doc.rstrip('.')}): give it another name, or put it into extra_info"
        )


def endless(loader: Any) -> Iterator[Any]:
    """The batches of a loader, pass after pass. ValueError when it gives none any more, as a used-up stream does."""
    empty = 0
    while empty < 2:  # the first pass after a resume at the end of an epoch has none either
        empty += 1
        for batch in loader:
            empty = 0
            yield batch
    raise ValueError(
        "the training data gave no further batch: a stream that can be read only once is used up, so set "
        "trainer.total_training_steps to what it holds, or give data that can be read again"
    )


def total_steps(config: PPOConfig, train_loader: Any) -> int:
    """Steps of the whole run, which the config then holds as well. ValueError when the data do not tell."""
    trainer = config.trainer
    if trainer.total_training_steps is None:
        try:
            trainer.total_training_steps = len(train_loader) * trainer.total_epochs
        except TypeError as error:
            raise ValueError(
                "the training data are a stream of unknown length: set trainer.total_training_steps"
            ) from error
    return trainer.total_training_steps
