import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from verl.data.preview import histogram, main


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "a.jsonl"
    chat = [{"role": "user", "content": "hi <eos>"}]
    rows = [
        {"prompt": "1+1=", "data_source": "arithmetic", "extra_info": {"index": 1, "split": "train"}},
        {"prompt": chat, "data_source": "chats", "reward_model": {"ground_truth": "سلام"}},
        {"prompt": "1+1=", "data_source": "arithmetic", "extra_info": {"index": 1, "split": "train"}},
        {"prompt": "x" * 100, "data_source": "arithmetic"},
        {"prompt": "", "data_source": "arithmetic"},
        {"prompt": None, "data_source": "arithmetic"},
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_the_whole_page(file: Path, tiny_model_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(
        [
            str(file),
            "--tokenizer",
            str(tiny_model_dir),
            "data.max_prompt_length=60",
            "data.filter_overlong_prompts=true",
        ]
    )
    lines = capsys.readouterr().out.splitlines()
    assert lines[:5] == [
        "rows: 6",
        "  data_source arithmetic: 5",
        "  data_source chats: 1",
        "repeated prompts: 1 rows have one that an earlier row has",
        "repeated indices: 1 rows have one that an earlier row has",
    ]
    assert lines[5].startswith("prompt tokens: 4 to 100; ")
    page = "\n".join(lines)
    assert f"dropped: 1 rows have more than data.max_prompt_length=60 tokens\n  {file}, line 4: 100 tokens" in page
    assert f"broken: 2 rows cannot be encoded\n  {file}, line 5: the prompt is empty" in page
    assert "kept: 3 rows\nwould stop the run: 2 rows, 2 that cannot be encoded\n" in page
    assert f"--- {file}, line 1\n[attention 0: 56 padding tokens] [attention 1: 4 tokens]\n1+1=\n" in page
    assert "<|im_start|>user\nhi <eos><|im_end|>\n<|im_start|>assistant\n" in page
    assert '"ground_truth": "سلام"' in page
    assert "\033[" not in page


def test_colours_tell_control_tokens_from_text(
    file: Path, tiny_model_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main([str(file), "--tokenizer", str(tiny_model_dir), "--color", "always", "--rows", "2", "--limit", "2"])
    page = capsys.readouterr().out
    assert "\033[1;36m<|im_end|>\033[0m" in page
    assert "hi <eos>" in page  # as the user wrote it: no control token


def test_what_is_cut_is_said(file: Path, tiny_model_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(
        [str(file), "--tokenizer", str(tiny_model_dir), "--rows=4", "data.max_prompt_length=50", "data.truncation=left"]
    )
    page = capsys.readouterr().out
    assert "[50 of 100 tokens are cut on the left]" in page
    assert "kept: 4 rows\nwould stop the run: 2 rows, 2 that cannot be encoded\n" in page


def test_rows_that_would_stop_the_run_are_not_kept(
    file: Path, tiny_model_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main([str(file), "--tokenizer", str(tiny_model_dir), "data.max_prompt_length=60"])
    assert (
        "kept: 3 rows\nwould stop the run: 3 rows, 2 that cannot be encoded and 1 longer than "
        "data.max_prompt_length=60 (data.truncation=error)\n"
    ) in capsys.readouterr().out
    main([str(file), "--tokenizer", str(tiny_model_dir), "--limit", "3", "data.max_prompt_length=60"])
    page = capsys.readouterr().out
    assert "kept: 3 rows\n" in page and "would stop" not in page


def test_histogram() -> None:
    assert list(histogram(np.array([1, 1, 2]))) == [
        f"       1-1             2 {'#' * 40}",
        f"       2-2             1 {'#' * 20}",
    ]


def test_from_the_command_line(file: Path, tiny_model_dir: Path) -> None:
    def run(*arguments: str) -> Any:
        command = [sys.executable, "-m", "verl.data.preview", *arguments, "--tokenizer", str(tiny_model_dir)]
        return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, env=os.environ)

    done = run(str(file), "data.prompt_key=question")
    assert done.returncode == 1
    assert done.stderr.strip().endswith(
        "there is no column 'question', only prompt, data_source, extra_info: set data.prompt_key"
    )
