"""What every backend is told, and what it must and may do."""

import dataclasses
import io
import json
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

Scalar = float | int | str | None
"""What a backend gets for a metric. Booleans come as 0 and 1."""


@dataclasses.dataclass(frozen=True)
class Run:
    """What a backend is told about the run."""

    project: str
    experiment: str
    config: dict[str, Any]
    directory: Path

    def plain_config(self) -> dict[str, Any]:
        """The configuration in JSON's types only; what JSON lacks becomes text."""
        return json.loads(json.dumps(self.config, default=str))

    def folder(self, name: str) -> Path:
        """A folder of the run's directory, made if need be."""
        path = self.directory / name
        path.mkdir(parents=True, exist_ok=True)
        return path.absolute()


class Backend(Protocol):
    def log(self, data: dict[str, Scalar], step: int) -> None: ...

    def finish(self) -> None: ...


@runtime_checkable
class TableBackend(Protocol):
    """A backend that can show tables."""

    def log_table(self, name: str, columns: list[str], rows: list[list[Any]], step: int) -> None: ...


@runtime_checkable
class FigureBackend(Protocol):
    """A backend that can show pictures. `figure` is one of matplotlib's."""

    def log_figure(self, name: str, figure: Any, step: int) -> None: ...


def cell(value: Any) -> str:
    """A table's cell as text: numbers short, text as it is, the rest as Python shows it."""
    if isinstance(value, float):
        return f"{value:.4g}"
    return value if isinstance(value, str) else "" if value is None else str(value)


def cells(rows: list[list[Any]]) -> list[list[str]]:
    """All cells as text, since a column of most trackers has one type."""
    return [[cell(value) for value in row] for row in rows]


def picture(figure: Any) -> Any:
    """A figure of matplotlib as an image of Pillow, which matplotlib itself brings."""
    from PIL import Image

    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")
    return Image.open(buffer)
