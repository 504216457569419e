"""Batches of a data set, from a place that can be saved and gone back to."""

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.utils.data import Dataset, IterableDataset, Sampler
from torchdata.stateful_dataloader import StatefulDataLoader

from verl.config import DataConfig, OfflineDataConfig
from verl.data.collate import collate_fn as default_collate_fn
from verl.data.rl_dataset import open_data, rows_used
from verl.data.sampler import EpochSampler, TokenBatchSampler, make_sampler


class _Loader(StatefulDataLoader[Any]):
    """Saves with its place what `order` it is a place in, and goes on from a place in the same order only."""

    def __init__(self, dataset: Dataset[Any], order: Mapping[str, Any], **options: Any) -> None:
        self._order = dict(order)
        super().__init__(dataset, **options)

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "order": self._order}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        place = dict(state_dict)
        if "order" not in place:
            raise ValueError(
                "the loader's place was saved by an earlier version, which did not say in what order: begin anew with "
                "trainer.resume_mode=disable"
            )
        _check_same_order(place.pop("order"), self._order)
        super().load_state_dict(place)


def _check_same_order(saved: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """ValueError with all that differs."""
    was, here = (
        ", ".join(f"{name}={value}" for name, value in one.items() if name not in other or other[name] != value)
        for one, other in ((saved, now), (now, saved))
    )
    if was or here:
        raise ValueError(
            f"the data order was saved with {was or 'none of these settings'} but is now made with "
            f"{here or 'none of these'}, which would repeat some rows and leave out others: go back to what it was "
            "saved with, or begin anew with trainer.resume_mode=disable"
        )


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

    Training drops the rows that do not fill a last batch, and visits the others in the order of `config.sampler`, which
    is at random by `seed` (`config.shuffle`) unless it says otherwise. Validation
    drops and shuffles nothing. `config.dataloader_num_workers` changes the order of nothing; a saved state goes on with
    the number of workers that it was saved with.

    A PromptDataset with dynamic batching is served in batches of tokens, whatever `batch_size` says; of a stream, the
    place is found again by reading it up to there.

    Args:
        sampler: takes the place of the seeded order.
        collate_fn: list of items -> batch; by default the data set's own, or else `verl.data.collate_fn`.

    Raises ValueError for a training batch bigger than the data set; when a state is loaded, for one of another order.
    """
    options: dict[str, Any] = {
        "num_workers": config.dataloader_num_workers,
        "collate_fn": collate_fn or getattr(dataset, "collate_fn", default_collate_fn),
        # Its own generator: the loader draws from it, and must not move the process's random state.
        "generator": torch.Generator().manual_seed(seed),
    }
    max_tokens = getattr(dataset, "max_tokens_per_batch", None)
    if isinstance(dataset, IterableDataset):
        packed = max_tokens is not None
        options |= {"batch_size": None} if packed else {"batch_size": batch_size, "drop_last": train}
        order = {"max_tokens_per_batch": max_tokens} if packed else {"data.train_batch_size": batch_size}
    elif max_tokens is not None:
        shuffle = train and config.shuffle
        batch_sampler = TokenBatchSampler(dataset.lengths(), max_tokens, seed, shuffle)  # type: ignore[attr-defined]
        options["batch_sampler"] = batch_sampler
        order = batch_sampler.settings()
    else:
        if train:
            check_batch_fits(len(dataset), batch_size)  # type: ignore[arg-type]
        order = _name(config, sampler)
        sampler = sampler or _sampler(dataset, config, train, seed, batch_size)
        order |= sampler.settings() if isinstance(sampler, EpochSampler) else {}
        options |= {"batch_size": batch_size, "sampler": sampler, "drop_last": train}
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="'set_vital' is deprecated")  # torchdata 0.11 under torch 2.13
        return _Loader(dataset, order, **options)


def _name(config: DataConfig | OfflineDataConfig, sampler: Sampler[int] | None) -> dict[str, Any]:
    """Which sampler visits the rows, `sampler` in place of that of the config."""
    if sampler is not None:
        return {"sampler": type(sampler).__qualname__}
    if not isinstance(config, DataConfig):
        return {}
    chosen = config.sampler
    if chosen.class_path is None:
        return {"data.sampler.name": chosen.name}
    return {"data.sampler.class_path": chosen.class_path, "data.sampler.class_name": chosen.class_name}


def _sampler(
    dataset: Dataset[Any], config: DataConfig | OfflineDataConfig, train: bool, seed: int, batch_size: int
) -> Sampler[int]:
    if train and isinstance(config, DataConfig):
        return make_sampler(dataset, config, seed, batch_size)
    return EpochSampler(len(dataset), seed, shuffle=train and config.shuffle)  # type: ignore[arg-type]


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
