"""Batches of a data set, from a place that can be saved and gone back to."""

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils.data import Dataset, Sampler
from torchdata.stateful_dataloader import StatefulDataLoader

from verl.config import DataConfig, OfflineDataConfig
from verl.data.collate import collate_fn as default_collate_fn
from verl.data.rl_dataset import open_data, rows_used
from verl.data.sampler import EpochSampler


def build_dataloader(
    dataset: Dataset[Any],
    config: DataConfig | OfflineDataConfig,
    *,
    train: bool,
    batch_size: int,
    seed: int,
    sampler: Sampler[int] | None = None,
    collate_fn: Callable[[list[Any]], Any] | None = None,
) -> StatefulDataLoader[Any]:
    """A loader whose `state_dict` holds the place in the epoch, also in its middle and with shuffling.

    Training drops the rows that do not fill a last batch, and shuffles by `seed` if `config.shuffle`. Validation
    drops and shuffles nothing. `config.dataloader_num_workers` changes the order of nothing; a saved state goes on with
    the number of workers that it was saved with.

    Args:
        sampler: takes the place of the seeded order.
        collate_fn: list of items -> batch; by default `verl.data.collate_fn`.

    Raises ValueError for a training batch bigger than the data set.
    """
    rows = len(dataset)  # type: ignore[arg-type]
    if train:
        check_batch_fits(rows, batch_size)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="'set_vital' is deprecated")  # torchdata 0.11 under torch 2.13
        return StatefulDataLoader(
            dataset,
            batch_size=batch_size,
            sampler=sampler or EpochSampler(rows, seed, shuffle=train and config.shuffle),
            drop_last=train,
            num_workers=config.dataloader_num_workers,
            collate_fn=collate_fn or default_collate_fn,
            # Its own generator: the loader draws from it, and must not move the process's random state.
            generator=torch.Generator().manual_seed(seed),
        )


def check_batch_fits(rows: int, batch_size: int) -> None:
    """ValueError with both numbers when not one training batch can be filled."""
    if batch_size > rows:
        raise ValueError(
            f"data.train_batch_size={batch_size} is more than the {rows} training prompts there are: no batch can be "
            "filled; use smaller batches or more prompts"
        )


def check_data(config: DataConfig, required: Sequence[str] = ()) -> None:
    """Check what can be checked without a tokenizer: files, columns, nulls, and that a training batch can be filled.

    Raises FileNotFoundError or ValueError that begins with the key at fault.
    """
    parts = (("train_files", config.train_max_samples), ("val_files", config.val_max_samples))
    for key, max_samples in parts:
        files = getattr(config, key)
        if files is None and key == "val_files":
            continue
        try:
            rows = rows_used(len(open_data(files, config, required)), max_samples)
        except FileNotFoundError as error:
            raise FileNotFoundError(f"data.{key}: {error}") from error
        except ValueError as error:
            raise ValueError(f"data.{key}: {error}") from error
        if key == "train_files":
            check_batch_fits(rows, config.train_batch_size)
