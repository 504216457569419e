"""Where a run's checkpoints are, and which one to go on from.

<default_local_dir>/global_step_<k>/{actor, critic, trainer.json, dataloader.pt}
<default_local_dir>/latest_checkpointed_iteration.txt      holds k; written last: never half a checkpoint
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from verl.config import BaseTrainerConfig

_LATEST = "latest_checkpointed_iteration.txt"


class Checkpoints:
    def __init__(self, directory: Path, config: BaseTrainerConfig) -> None:
        self.directory = directory.absolute()
        self.config = config

    @contextmanager
    def saving(self, step: int, state: dict[str, Any], loader_state: dict[str, Any]) -> Iterator[Path]:
        """The folder of step `step`, to put the models into; it becomes the newest checkpoint when the block ends."""
        folder = self.directory / f"global_step_{step}"
        folder.mkdir(parents=True, exist_ok=True)
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
    def read(folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
        """The driver's state and the loader's state."""
        state = json.loads((folder / "trainer.json").read_text())
        return state, torch.load(folder / "dataloader.pt", weights_only=False)
