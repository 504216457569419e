"""Sharded checkpoints of weights, optimizer and schedule, which any number of processes can load."""

import pickle
import shutil
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
import torch.distributed.checkpoint as dcp
from torch import Tensor, nn
from torch.distributed.checkpoint.metadata import TensorStorageMetadata

from verl.engine.fsdp.optimizer import LearningRate
from verl.engine.fsdp.sharding import named_tensors, wait_for_all
from verl.utils.distributed import rank, world_size

_MODEL, _OPTIMIZER, _STEPS = "model", "optimizer", "schedule.steps_done"


def save(path: Path, module: nn.Module, optimizer: torch.optim.Optimizer | None, schedule: LearningRate | None) -> None:
    """Write the folder `path`; it appears whole or not at all. An older folder of that name is replaced.

    RuntimeError when a process cannot write its share.
    """
    state = _model_state(module) | _optimizer_state(module, optimizer)
    if schedule is not None:
        state[_STEPS] = torch.tensor(schedule.steps_done)
    unfinished = path.with_name(path.name + ".unfinished")
    if rank() == 0:
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir(parents=True)
    wait_for_all()
    with _quiet(), _explained(f"checkpoint {path} cannot be written"):
        dcp.save(state, checkpoint_id=unfinished, no_dist=world_size() == 1)
    wait_for_all()
    if rank() == 0:
        _replace(path, unfinished)
    wait_for_all()


def load(path: Path, module: nn.Module, optimizer: torch.optim.Optimizer | None, schedule: LearningRate | None) -> None:
    """Fill module, optimizer and schedule in place.

    ValueError when `path` is no checkpoint, or one of another model (naming the first weight that does not fit), or
    holds no optimizer though there is one to fill. RuntimeError when a file in it is missing or cut off.
    """
    saved = _saved_shapes(path)
    state = _model_state(module)
    _check_fit(path, {name: tuple(tensor.shape) for name, tensor in state.items()}, saved)
    steps = torch.tensor(0)
    if schedule is not None:
        if _STEPS not in saved:
            raise ValueError(f"checkpoint {path} is of a frozen model: it holds no optimizer state to go on from")
        state[_STEPS] = steps
    if optimizer is not None:
        state |= _empty_optimizer_state(module, optimizer, saved)
    with _quiet(), _explained(f"checkpoint {path} is broken or incomplete"):
        dcp.load(state, checkpoint_id=path, no_dist=world_size() == 1)
    if schedule is not None:
        schedule.steps_done = int(steps)


def _model_state(module: nn.Module) -> dict[str, Tensor]:
    return {f"{_MODEL}.{name}": tensor for name, tensor in named_tensors(module)}


def _optimizer_state(module: nn.Module, optimizer: torch.optim.Optimizer | None) -> dict[str, Tensor]:
    """What the optimizer holds for each parameter that has made a step; nothing before the first."""
    if optimizer is None:
        return {}
    return {
        f"{_OPTIMIZER}.{key}.{name}": value
        for name, parameter in module.named_parameters()
        if parameter in optimizer.state
        for key, value in optimizer.state[parameter].items()
    }


def _empty_optimizer_state(
    module: nn.Module, optimizer: torch.optim.Optimizer, saved: dict[str, tuple[int, ...]]
) -> dict[str, Tensor]:
    """Zeros for all the state that was saved, sharded like the parameters, and put into the optimizer."""
    optimizer.state.clear()
    keys = {name.split(".")[1] for name in saved if name.startswith(f"{_OPTIMIZER}.")}
    for name, parameter in module.named_parameters():
        held = [key for key in sorted(keys) if f"{_OPTIMIZER}.{key}.{name}" in saved]
        if held:
            optimizer.state[parameter] = {
                key: torch.zeros_like(parameter, requires_grad=False)
                if saved[f"{_OPTIMIZER}.{key}.{name}"] == tuple(parameter.shape)
                else torch.zeros(saved[f"{_OPTIMIZER}.{key}.{name}"], device=parameter.device)
                for key in held
            }
    return _optimizer_state(module, optimizer)


def _saved_shapes(path: Path) -> dict[str, tuple[int, ...]]:
    if not (path / ".metadata").is_file():
        raise ValueError(f"{path} is no checkpoint of this engine: it has no file .metadata")
    try:
        entries = dcp.FileSystemReader(path).read_metadata().state_dict_metadata
    except (pickle.UnpicklingError, EOFError) as error:
        raise ValueError(f"checkpoint {path} is broken: its .metadata cannot be read ({error})") from error
    return {name: tuple(entry.size) for name, entry in entries.items() if isinstance(entry, TensorStorageMetadata)}


def _check_fit(path: Path, wanted: dict[str, tuple[int, ...]], saved: dict[str, tuple[int, ...]]) -> None:
    found = {name: shape for name, shape in saved.items() if name.startswith(f"{_MODEL}.")}
    for name in sorted(wanted.keys() | found.keys()):
        if wanted.get(name) != found.get(name):
            raise ValueError(
                f"checkpoint {path} does not fit this model: {name.removeprefix(_MODEL + '.')} has shape "
                f"{found.get(name, 'none (missing)')} there and {wanted.get(name, 'none (missing)')} here"
            )


def _replace(path: Path, unfinished: Path) -> None:
    outdated = path.with_name(path.name + ".outdated")
    if path.exists():
        path.rename(outdated)
    unfinished.rename(path)
    shutil.rmtree(outdated, ignore_errors=True)


@contextmanager
def _explained(what: str) -> Iterator[None]:
    """Tell what failed on which process, as an error like others: torch raises a BaseException that few would catch."""
    try:
        yield
    except dcp.CheckpointException as error:
        causes = [f"rank {failed}: {type(cause).__name__}: {cause}" for failed, (cause, _) in error.failures.items()]
        raise RuntimeError(f"{what} ({'; '.join(causes):.500})") from error


@contextmanager
def _quiet() -> Iterator[None]:
    """Without torch's warning that a single process is a single process."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled, unavailable or uninitialized")
        yield
