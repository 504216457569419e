"""A file: JSON lines that any tool reads."""

import json
import math
import os
from typing import Any

from verl.utils.tracking.base import Run, Scalar


class FileBackend:
    """`metrics.jsonl`: one JSON object a step, written out at once. A resumed run goes on in the same file.

    A run that resumes from an older checkpoint does some steps again. What the file holds of those, and a line that a
    killed run left unfinished, moves to `metrics.superseded.jsonl` before the first line is written, so that each step
    is in `metrics.jsonl` once. Figures become `figures/<name>_<step>.png`.
    """

    def __init__(self, run: Run) -> None:
        run.directory.mkdir(parents=True, exist_ok=True)
        self._directory = run.directory
        self._file = (run.directory / "metrics.jsonl").open("ab")
        self._first = True

    def log(self, data: dict[str, Scalar], step: int) -> None:
        if self._first:
            self._first = False
            self._set_aside(step)
        # JSON has no NaN: json.dumps would write a file that other readers refuse.
        finite = {
            name: value if not isinstance(value, float) or math.isfinite(value) else None
            for name, value in data.items()
        }
        self._file.write(json.dumps({"step": step, **finite}, allow_nan=False).encode() + b"\n")
        self._file.flush()

    def log_figure(self, name: str, figure: Any, step: int) -> None:
        path = self._directory / "figures" / f"{name}_{step}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path)

    def finish(self) -> None:
        self._file.close()

    def _set_aside(self, first_step: int) -> None:
        path = self._directory / "metrics.jsonl"
        kept: list[bytes] = []
        superseded: list[bytes] = []
        text = path.read_bytes()
        for line in text.splitlines():
            # A run that begins at its beginning goes on from no other.
            goes_on = first_step > 1 and _step_of(line) < first_step
            (kept if goes_on else superseded).append(line + b"\n")
        if b"".join(kept) == text:
            return
        if superseded:
            with (self._directory / "metrics.superseded.jsonl").open("ab") as other:
                _write_out(other, superseded)
        # The old file stays whole until the new one is: whenever this process is killed, no line is lost.
        fresh = path.with_suffix(".jsonl.new")
        with fresh.open("wb") as other:
            _write_out(other, kept)
        self._file.close()
        os.replace(fresh, path)
        self._file = path.open("ab")


def _step_of(line: bytes) -> float:
    """The step of a line; infinity for one that says none."""
    try:
        return json.loads(line)["step"]
    except (ValueError, KeyError, TypeError):
        return math.inf


def _write_out(file: Any, lines: list[bytes]) -> None:
    file.writelines(lines)
    file.flush()
    os.fsync(file.fileno())
