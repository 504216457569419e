"""Prompts: reading them from files, encoding them, and serving them in batches."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from verl.data.collate import collate_fn
    from verl.data.loader import build_dataloader, check_data
    from verl.data.preference import JudgedDataset, PairDataset
    from verl.data.prompt_dataset import PromptDataset
    from verl.data.rl_dataset import RLHFDataset, load_dataset
    from verl.data.sampler import EpochSampler
    from verl.data.sft_dataset import SFTDataset

__all__ = [
    "EpochSampler",
    "JudgedDataset",
    "PairDataset",
    "PromptDataset",
    "RLHFDataset",
    "SFTDataset",
    "build_dataloader",
    "check_data",
    "collate_fn",
    "load_dataset",
]

_HOMES = {
    "EpochSampler": "sampler",
    "JudgedDataset": "preference",
    "PairDataset": "preference",
    "SFTDataset": "sft_dataset",
    "PromptDataset": "prompt_dataset",
    "RLHFDataset": "rl_dataset",
    "build_dataloader": "loader",
    "check_data": "loader",
    "collate_fn": "collate",
    "load_dataset": "rl_dataset",
}


def __getattr__(name: str) -> Any:
    # PEP 562: a process that only measures prompts needs no torch, which takes seconds to import.
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
