"""The console: one line a step."""

import fnmatch
from typing import Any

from tqdm import tqdm

from verl.utils.tracking.base import Run, Scalar, cell

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


class ConsoleBackend:
    """One line a step, printed so that a progress bar below it stays whole."""

    def __init__(self, run: Run) -> None:
        pass

    def log(self, data: dict[str, Scalar], step: int) -> None:
        chosen = {name: data[name] for pattern in CONSOLE_METRICS for name in fnmatch.filter(data, pattern)}
        shown = [f"{name} {_short(value)}" for name, value in (chosen or data).items()]
        tqdm.write(" | ".join([f"step {step}", *shown]))

    def log_table(self, name: str, columns: list[str], rows: list[list[Any]], step: int) -> None:
        """A line for each row: of samples what a person looks at, of other tables everything; texts in quotes."""
        shown = [column for column in CONSOLE_COLUMNS if column in columns] or columns
        for row in rows:
            values = {column: value for column, value in zip(columns, row, strict=True) if value is not None}
            texts = [f"{column} {_quoted(values[column])}" for column in shown if column in values]
            tqdm.write(" | ".join([f"step {step} {name}", *texts]))

    def finish(self) -> None:
        pass


def _quoted(value: Any) -> str:
    """A cell on one line: the text of a sample may hold line breaks."""
    return repr(value) if isinstance(value, str) else cell(value)


def _short(value: Scalar) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
