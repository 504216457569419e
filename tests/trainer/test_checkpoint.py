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


def test_a_save_over_an_older_one_that_is_killed_leaves_no_mixture(tmp_path: Path) -> None:
    save(tmp_path, 2)
    with pytest.raises(KeyboardInterrupt), Checkpoints(tmp_path, TrainerConfig()).saving(2, {}, {}):
        raise KeyboardInterrupt
    with pytest.raises(FileNotFoundError, match="global_step_2, which has no trainer.json"):
        Checkpoints(tmp_path, TrainerConfig()).to_resume()


@pytest.mark.parametrize("name", ["trainer.json", "dataloader.pt"])
def test_a_broken_file_is_named(tmp_path: Path, name: str) -> None:
    save(tmp_path, 2)
    file = tmp_path / "global_step_2" / name
    file.write_bytes(file.read_bytes()[:10])
    with pytest.raises(ValueError, match=f"global_step_2: {name} is missing or broken"):
        Checkpoints.read(tmp_path / "global_step_2")


def test_checked_before_models_load(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    Checkpoints(tmp_path / "file", TrainerConfig(save_freq=-1)).check()
    with pytest.raises(ValueError, match=r"trainer.default_local_dir=.*file: nothing can be written there"):
        Checkpoints(tmp_path / "file", TrainerConfig(save_freq=0)).check()
    config = TrainerConfig(save_freq=5, resume_mode="resume_path", resume_from_path=str(tmp_path / "nothing"))
    with pytest.raises(FileNotFoundError, match="trainer.resume_from_path names"):
        Checkpoints(tmp_path / "new", config).check()
    assert list((tmp_path / "new").iterdir()) == []


def test_disabled(tmp_path: Path) -> None:
    save(tmp_path, 2)
    assert Checkpoints(tmp_path, TrainerConfig(resume_mode="disable")).to_resume() is None


def test_a_path_that_is_no_checkpoint_is_an_error(tmp_path: Path) -> None:
    config = TrainerConfig(resume_mode="resume_path", resume_from_path=str(tmp_path / "nothing"))
    with pytest.raises(FileNotFoundError, match=r"trainer.resume_from_path names the checkpoint .*nothing"):
        Checkpoints(tmp_path, config).to_resume()
