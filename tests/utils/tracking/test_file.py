import json
from pathlib import Path

import pytest

from verl.utils.tracking import Tracking


def run(folder: Path, steps: range) -> None:
    tracking = Tracking("p", "e", ["file"], directory=folder)
    for step in steps:
        tracking.log({"run": f"{steps}"}, step=step)
    tracking.finish()


def steps_in(path: Path) -> list[tuple[int, str]]:
    return [(line["step"], line["run"]) for line in map(json.loads, path.read_text().splitlines())]


def test_a_run_that_resumes_where_it_stopped_appends(tmp_path: Path) -> None:
    run(tmp_path, range(0, 3))
    run(tmp_path, range(3, 4))
    assert [step for step, _ in steps_in(tmp_path / "metrics.jsonl")] == [0, 1, 2, 3]
    assert not (tmp_path / "metrics.superseded.jsonl").exists()


def test_a_run_that_resumes_from_an_older_step_replaces_what_it_does_again(tmp_path: Path) -> None:
    """Steps 0 to 3 are done, a checkpoint of step 1 is resumed: 2 and 3 are done again, by other weights perhaps."""
    run(tmp_path, range(0, 4))
    Tracking("p", "e", ["file"], directory=tmp_path).finish()  # a run that logs nothing takes nothing away
    run(tmp_path, range(2, 5))
    first, second = "range(0, 4)", "range(2, 5)"
    assert steps_in(tmp_path / "metrics.jsonl") == [(0, first), (1, first), (2, second), (3, second), (4, second)]
    assert steps_in(tmp_path / "metrics.superseded.jsonl") == [(2, first), (3, first)]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["metrics.jsonl", "metrics.superseded.jsonl"]


@pytest.mark.parametrize("first", [0, 1])
def test_a_new_run_keeps_nothing_of_another(tmp_path: Path, first: int) -> None:
    run(tmp_path, range(0, 2))
    run(tmp_path, range(first, 3))
    assert {name for _, name in steps_in(tmp_path / "metrics.jsonl")} == {f"range({first}, 3)"}
    assert [step for step, _ in steps_in(tmp_path / "metrics.superseded.jsonl")] == [0, 1]


@pytest.mark.parametrize("torn", ['{"step": 3, "a"', '{"other": 1}\n'])
def test_a_line_that_is_not_a_whole_step_is_set_aside(tmp_path: Path, torn: str) -> None:
    run(tmp_path, range(1, 3))
    path = tmp_path / "metrics.jsonl"
    path.write_text(path.read_text() + torn)
    run(tmp_path, range(3, 4))
    assert [step for step, _ in steps_in(path)] == [1, 2, 3]
    assert (tmp_path / "metrics.superseded.jsonl").read_text() == torn.strip() + "\n"


def test_a_last_line_without_its_line_break_stays_whole(tmp_path: Path) -> None:
    run(tmp_path, range(1, 3))
    path = tmp_path / "metrics.jsonl"
    path.write_text(path.read_text().rstrip("\n"))
    run(tmp_path, range(3, 4))
    assert [step for step, _ in steps_in(path)] == [1, 2, 3]
    assert not (tmp_path / "metrics.superseded.jsonl").exists()
