"""Where a run's checkpoints are, and which one to go on from.

<default_local_dir>/global_step_<k>/{actor, critic, trainer.json, dataloader.pt}
<default_local_dir>/latest_checkpointed_iteration.txt      holds k; written last: never half a checkpoint
"""

import json
import logging
import pickle
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from verl.config import BaseTrainerConfig
from verl.trainer.checks import check_writable

logger = logging.getLogger("verl.trainer")

_LATEST = "latest_checkpointed_iteration.txt"
_AFRESH = "trainer.resume_mode=disable starts afresh"


class Checkpoints:
    def __init__(self, directory: Path, config: BaseTrainerConfig) -> None:
        self.directory = directory.absolute()
        self.config = config

    def check(self) -> None:
        """Before any model loads: ValueError when the run is to save where it cannot, FileNotFoundError when it is to
        go on from a checkpoint that is not there."""
        if self.config.save_freq >= 0:
            check_writable("trainer.default_local_dir", self.directory)
        self.to_resume()

    @contextmanager
    def saving(self, step: int, state: dict[str, Any], loader_state: dict[str, Any]) -> Iterator[Path]:
        """The folder of step `step`, to put the models into; it becomes the newest checkpoint when the block ends."""
        folder = self.directory / f"global_step_{step}"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "trainer.json").unlink(missing_ok=True)  # without it an older one that is overwritten counts no more
        yield folder
        torch.save(loader_state, folder / "dataloader.pt")
        (folder / "trainer.json").write_text(json.dumps(state))
        latest = self.directory / f"{_LATEST}.tmp"
        latest.write_text(str(step))
        latest.replace(self.directory / _LATEST)

    def to_resume(self) -> Path | None:
        """The checkpoint that `resume_mode` asks for; None to start afresh."""
        if self.config.resume_mode == "disable":
            return None
        if self.config.resume_mode == "resume_path":
            assert self.config.resume_from_path is not None
            return self._existing(Path(self.config.resume_from_path).absolute(), "trainer.resume_from_path")
        latest = self.directory / _LATEST
        if not latest.exists():
            return None
        return self._existing(self.directory / f"global_step_{latest.read_text().strip()}", str(latest))

    @staticmethod
    def _existing(folder: Path, named_by: str) -> Path:
        if not (folder / "trainer.json").is_file():
            raise FileNotFoundError(
                f"{named_by} names the checkpoint {folder}, which has no trainer.json: "
                "give the folder of a finished checkpoint (global_step_<k>), or set trainer.resume_mode=disable"
            )
        return folder

    @staticmethod
    def restore(loader: Any, state: dict[str, Any], folder: Path, step: int) -> None:
        """Put a loader where `state` was saved, and say that the run goes on from `step`. ValueError, with the
        checkpoint, for data in another order."""
        try:
            loader.load_state_dict(state)
        except ValueError as error:
            raise ValueError(f"checkpoint {folder}: {error}") from error
        # A warning, as this replaces the weights that were given.
        logger.warning("resumed at step %d from %s (%s)", step, folder, _AFRESH)

    @staticmethod
    def read(folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
        """The driver's state and the loader's state. ValueError naming a file that is missing or broken."""

        def read(name: str, parse: Callable[[Path], Any]) -> Any:
            try:
                return parse(folder / name)
            except (OSError, ValueError, RuntimeError, EOFError, pickle.UnpicklingError) as error:
                problem = f"{type(error).__name__}: {error!s:.200}"
                raise ValueError(
                    f"checkpoint {folder}: {name} is missing or broken ({problem}): take another one by "
                    "trainer.resume_from_path, or start afresh with trainer.resume_mode=disable"
                ) from error

        return (
            read("trainer.json", lambda file: json.loads(file.read_text())),
            read("dataloader.pt", lambda file: torch.load(file, weights_only=False)),
        )


def all_done(step: int, total: int) -> bool:
    """Whether no step is left; if so, the log says it."""
    if step < total:
        return False
    logger.warning("nothing to do: step %d of %d is done (%s)", step, total, _AFRESH)
    return True


def tell_results(config: BaseTrainerConfig, model: str) -> None:
    """Log where a run's results are; `model` is the trained model's folder within a checkpoint."""
    folder = Path(config.default_local_dir).absolute()
    latest = folder / _LATEST
    if config.save_freq >= 0 and latest.exists():
        logger.info("the trained model: %s", folder / f"global_step_{latest.read_text().strip()}" / model)
    else:
        logger.info("no model was saved: trainer.save_freq is %d (0 saves the last step)", config.save_freq)
    if "file" in config.logger:
        logger.info("metrics: %s", folder / "metrics.jsonl")
