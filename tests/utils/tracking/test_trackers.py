"""The packages themselves write, without a login or a network, and what they wrote is read back."""

import json
import os
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from verl.utils.tracking import Tracking

ROOT = Path(__file__).parents[3]
PNG = b"\x89PNG"


def log_everything(name: str, folder: str | Path) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(1, 1))
    figure.subplots().plot([1, 2])
    tracking = Tracking("proj", "exp", [name], config={"optim": {"lr": 0.1}, "n": None}, directory=folder)
    tracking.log_table("val/samples", [{"output": "7 | 8", "score": 0.5}, {"output": "9", "note": None}], step=1)
    tracking.log_figure("val/lengths", figure, step=1)
    tracking.log({"reward/mean@4": 0.5, "kl": float("nan"), "note": "hello", "nothing": None}, step=1)
    tracking.log({"reward/mean@4": 0.75}, step=2)
    tracking.finish()


def write(name: str, folder: Path, **env: str) -> None:
    """In a process of its own: some trackers keep their folder, or the process's output, for good."""
    pytest.importorskip("matplotlib")
    pytest.importorskip(name)
    settings = ("MLFLOW_", "TRACKIO_", "SWANLAB_", "WANDB_")
    clean = {key: value for key, value in os.environ.items() if not key.startswith(settings)}
    # A home of its own, so that no login of this machine's user can matter.
    done = subprocess.run(
        [sys.executable, __file__, name, str(folder)],
        cwd=ROOT,
        env={**clean, "PYTHONPATH": str(ROOT), "HOME": str(folder), **env},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr


def test_file_keeps_figures(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    log_everything("file", tmp_path)
    assert (tmp_path / "figures" / "val" / "lengths_1.png").read_bytes().startswith(PNG)
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [line["reward/mean@4"] for line in lines] == [0.5, 0.75]


def test_tensorboard(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    pytest.importorskip("tensorboard")
    log_everything("tensorboard", tmp_path)
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    assert [(e.step, e.value) for e in events.Scalars("reward/mean@4")] == [(1, 0.5), (2, 0.75)]
    assert events.Images("val/lengths")[0].encoded_image_string.startswith(PNG)

    def text(name: str) -> str:
        return events.Tensors(f"{name}/text_summary")[0].tensor_proto.string_val[0].decode()

    assert text("note") == "hello"
    assert '"lr": 0.1' in text("config")
    assert text("val/samples").splitlines()[2:] == [r"| 7 \| 8 | 0.5 |  |", "| 9 |  |  |"]


def test_wandb_offline(tmp_path: Path) -> None:
    write("wandb", tmp_path, WANDB_MODE="offline")
    (folder,) = (tmp_path / "wandb").glob("offline-run-*")
    (table,) = folder.glob("files/media/table/val/*.json")
    assert json.loads(table.read_text()) == {
        "columns": ["output", "score", "note"],
        "data": [["7 | 8", "0.5", ""], ["9", "", ""]],
    }
    (picture,) = folder.glob("files/media/images/val/*.png")
    assert picture.read_bytes().startswith(PNG)
    (log,) = folder.glob("*.wandb")  # records whose texts are as they are
    content = log.read_bytes()
    assert content.count(b"reward/mean@4") >= 2 and b"0.75" in content and b"hello" in content


def test_mlflow_keeps_a_local_store(tmp_path: Path) -> None:
    write("mlflow", tmp_path)
    with closing(sqlite3.connect(tmp_path / "mlflow" / "mlflow.db")) as store:
        metrics = store.execute("select step, value from metrics where key = 'reward/mean_4' order by step").fetchall()
        params = dict(store.execute("select key, value from params").fetchall())
        tags = dict(store.execute("select key, value from tags").fetchall())
        runs = store.execute(
            "select experiments.name, runs.name, status from runs join experiments using (experiment_id)"
        )
        assert runs.fetchall() == [("proj", "exp", "FINISHED")]
    assert metrics == [(1, 0.5), (2, 0.75)]
    assert params == {"optim.lr": "0.1", "n": "None"}
    assert tags["note"] == "hello"
    (table,) = (tmp_path / "mlflow" / "artifacts").rglob("val/samples_1.json")
    assert json.loads(table.read_text())["data"] == [["7 | 8", 0.5, None], ["9", None, None]]
    (picture,) = (tmp_path / "mlflow" / "artifacts").rglob("val/lengths_1.png")
    assert picture.read_bytes().startswith(PNG)


def test_mlflow_goes_where_its_own_variable_says(tmp_path: Path) -> None:
    pytest.importorskip("mlflow")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MLFLOW_TRACKING_URI", "nosuch://store")
        with pytest.raises(ValueError, match="'mlflow' did not start .*nosuch.*see MLFLOW_TRACKING_URI"):
            Tracking("proj", "exp", ["mlflow"], directory=tmp_path)
    assert not (tmp_path / "mlflow").exists()


def test_trackio(tmp_path: Path) -> None:
    write("trackio", tmp_path)
    with closing(sqlite3.connect(tmp_path / "trackio" / "proj.db")) as store:
        rows = store.execute("select step, metrics from metrics where run_name = 'exp' order by id").fetchall()
        (config,) = store.execute("select config from configs").fetchone()
    logged = [(step, json.loads(metrics)) for step, metrics in rows]
    assert [(step, values["reward/mean@4"]) for step, values in logged if "reward/mean@4" in values] == [
        (1, 0.5),
        (2, 0.75),
    ]
    (table,) = (values["val/samples"] for _, values in logged if "val/samples" in values)
    assert table["_value"][0] == {"output": "7 | 8", "score": "0.5", "note": ""}
    assert json.loads(config)["optim"] == {"lr": 0.1}
    (picture,) = (tmp_path / "trackio" / "media").rglob("*.png")
    assert picture.read_bytes().startswith(PNG)


def test_swanlab_offline(tmp_path: Path) -> None:
    write("swanlab", tmp_path)
    (log,) = (tmp_path / "swanlab").glob("run-*/*.swanlab")
    scalars = [
        (record.scalar.step, record.scalar.value.number)
        for record in swanlab_records(log)
        if record.HasField("scalar") and record.scalar.key == "reward/mean@4"
    ]
    assert scalars == [(1, 0.5), (2, 0.75)]
    media = log.parent / "media"
    (table,) = media.glob("echarts/**/*.json")
    assert "7 | 8" in table.read_text()
    (picture,) = media.glob("image/**/*.png")
    assert picture.read_bytes().startswith(PNG)
    assert [path.read_text() for path in media.glob("text/**/*.txt")] == ["hello"]


def swanlab_records(log: Path) -> Iterator[object]:
    from swanlab.proto.swanlab.record.v1.record_pb2 import Record
    from swanlab.sdk.internal.core_python.store import DataStoreReader

    reader = DataStoreReader()
    reader.open(log)
    while (packed := reader.scan()) is not None:
        yield Record.FromString(packed)
    reader.close()


if __name__ == "__main__":
    log_everything(*sys.argv[1:])
