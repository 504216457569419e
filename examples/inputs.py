"""What an example trains on unless another model or other data are named: SmolLM2, and sums."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from smollm2 import prepare_smollm2

from verl.config.tree import value_at

MODEL = Path("outputs/smollm2")


@dataclass(frozen=True)
class Inputs:
    """An example's own model and data: named by its defaults, made when a run still names them.

    Attributes:
        model_key: the config's key of the model.
        files: the training file and the test file that `write` makes in their folder.
    """

    model_key: str
    files: tuple[Path, Path]
    write: Callable[[Path], Any]

    def defaults(self) -> list[str]:
        train, test = self.files
        return [f"{self.model_key}={MODEL}", f"data.train_files={train}", f"data.val_files={test}"]

    def prepare(self, config: Any) -> None:
        if value_at(config, self.model_key) == str(MODEL):
            prepare_smollm2(MODEL)
        data = config.data
        ours, theirs = map(str, self.files), (data.train_files, data.val_files)
        named = [file == chosen for file, chosen in zip(ours, theirs, strict=True)]
        if any(named) and not all(named) and data.val_files is not None:
            raise ValueError(
                f"data.train_files={data.train_files}, but data.val_files={data.val_files}, and one of them is the "
                "example's own: set both (data.val_files=null trainer.test_freq=-1 validates nothing)"
            )
        if any(named):
            self.write(self.files[0].parent)
