"""Programs as answers, and what they must not be able to do."""

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from verl.rewards import sandbox, sandbox_child
from verl.rewards.code import compute_score
from verl.rewards.sandbox import SandboxError, SandboxLimits, run_program

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the limits are those of Linux")


def program(source: str) -> str:
    return f"Here it is:\n```python\n{source}\n```\nIt works."


def test_standard_input_and_output() -> None:
    tests = {"inputs": ["1 2\n", "3 4\n"], "outputs": ["3\n", "7"]}
    answer = program("a, b = map(int, input().split())\nprint(a + b)")
    assert compute_score(answer, tests) == {"score": 1.0, "passed": 2, "tests": 2, "error": None}
    assert compute_score(answer, json.dumps(tests))["score"] == 1
    wrong = program("a, b = map(int, input().split())\nprint(3)")
    assert compute_score(wrong, tests) == {"score": 0.0, "passed": 1, "tests": 2, "error": "wrong answer"}
    assert compute_score(wrong, tests, partial=True)["score"] == 0.5


@pytest.mark.parametrize(
    ("source", "inputs", "outputs"),
    [
        ("def add(a, b):\n    return a + b", [[1, 2], "3\n4"], [3, "7"]),
        ("class Solution:\n    def add(self, a, b):\n        return a + b", [[1, 2], [0.1, 0.2]], [[3], 0.3]),
        ("def add(a, b):\n    return (a, b)", [[1, "x"]], [[[1, "x"]]]),
        ("def add(a, b):\n    return {'s': {a, b}}", [[2, 1]], [{"s": [1, 2]}]),
    ],
)
def test_calls_of_a_function(source: str, inputs: list[Any], outputs: list[Any]) -> None:
    result = compute_score(program(source), {"fn_name": "add", "inputs": inputs, "outputs": outputs})
    assert result["score"] == 1, result


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        ("no code", "no fenced block"),
        (program("def sub(a, b): return 0"), "defines no function 'add'"),
        (program("def add(a, b: return 0"), "SyntaxError"),
        (program("def add(a, b): return 1 / 0"), "ZeroDivisionError"),
        (program("def add(a, b): return True"), "wrong answer"),
        (program("def add(a, b): return object()"), "TypeError"),
        (program("import os; os._exit(0)"), "no JSON"),
        (program("while True: pass"), "stopped after 0.5 s"),
    ],
)
def test_what_is_wrong_is_told(answer: str, error: str) -> None:
    result = compute_score(answer, {"fn_name": "add", "inputs": [[0, 1]], "outputs": [1]}, timeout_s=0.5)
    assert result["score"] == 0
    assert error in result["error"]


@pytest.mark.parametrize(
    "truth", ["x", {"inputs": []}, {"inputs": [], "outputs": []}, {"inputs": ["1"], "outputs": []}]
)
def test_tests_must_be_tests(truth: Any) -> None:
    with pytest.raises(ValueError, match="ground truth of a code row"):
        compute_score(program("1"), truth)


@pytest.mark.parametrize(
    "attempt",
    [
        "import socket; socket.socket()",
        "import socket; socket.create_connection(('127.0.0.1', 9), 1)",
        "import os; os.fork()",
        "import os; os.posix_spawn('/bin/true', ['true'], {})",
        "import subprocess; subprocess.run(['true'])",
        "import os; os.execv('/bin/true', ['true'])",
        "open('FILE', 'w')",
        "open('FILE', 'a')",
        "import os; os.remove('FILE')",
        "import os; os.rename('FILE', 'FILE2')",
        "import os; os.mkdir('FILE2')",
        "import os; os.chmod('FILE', 0)",
        "import os; os.truncate('FILE', 0)",
        "import os; os.symlink('FILE', 'FILE2')",
        "import shutil, os; shutil.rmtree(os.path.dirname('FILE'))",
        "import os; os.kill(PARENT, 0)",
        "import os; os.kill(-1, 0)",
        "import resource; resource.setrlimit(resource.RLIMIT_CPU, (99, 99))",
        "import resource; resource.prlimit(PARENT, resource.RLIMIT_CPU, (3, 3))",
        "x = bytearray(2 << 30)",
        "print('x' * (2 << 20))",
    ],
)
def test_a_program_cannot_reach_outside(attempt: str, tmp_path: Path) -> None:
    file = tmp_path / "kept"
    file.write_text("kept")
    source = attempt.replace("FILE", str(file)).replace("PARENT", str(os.getpid()))
    done = run_program(source, limits=SandboxLimits(timeout_s=10))
    assert not done.ok
    assert any(word in done.stderr for word in ("not permitted", "MemoryError", "too large", "not allowed")), done
    assert file.read_text() == "kept"
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]


def test_a_program_may_read_compute_and_use_threads() -> None:
    done = run_program(
        "import threading, math, collections, asyncio\n"
        "thread = threading.Thread(target=print, args=('thread',)); thread.start(); thread.join()\n"
        "async def main(): print(open('/etc/hostname').readable(), math.pi > 3)\n"
        "asyncio.run(main())\n"
        "import os; print(sorted(os.environ))"
    )
    assert done.ok, done
    assert done.stdout.splitlines()[:2] == ["thread", "True True"]
    assert "PYTHONPATH" not in done.stdout


def test_the_time_limit_is_kept() -> None:
    started = time.monotonic()
    done = run_program("import time; print('begun', flush=True); time.sleep(60)", limits=SandboxLimits(timeout_s=1))
    assert (done.ok, done.timed_out, done.stdout) == (False, True, "begun\n")
    assert time.monotonic() - started < 5


def test_no_limits_no_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A child that cannot set its limits runs nothing, and the caller is told."""
    broken = tmp_path / "child.py"
    source = Path(sandbox_child.__file__).read_text()
    broken.write_text(
        source.replace(
            "_PR_SET_SECCOMP, _PR_SET_NO_NEW_PRIVS = 1, 22, 38", "_PR_SET_SECCOMP, _PR_SET_NO_NEW_PRIVS = 1, 9999, 38"
        )
    )
    monkeypatch.setattr(sandbox, "_CHILD", broken)
    marker = tmp_path / "ran"
    with pytest.raises(SandboxError, match="cannot be run with limits here, so none is run: .*Invalid argument"):
        run_program(f"open({str(marker)!r}, 'w')")
    assert not marker.exists()


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_the_filter_of_each_machine_is_whole(machine: str) -> None:
    """Every jump of the program lands inside it."""
    import struct

    code = sandbox_child.call_filter(machine, pid=7)
    instructions = [struct.unpack("=HBBI", code[at : at + 8]) for at in range(0, len(code), 8)]
    assert len(instructions) < 4096
    for at, (operation, if_true, if_false, _) in enumerate(instructions):
        if operation & 7 == 5:
            assert at + 1 + max(if_true, if_false) < len(instructions)
    assert instructions[-1][0] == 0x06
