"""One object that sends what is logged to all chosen backends."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from verl.utils.tracking.base import Backend, FigureBackend, Run, Scalar, TableBackend
from verl.utils.tracking.console import ConsoleBackend
from verl.utils.tracking.file import FileBackend
from verl.utils.tracking.mlflow import MlflowBackend
from verl.utils.tracking.swanlab import SwanLabBackend
from verl.utils.tracking.tensorboard import TensorBoardBackend
from verl.utils.tracking.trackio import TrackioBackend
from verl.utils.tracking.wandb import WandbBackend

BACKENDS: dict[str, Callable[[Run], Backend]] = {
    "console": ConsoleBackend,
    "file": FileBackend,
    "tensorboard": TensorBoardBackend,
    "wandb": WandbBackend,
    "mlflow": MlflowBackend,
    "trackio": TrackioBackend,
    "swanlab": SwanLabBackend,
}


class Tracking:
    """Sends the metrics of each step to one or several backends.

    Args:
        project_name, experiment_name: what the run is called in the trackers.
        default_backend: a name or several: "console" (one line a step), "file" (JSON lines in
            `<directory>/metrics.jsonl`, null for NaN and infinities; a resumed run goes on in it), "tensorboard",
            "wandb" (`WANDB_MODE=offline` needs no login), "mlflow" (a local store, or `MLFLOW_TRACKING_URI`), "trackio"
            and "swanlab" (local; their own environment variables name a server). Each writes to the folder of its
            name in `<directory>`.
        config: the run's configuration, a dict or dataclass, for the backends that can show it.
        directory: where files go; by default `runs/<project_name>/<experiment_name>`.

    Raises:
        ValueError: an unknown backend, or one that does not start: its package is missing, its login fails.
    """

    def __init__(
        self,
        project_name: str,
        experiment_name: str,
        default_backend: str | Sequence[str] = ("console", "file"),
        config: Any = None,
        directory: str | Path | None = None,
    ) -> None:
        names = [default_backend] if isinstance(default_backend, str) else list(dict.fromkeys(default_backend))
        unknown = [name for name in names if name not in BACKENDS]
        if unknown:
            raise ValueError(f"unknown logger {unknown[0]!r} in trainer.logger: choose from {', '.join(BACKENDS)}")
        run = Run(
            project=project_name,
            experiment=experiment_name,
            config=dataclasses.asdict(config) if dataclasses.is_dataclass(config) else dict(config or {}),  # type: ignore[arg-type]
            directory=Path(directory) if directory else Path("runs") / project_name / experiment_name,
        )
        self._last_step: int | None = None
        self._backends: list[Backend] = []
        # Unwinds backends that did start when a later one does not, and all of them even if one fails to finish.
        with ExitStack() as started:
            for name in names:
                self._backends.append(_start(name, run))
                started.callback(self._backends[-1].finish)
            self._started: ExitStack | None = started.pop_all()

    def log(self, data: Mapping[str, Any], step: int) -> None:
        """Send the metrics of one step: numbers, zero-dimensional tensors or arrays, or strings.

        Raises ValueError when `step` does not rise (each step is logged once) or a value is none of these,
        RuntimeError after `finish`.
        """
        self._check_started(f"step {step}")
        if self._last_step is not None and step <= self._last_step:
            raise ValueError(
                f"step {step} was logged after step {self._last_step}: steps must rise, and all metrics of a step "
                "go into one call"
            )
        scalars = {name: _scalar(name, value) for name, value in data.items()}
        self._last_step = step
        for backend in self._backends:
            backend.log(dict(scalars), step)

    def log_table(self, name: str, rows: Sequence[Mapping[str, Any]], step: int) -> None:
        """Send rows, such as samples, to the backends that can show a table. A cell that a row lacks is empty."""
        self._check_started(f"table {name!r} of step {step}")
        columns = list(dict.fromkeys(column for row in rows for column in row))
        for backend in self._backends if rows else ():
            if isinstance(backend, TableBackend):
                backend.log_table(name, columns, [[row.get(column) for column in columns] for row in rows], step)

    def log_figure(self, name: str, figure: Any, step: int) -> None:
        """Send a plot, a figure of matplotlib, to the backends that can show pictures. It stays open."""
        self._check_started(f"figure {name!r} of step {step}")
        for backend in self._backends:
            if isinstance(backend, FigureBackend):
                backend.log_figure(name, figure, step)

    def finish(self) -> None:
        """Write what is buffered and close all backends. May be called again."""
        started, self._started = self._started, None
        if started is not None:
            started.close()

    def _check_started(self, what: str) -> None:
        if self._started is None:
            raise RuntimeError(f"{what} was logged after finish()")


_PACKAGES = {"mlflow": "mlflow-skinny sqlalchemy alembic"}
"""Of the loggers that are not their package's name."""


def _start(name: str, run: Run) -> Backend:
    try:
        return BACKENDS[name](run)
    except ImportError as error:
        raise ValueError(
            f"logger {name!r} cannot be imported ({error}): install it with `pip install {_PACKAGES.get(name, name)}`, "
            "or remove it from trainer.logger"
        ) from error
    except Exception as error:
        hint = getattr(BACKENDS[name], "hint", f"see {run.directory}")
        raise ValueError(
            f"logger {name!r} did not start ({type(error).__name__}: {error}): {hint}, or remove it from trainer.logger"
        ) from error


def _scalar(name: str, value: Any) -> Scalar:
    if hasattr(value, "item"):  # a tensor, an array or one of numpy's scalars
        value = _item(name, value)
    if isinstance(value, bool):
        return int(value)
    if value is None or isinstance(value, float | int | str):
        return value
    raise ValueError(f"metric {name!r} is a {type(value).__name__}; a metric is a number or a string")


def _item(name: str, value: Any) -> Any:
    try:
        return value.item()
    except (ValueError, RuntimeError) as error:
        raise ValueError(f"metric {name!r} has shape {tuple(value.shape)}; a metric is one number") from error
