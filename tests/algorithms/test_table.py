import os
import subprocess
import sys
from pathlib import Path

import pytest

from verl.algorithms.table import adv_estimator_rows, markdown, policy_loss_rows, preference_loss_rows

ROOT = Path(__file__).parents[2]


def test_the_page_is_current():
    page = (ROOT / "docs" / "algorithms.md").read_text()
    assert page == markdown(), "run: python -m verl.algorithms.table > docs/algorithms.md"


@pytest.mark.parametrize("rows", [adv_estimator_rows, policy_loss_rows, preference_loss_rows])
def test_every_plugin_says_what_it_is(rows):
    for row in rows():
        assert row.equation and row.paper, row.name


def test_the_needs_are_those_of_the_estimators():
    needs = {row.name: row.needs for row in adv_estimator_rows()}
    assert needs["gae"] == "critic"
    assert needs["grpo"] == "groups (n > 1)"
    assert needs["remax"] == "greedy baseline"
    assert needs["gdpo"] == "groups (n > 1), single rewards"
    assert needs["reinforce_plus_plus"] == "-"


def test_the_command_prints_the_page():
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "verl.algorithms.table"]
    assert subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout == markdown()
