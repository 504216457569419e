"""Measuring prompts in several processes: same lengths, same order, and what goes wrong there is told here."""

import os
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

import pytest

from verl.data.overlong import prompt_lengths
from verl.data.prompts import PromptEncoder
from verl.data.rows import Row, values_of


class Prompts:
    """Rows of a list of prompts."""

    def __init__(self, prompts: Sequence[Any]) -> None:
        self.prompts = prompts

    def __len__(self) -> int:
        return len(self.prompts)

    def __getitem__(self, row: int) -> Row:
        return {"prompt": self.prompts[row]}

    def place(self, row: int) -> str:
        return f"row {row}"

    def columns(self, names: Sequence[str]) -> Any:
        return values_of(self, names)


def test_lengths_come_in_order_whatever_the_processes(tiny_tokenizer: Any) -> None:
    prompts = Prompts(["x" * (1 + row % 7) for row in range(2000)])
    for workers in (1, 3):
        found = prompt_lengths(prompts, 1999, "prompt", PromptEncoder(tiny_tokenizer), workers)
        assert found.tolist() == [1 + row % 7 for row in range(1999)]


def test_a_bad_prompt_is_named_from_another_process(tiny_tokenizer: Any) -> None:
    prompts: list[Any] = ["x"] * 1200
    prompts[1100] = [{"role": "user"}]
    with pytest.raises(ValueError, match="row 1100: a message must have a `role` and a `content`"):
        prompt_lengths(Prompts(prompts), 1200, "prompt", PromptEncoder(tiny_tokenizer), workers=2)


def test_a_process_that_dies_is_told(tiny_tokenizer: Any) -> None:
    class Dies(PromptEncoder):
        def lengths(self, rows: Any) -> list[int]:
            os._exit(7)

    with pytest.raises(RuntimeError, match=r"512 prompts, the first being row (0|512), ended with exit code 7; data"):
        prompt_lengths(Prompts(["x"] * 1200), 1200, "prompt", Dies(tiny_tokenizer), workers=2)


def test_an_error_that_cannot_travel_comes_as_text(tiny_tokenizer: Any) -> None:
    class Fails(PromptEncoder):
        def lengths(self, rows: Any) -> list[int]:
            error = RuntimeError("no such luck")
            error.args += (lambda: 0,)
            raise error

    with pytest.raises(RuntimeError, match="(?s)in a process that measures prompts:.*no such luck"):
        prompt_lengths(Prompts(["x"] * 600), 600, "prompt", Fails(tiny_tokenizer), workers=2)


def test_a_measuring_process_loads_no_torch() -> None:
    """It takes seconds to import, in each process."""
    code = "import sys, verl.data.measuring; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
