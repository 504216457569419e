"""SwanLab."""

import os
from typing import Any

from verl.utils.tracking.base import Run, Scalar, cells


class SwanLabBackend:
    """Writes to `<directory>/swanlab` without a login; `swanlab sync` uploads that. Or set `SWANLAB_MODE`.

    A process has one run of SwanLab at a time. Project names are letters, digits and `_-+.`.
    """

    hint = "log in with `swanlab login`, or leave SWANLAB_MODE at its default here, offline"

    def __init__(self, run: Run) -> None:
        import swanlab

        self._run = swanlab.init(
            project=run.project,
            name=run.experiment,
            config=run.plain_config(),
            log_dir=str(run.folder("swanlab")),
            mode=os.environ.get("SWANLAB_MODE", "offline"),
        )

    def log(self, data: dict[str, Scalar], step: int) -> None:
        import swanlab

        values = {name: value for name, value in data.items() if value is not None}
        self._run.log(
            {name: swanlab.Text(value) if isinstance(value, str) else value for name, value in values.items()},
            step=step,
        )

    def log_table(self, name: str, columns: list[str], rows: list[list[Any]], step: int) -> None:
        import swanlab

        table = swanlab.echarts.Table()
        table.add(columns, cells(rows))
        self._run.log({name: table}, step=step)

    def log_figure(self, name: str, figure: Any, step: int) -> None:
        import swanlab

        self._run.log({name: swanlab.Image(figure)}, step=step)

    def finish(self) -> None:
        self._run.finish()
