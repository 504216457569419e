"""TensorBoard."""

import json
from collections.abc import Sequence
from typing import Any

from verl.utils.tracking.base import Run, Scalar, cells


class TensorBoardBackend:
    """Numbers as scalars; strings, tables and the configuration as text."""

    def __init__(self, run: Run) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(str(run.directory / "tensorboard"))
        if run.config:
            text = json.dumps(run.plain_config(), indent=2)
            self._writer.add_text("config", f"```\n{text}\n```", 0)

    def log(self, data: dict[str, Scalar], step: int) -> None:
        for name, value in data.items():
            if isinstance(value, str):
                self._writer.add_text(name, value, step)
            elif value is not None:
                self._writer.add_scalar(name, value, step)

    def log_table(self, name: str, columns: list[str], rows: list[list[Any]], step: int) -> None:
        def line(texts: Sequence[str]) -> str:
            return "| " + " | ".join(text.replace("|", "\\|").replace("\n", "<br>") for text in texts) + " |"

        lines = [line(columns), line(["---"] * len(columns)), *map(line, cells(rows))]
        self._writer.add_text(name, "\n".join(lines), step)

    def log_figure(self, name: str, figure: Any, step: int) -> None:
        self._writer.add_figure(name, figure, step, close=False)

    def finish(self) -> None:
        self._writer.close()
