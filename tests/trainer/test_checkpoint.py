"""Which checkpoint a run goes on from."""

from pathlib import Path

import pytest

from verl.config import TrainerConfig
from verl.trainer.checkpoint import Checkpoints


def save(folder: Path, step: int) -> None:
    with Checkpoints(folder, TrainerConfig()).saving(step, {"global_step": step}, {"place": step}) as target:
        (target / "actor").mkdir()


def test_the_newest_finished_checkpoint_is_taken(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, TrainerConfig())
    assert checkpoints.to_resume() is None
    save(tmp_path, 2)
    save(tmp_path, 4)
    folder = checkpoints.to_resume()
    assert folder == tmp_path / "global_step_4"
    assert checkpoints.read(folder) == ({"global_step": 4}, {"place": 4})


def test_a_save_that_fails_is_never_the_newest(tmp_path: Path) -> None:
    save(tmp_path, 2)
    with pytest.raises(OSError, match="disk full"), Checkpoints(tmp_path, TrainerConfig()).saving(3, {}, {}):
        raise OSError("disk full")
    assert Checkpoints(tmp_path, TrainerConfig()).to_resume() == tmp_path / "global_step_2"


def test_disabled(tmp_path: Path) -> None:
    save(tmp_path, 2)
    assert Checkpoints(tmp_path, TrainerConfig(resume_mode="disable")).to_resume() is None


def test_a_path_that_is_no_checkpoint_is_an_error(tmp_path: Path) -> None:
    config = TrainerConfig(resume_mode="resume_path", resume_from_path=str(tmp_path / "nothing"))
    with pytest.raises(FileNotFoundError, match=r"trainer.resume_from_path names the checkpoint .*nothing"):
        Checkpoints(tmp_path, config).to_resume()
