"""Untrusted Python programs, in a process of their own with limits. No limits, no run.

What the limits are, and what they do not cover, says `verl.rewards.sandbox_child`.
"""

import json
import logging
import subprocess
import sys
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any

logger = logging.getLogger(__name__)

_CHILD = Path(__file__).with_name("sandbox_child.py")
_ENVIRONMENT = {"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}


class SandboxError(RuntimeError):
    """The limits cannot be set on this machine, so nothing was run."""


@dataclass(frozen=True)
class SandboxLimits:
    """Of one program: seconds by the clock (and of the processor), memory, and what it may write to its output."""

    timeout_s: float = 5.0
    memory_bytes: int = 1 << 30
    output_bytes: int = 1 << 20


@dataclass(frozen=True)
class Finished:
    """How a program ended.

    Attributes:
        ok: it ran to its end without an error.
        stdout, stderr: what it wrote.
        value: what the function returned, through JSON (tuples are lists); None when there is none.
        has_value: whether there is one.
        timed_out: it was stopped at its time limit.
    """

    ok: bool
    stdout: str
    stderr: str
    value: Any = None
    has_value: bool = False
    timed_out: bool = False


def run_program(
    source: str,
    stdin: str = "",
    function: str | None = None,
    arguments: list[Any] | None = None,
    limits: SandboxLimits | None = None,
) -> Finished:
    """Run `source` as a script; with `function`, call it afterwards (or that method of a class `Solution`) with
    `arguments` and bring back what it returns.

    Raises SandboxError when this machine cannot set the limits. Warns once where it can, but cannot keep a program from
    reading the memory of its user's processes.
    """
    limits = limits or SandboxLimits()
    request = {
        "source": source,
        "function": function,
        "arguments": arguments or [],
        "cpu_s": int(limits.timeout_s) + 2,
        "memory_bytes": limits.memory_bytes,
        "output_bytes": limits.output_bytes,
    }
    with ExitStack() as stack:
        asked, given, out, err, limited, result = (stack.enter_context(TemporaryFile()) for _ in range(6))
        _fill(asked, json.dumps(request))
        _fill(given, stdin)
        descriptors = (asked.fileno(), limited.fileno(), result.fileno())
        process = subprocess.Popen(
            [sys.executable, "-I", "-B", str(_CHILD), *map(str, descriptors)],
            stdin=given,
            stdout=out,
            stderr=err,
            pass_fds=descriptors,
            env=_ENVIRONMENT,
            cwd="/",
        )
        timed_out = False
        try:
            process.wait(limits.timeout_s)
        except subprocess.TimeoutExpired:
            timed_out = True
        finally:
            process.kill()
            process.wait()
        stdout, stderr, said, returned = (_text(file) for file in (out, err, limited, result))
    _check_limits(said)
    value, has_value = None, False
    if function is not None and process.returncode == 0:
        try:
            value, has_value = json.loads(returned), True
        except (ValueError, RecursionError):
            stderr += "\nthe function's result is no JSON"
    return Finished(process.returncode == 0 and not timed_out, stdout, stderr, value, has_value, timed_out)


def _check_limits(said: str) -> None:
    """What the child said of its limits before it ran the program: nothing, if it was stopped before that."""
    limited = json.loads(said) if said else {"refused": None, "hidden": True}
    if limited["refused"] is not None:
        raise SandboxError(f"programs cannot be run with limits here, so none is run: {limited['refused']}")
    if not limited["hidden"]:
        _warn_of_sight()


@cache  # once in a process
def _warn_of_sight() -> None:
    logger.warning(
        "programs that are scored can read the environment and the memory of this user's processes, with answers and "
        "keys: this machine offers neither Landlock (Linux 5.13 or newer) nor user namespaces; score on one with either"
    )


def _fill(file: IO[bytes], text: str) -> None:
    file.write(text.encode("utf-8", errors="surrogatepass"))
    file.seek(0)


def _text(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode(errors="replace")
