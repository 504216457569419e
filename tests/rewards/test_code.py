"""Programs as answers, and what they must not be able to do."""

import ctypes
import json
import os
import subprocess
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
        (program("import os; os._exit(97)"), "wrong answer"),
        (program("raise SystemExit(97)"), "wrong answer"),
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


@pytest.mark.parametrize("code", [97, 1, 0])
def test_a_program_cannot_claim_that_it_was_refused(code: int) -> None:
    """Whatever it writes wherever it can, and however it ends: that is its own failure."""
    source = (
        "import os\n"
        "for descriptor in range(3, 64):\n"
        "    try:\n"
        "        os.lseek(descriptor, 0, 0)\n"
        '        os.write(descriptor, b\'{"refused": "x", "hidden": false}\')\n'
        "    except OSError:\n"
        "        pass\n"
        f"os._exit({code})"
    )
    done = run_program(source)
    assert (done.ok, done.stderr, done.timed_out) == (code == 0, "", False)


LOOK = """
import os, re

def look():
    parent, found = f"/proc/{os.getppid()}", []
    try:
        found += re.findall(rb"secret-[0-9a-f]{8}", open(f"{parent}/environ", "rb").read())
    except OSError as error:
        found.append(error.strerror)
    try:
        maps = [line.split()[:2] for line in open(f"{parent}/maps")]
        with open(f"{parent}/mem", "rb", buffering=0) as memory:
            for region, rights in maps:
                start, end = (int(address, 16) for address in region.split("-"))
                if rights.startswith("rw") and end - start < 1 << 26:
                    memory.seek(start)
                    found += re.findall(rb"secret-[0-9a-f]{8}", memory.read(end - start))
    except OSError as error:
        found.append(error.strerror)
    return sorted({str(item) for item in found})
"""

SCORE = """
import ctypes, json, os, sys
from pathlib import Path
from verl.rewards import sandbox, sandbox_child

child, source, drop = sys.argv[1:]
if drop == "True":
    sandbox_child.drop_capabilities(ctypes.CDLL(None, use_errno=True))
sandbox._CHILD = Path(child)
expected = "secret-" + "".join(["4567", "cdef"])
print(json.dumps(sandbox.run_program(source, function="look").value))
"""

# What a kernel without them is made of: a call and a flag that do not exist.
WITHOUT = {
    "landlock": ("_LANDLOCK_RESTRICT_SELF = 444, 446", "_LANDLOCK_RESTRICT_SELF = 9999, 446"),
    "user namespaces": ("_CLONE_NEWUSER = 0x10000000", "_CLONE_NEWUSER = 0x1"),
}


def user_namespaces() -> bool:
    probe = f"import ctypes, sys; sys.exit(ctypes.CDLL(None).unshare({sandbox_child._CLONE_NEWUSER}) != 0)"
    return subprocess.run([sys.executable, "-c", probe]).returncode == 0


def landlock() -> bool:
    version_only = 1
    return ctypes.CDLL(None).syscall(sandbox_child._LANDLOCK_CREATE_RULESET, None, ctypes.c_size_t(0), version_only) > 0


def looked(tmp_path: Path, drop: bool, without: list[str]) -> tuple[list[str], str]:
    """What a program finds in its parent, and what the parent says on its standard error.

    The parent has one secret in its environment and one in its memory; with `drop` it is a user without capabilities.
    The child lacks the ways of hiding that `without` names."""
    source = Path(sandbox_child.__file__).read_text()
    for there, gone in map(WITHOUT.__getitem__, without):
        assert source.count(there) == 1
        source = source.replace(there, gone)
    child = tmp_path / "child.py"
    child.write_text(source)
    environment = {"SECRET": "secret-0123abcd", "PYTHONPATH": os.pathsep.join(sys.path), "PATH": os.environ["PATH"]}
    done = subprocess.run(
        [sys.executable, "-c", SCORE, str(child), LOOK, str(drop)],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads(done.stdout), done.stderr


@pytest.mark.parametrize("drop", [False, True], ids=["this user", "a user without capabilities"])
@pytest.mark.parametrize("without", [[], ["landlock"]], ids=["every way", "without landlock"])
def test_a_program_cannot_look_into_its_parent(tmp_path: Path, drop: bool, without: list[str]) -> None:
    if not user_namespaces() and (without or not landlock()):
        pytest.skip("this machine has no way left of hiding processes from a user without capabilities")
    found, said = looked(tmp_path, drop, without)
    assert (found, said) == (["Permission denied"], "")


def test_what_a_program_can_look_into_is_warned_of(tmp_path: Path) -> None:
    """A user without capabilities, Landlock and namespaces: the program finds both secrets, and that is said."""
    found, said = looked(tmp_path, True, ["landlock", "user namespaces"])
    assert found == ["b'secret-0123abcd'", "b'secret-4567cdef'"]
    assert "can read the environment and the memory of this user's processes" in said


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
