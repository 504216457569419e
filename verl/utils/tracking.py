"""Where metrics go: the console, a file, TensorBoard, W&B. Only the backends that are named get imported."""

import dataclasses
import fnmatch
import json
import math
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from tqdm import tqdm

Scalar = float | int | str | None
"""What a backend gets for a metric. Booleans come as 0 and 1."""

CONSOLE_COLUMNS = ("input", "output", "score", "gts")
CONSOLE_METRICS = (
    "val/*",
    "train/loss",
    "train/rewards/accuracies",
    "train/grad_norm",
    "reward/score_mean",
    "kl/reward_kl_per_response",
    "actor/pg_loss",
    "actor/kl_loss",
    "actor/entropy",
    "actor/grad_norm",
    "critic/vf_loss",
    "response_length/mean",
    "perf/tokens_per_second",
    "timing/step",
)
"""Patterns of the metrics that the console shows, in this order; all metrics when none matches."""


class Tracking:
    """Sends the metrics of each step to one or several backends.

    Args:
        project_name, experiment_name: what the run is called in the trackers.
        default_backend: a name or several: "console" (one line a step), "file" (JSON lines in
            `<directory>/metrics.jsonl`, null for NaN and infinities, appended to when it exists), "tensorboard"
            (`<directory>/tensorboard`), "wandb" (`WANDB_MODE=offline` needs no login).
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
        if self._started is None:
            raise RuntimeError(f"step {step} was logged after finish()")
        if self._last_step is not None and step <= self._last_step:
            raise ValueError(
                f"step {step} was logged after step {self._last_step}: steps must rise, and all metrics of a step "
                "go into one call"
            )
        scalars = {name: _scalar(name, value) for name, value in data.items()}
        self._last_step = step
        for backend in self._backends:
            backend.log(scalars, step)

    def log_table(self, name: str, rows: Sequence[Mapping[str, Any]], step: int) -> None:
        """Send rows, such as samples, to the backends that can show a table. A cell that a row lacks is empty."""
        if self._started is None:
            raise RuntimeError(f"table {name!r} of step {step} was logged after finish()")
        columns = list(dict.fromkeys(column for row in rows for column in row))
        for backend in self._backends if rows else ():
            if isinstance(backend, TableBackend):
                backend.log_table(name, columns, [[row.get(column) for column in columns] for row in rows], step)

    def finish(self) -> None:
        """Write what is buffered and close all backends. May be called again."""
        started, self._started = self._started, None
        if started is not None:
            started.close()


@dataclasses.dataclass(frozen=True)
class Run:
    """What a backend is told about the run."""

    project: str
    experiment: str
    config: dict[str, Any]
    directory: Path


class Backend(Protocol):
    def log(self, data: Mapping[str, Scalar], step: int) -> None: ...

    def finish(self) -> None: ...


@runtime_checkable
class TableBackend(Protocol):
    """A backend that can show tables."""

    def log_table(self, name: str, columns: list[str], rows: list[list[Any]], step: int) -> None: ...


class ConsoleBackend:
    """One line a step, printed so that a progress bar below it stays whole."""

    def __init__(self, run: Run) -> None:
        pass

    def log(self, data: Mapping[str, Scalar], step: int) -> None:
        chosen = {name: data[name] for pattern in CONSOLE_METRICS for name in fnmatch.filter(data, pattern)}
        shown = [f"{name} {_short(value)}" for name, value in (chosen or data).items()]
        tqdm.write(" | ".join([f"step {step}", *shown]))

    def log_table(self, name: str, columns: list[str], rows: list[list[Any]], step: int) -> None:
        """A line for each row: of samples what a person looks at, of other tables everything; texts in quotes."""
        shown = [column for column in CONSOLE_COLUMNS if column in columns] or columns
        for row in rows:
            cells = {column: value for column, value in zip(columns, row, strict=True) if value is not None}
            texts = [f"{column} {_quoted(cells[column])}" for column in shown if column in cells]
            tqdm.write(" | ".join([f"step {step} {name}", *texts]))

    def finish(self) -> None:
        pass


class FileBackend:
    """`metrics.jsonl`: one JSON object a step, written out at once. A resumed run appends."""

    def __init__(self, run: Run) -> None:
        run.directory.mkdir(parents=True, exist_ok=True)
        self._file = (run.directory / "metrics.jsonl").open("a+b")
        if self._file.tell():
            # A run that was killed in the middle of a line must not spoil the first line of the next.
            self._file.seek(-1, os.SEEK_END)
            if self._file.read(1) != b"\n":
                self._file.write(b"\n")

    def log(self, data: Mapping[str, Scalar], step: int) -> None:
        # JSON has no NaN: json.dumps would write a file that other readers refuse.
        finite = {
            name: value if not isinstance(value, float) or math.isfinite(value) else None
            for name, value in data.items()
        }
        self._file.write(json.dumps({"step": step, **finite}, allow_nan=False).encode() + b"\n")
        self._file.flush()

    def finish(self) -> None:
        self._file.close()


class TensorBoardBackend:
    """Numbers as scalars; strings and the configuration as text."""

    def __init__(self, run: Run) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(str(run.directory / "tensorboard"))
        if run.config:
            text = json.dumps(run.config, indent=2, default=str)
            self._writer.add_text("config", f"```\n{text}\n```", 0)

    def log(self, data: Mapping[str, Scalar], step: int) -> None:
        for name, value in data.items():
            if isinstance(value, str):
                self._writer.add_text(name, value, step)
            elif value is not None:
                self._writer.add_scalar(name, value, step)

    def log_table(self, name: str, columns: list[str], rows: list[list[Any]], step: int) -> None:
        def line(cells: Sequence[str]) -> str:
            return "| " + " | ".join(cell.replace("|", "\\|").replace("\n", "<br>") for cell in cells) + " |"

        lines = [line(columns), line(["---"] * len(columns)), *(line([_cell(cell) for cell in row]) for row in rows)]
        self._writer.add_text(name, "\n".join(lines), step)

    def finish(self) -> None:
        self._writer.close()


class WandbBackend:
    """Weights & Biases. `WANDB_MODE=offline` writes to `<directory>/wandb` without a login."""

    def __init__(self, run: Run) -> None:
        import wandb

        run.directory.mkdir(parents=True, exist_ok=True)
        self._run = wandb.init(
            project=run.project, name=run.experiment, config=run.config, dir=str(run.directory), reinit="create_new"
        )

    def log(self, data: Mapping[str, Scalar], step: int) -> None:
        self._run.log(dict(data), step=step)

    def log_table(self, name: str, columns: list[str], rows: list[list[Any]], step: int) -> None:
        import wandb

        table = wandb.Table(columns=columns, data=[[_cell(cell) for cell in row] for row in rows])
        self._run.log({name: table}, step=step)

    def finish(self) -> None:
        self._run.finish()


BACKENDS: dict[str, Callable[[Run], Backend]] = {
    "console": ConsoleBackend,
    "file": FileBackend,
    "tensorboard": TensorBoardBackend,
    "wandb": WandbBackend,
}


def _start(name: str, run: Run) -> Backend:
    try:
        return BACKENDS[name](run)
    except ImportError as error:
        raise ValueError(
            f"logger {name!r} cannot be imported ({error}): install it with `pip install 'verl[tracking]'`, "
            f"or remove it from trainer.logger"
        ) from error
    except Exception as error:
        hint = "log in with `wandb login` or set WANDB_MODE=offline" if name == "wandb" else f"see {run.directory}"
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


def _quoted(value: Any) -> str:
    """A cell on one line: the text of a sample may hold line breaks."""
    return repr(value) if isinstance(value, str) else _cell(value)


def _cell(value: Any) -> str:
    """A table's cell as text: numbers short, text as it is, the rest as Python shows it."""
    if isinstance(value, float):
        return f"{value:.4g}"
    return value if isinstance(value, str) else "" if value is None else str(value)


def _short(value: Scalar) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
