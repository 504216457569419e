"""Weights & Biases."""

from typing import Any

from verl.utils.tracking.base import Run, Scalar, cells, picture


class WandbBackend:
    """`WANDB_MODE=offline` writes to `<directory>/wandb` without a login."""

    hint = "log in with `wandb login` or set WANDB_MODE=offline"

    def __init__(self, run: Run) -> None:
        import wandb

        run.directory.mkdir(parents=True, exist_ok=True)
        self._run = wandb.init(
            project=run.project, name=run.experiment, config=run.config, dir=str(run.directory), reinit="create_new"
        )

    def log(self, data: dict[str, Scalar], step: int) -> None:
        self._run.log(data, step=step)

    def log_table(self, name: str, columns: list[str], rows: list[list[Any]], step: int) -> None:
        import wandb

        self._run.log({name: wandb.Table(columns=columns, data=cells(rows))}, step=step)

    def log_figure(self, name: str, figure: Any, step: int) -> None:
        import wandb

        self._run.log({name: wandb.Image(picture(figure))}, step=step)

    def finish(self) -> None:
        self._run.finish()
