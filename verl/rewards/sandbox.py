"""Untrusted Python programs, in a process of their own with limits. No limits, no run.

What the limits are, and what they do not cover, says `verl.rewards.sandbox_child`.
"""

import json
import subprocess
import sys
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any

from verl.rewards.sandbox_child import REFUSED

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

    Raises SandboxError when this machine cannot set the limits.
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
        asked, given, out, err, result = (stack.enter_context(TemporaryFile()) for _ in range(5))
        _fill(asked, json.dumps(request))
        _fill(given, stdin)
        descriptors = (asked.fileno(), result.fileno())
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
        stdout, stderr, returned = (_text(file) for file in (out, err, result))
    if process.returncode == REFUSED:
        raise SandboxError(f"programs cannot be run with limits here, so none is run: {stderr.strip()}")
    value, has_value = None, False
    if function is not None and process.returncode == 0:
        try:
            value, has_value = json.loads(returned), True
        except ValueError:
            stderr += "\nthe function's result is no JSON"
    return Finished(process.returncode == 0 and not timed_out, stdout, stderr, value, has_value, timed_out)


def _fill(file: IO[bytes], text: str) -> None:
    file.write(text.encode("utf-8", errors="surrogatepass"))
    file.seek(0)


def _text(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode(errors="replace")
