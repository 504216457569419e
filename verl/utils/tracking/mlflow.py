"""MLflow. The package mlflow-skinny with SQLAlchemy and alembic does, and so does all of mlflow."""

import os
import re
import time
from typing import Any

from verl.config.tree import flatten
from verl.utils.tracking.base import Run, Scalar

PARAMS_PER_CALL = 100
"""MLflow's own limit."""


class MlflowBackend:
    """By default a local store, `<directory>/mlflow`; `MLFLOW_TRACKING_URI` names another.

    The project is MLflow's experiment, the experiment its run. Strings become tags; a table or figure of a step is an
    artifact, `<name>_<step>.json` or `.png`. A character that MLflow does not take in a name, such as the `@` in
    `val/gsm8k/reward/mean@4`, becomes `_`.
    """

    hint = "see MLFLOW_TRACKING_URI; without it the store is the folder mlflow of the run's directory"

    def __init__(self, run: Run) -> None:
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")  # a local store talks to nobody
        from mlflow import MlflowClient
        from mlflow.entities import Param

        uri, artifacts = os.environ.get("MLFLOW_TRACKING_URI"), None
        if not uri:
            uri = f"sqlite:///{run.folder('mlflow') / 'mlflow.db'}"
            artifacts = run.folder("mlflow/artifacts").as_uri()
        self._client = MlflowClient(tracking_uri=uri)
        experiment = self._client.get_experiment_by_name(run.project)
        number = experiment.experiment_id if experiment else self._client.create_experiment(run.project, artifacts)
        self._run_id = self._client.create_run(number, run_name=run.experiment).info.run_id
        params = [Param(_allowed(name), str(value)) for name, value in flatten(run.plain_config())]
        for start in range(0, len(params), PARAMS_PER_CALL):
            self._client.log_batch(self._run_id, params=params[start : start + PARAMS_PER_CALL])

    def log(self, data: dict[str, Scalar], step: int) -> None:
        from mlflow.entities import Metric, RunTag

        now = int(time.time() * 1000)
        numbers = {name: value for name, value in data.items() if isinstance(value, float | int)}
        texts = {name: value for name, value in data.items() if isinstance(value, str)}
        self._client.log_batch(
            self._run_id,
            metrics=[Metric(_allowed(name), float(value), now, step) for name, value in numbers.items()],
            tags=[RunTag(_allowed(name), value) for name, value in texts.items()],
        )

    def log_table(self, name: str, columns: list[str], rows: list[list[Any]], step: int) -> None:
        # The layout of MLflow's own log_table, which needs pandas.
        self._client.log_dict(self._run_id, {"columns": columns, "data": rows}, f"{name}_{step}.json")

    def log_figure(self, name: str, figure: Any, step: int) -> None:
        self._client.log_figure(self._run_id, figure, f"{name}_{step}.png")

    def finish(self) -> None:
        self._client.set_terminated(self._run_id)


def _allowed(name: str) -> str:
    return re.sub(r"[^\w\-. :/]", "_", name, flags=re.ASCII)
