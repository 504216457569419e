"""Programs as answers: run against tests in a sandbox, by standard input and output or by calls of a function."""

import json
import math
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from verl.rewards.answers import fenced_block
from verl.rewards.sandbox import SandboxLimits, run_program

_PYTHON = ("python", "python3", "py", "")
_TOLERANCE = 1e-6


def compute_score(
    solution_str: str,
    ground_truth: Any,
    partial: bool = False,
    timeout_s: float = 5.0,
    memory_mb: int = 1024,
    max_tests: int | None = None,
) -> dict[str, Any]:
    r"""`score` 1 if the response's program passes all tests, else 0; with `partial`, the share that it passes.

    The program is the last fenced block of Python (or of no language). Tests are a dict, or JSON text of one:

        {"inputs": ["1 2\n", ...], "outputs": ["3\n", ...]}
            standard input and output, compared word by word, numbers within 1e-6
        {"fn_name": "add", "inputs": [[1, 2], ...], "outputs": [3, ...]}
            a call each; an input may also be text with one JSON argument a line, an output JSON text

    Each test runs anew with `timeout_s` and `memory_mb`, and is given no expected output; what it could find by itself
    says `verl.rewards.sandbox_child`. Without `partial` the first that fails is the last. The dict also has `passed`
    and `tests`, and `error`, the end of what the first failing test wrote to its standard error.

    Raises ValueError for a ground truth of another form, SandboxError when programs cannot be limited here.
    """
    tests = _tests(ground_truth)
    inputs, outputs = tests["inputs"][:max_tests], tests["outputs"][:max_tests]
    source = fenced_block(solution_str, _PYTHON)
    if source is None:
        return {"score": 0.0, "passed": 0, "tests": len(inputs), "error": "the response has no fenced block of code"}
    limits = SandboxLimits(timeout_s, memory_mb << 20)
    passed, error = 0, None
    for given, expected in zip(inputs, outputs, strict=True):
        problem = _run_test(source, tests.get("fn_name"), given, expected, limits)
        passed += problem is None
        error = error or problem
        if problem is not None and not partial:
            break
    score = passed / len(inputs) if partial else float(passed == len(inputs))
    return {"score": score, "passed": passed, "tests": len(inputs), "error": error}


def _run_test(source: str, function: str | None, given: Any, expected: Any, limits: SandboxLimits) -> str | None:
    """None if the test passes, else what went wrong."""
    if function is None:
        done = run_program(source, stdin=_joined(given), limits=limits)
        right = done.ok and _same_text(done.stdout, _joined(expected))
    else:
        done = run_program(source, function=function, arguments=_arguments(given), limits=limits)
        right = done.ok and done.has_value and any(_same(done.value, wanted) for wanted in _expected(expected))
    if right:
        return None
    if done.timed_out:
        return f"stopped after {limits.timeout_s:g} s"
    return done.stderr.strip()[-300:] or "wrong answer"


def _tests(ground_truth: Any) -> Mapping[str, Any]:
    try:
        tests = json.loads(ground_truth) if isinstance(ground_truth, str) else ground_truth
        inputs, outputs = tests["inputs"], tests["outputs"]
        if not inputs or len(inputs) != len(outputs):
            raise ValueError(f"{len(inputs)} inputs and {len(outputs)} outputs")
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(
            "the ground truth of a code row must be {inputs, outputs} with as many of each, and fn_name for calls: "
            f"{error!r}"
        ) from error
    return tests


def _joined(value: Any) -> str:
    return "\n".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def _arguments(given: Any) -> list[Any]:
    if isinstance(given, str):
        return [json.loads(line) for line in given.splitlines() if line.strip()]
    return list(given)


def _expected(expected: Any) -> list[Any]:
    """What counts as right: the value, what its JSON text means, and the first of a list of one."""
    values = [expected]
    if isinstance(expected, str):
        with suppress(ValueError):
            values.append(json.loads(expected))
    return values + [value[0] for value in values if isinstance(value, list) and len(value) == 1]


def _same_text(written: str, expected: str) -> bool:
    left, right = written.split(), expected.split()
    return len(left) == len(right) and all(map(_same_word, left, right))


def _same_word(left: str, right: str) -> bool:
    if left == right:
        return True
    try:
        return math.isclose(float(left), float(right), rel_tol=_TOLERANCE, abs_tol=_TOLERANCE)
    except ValueError:
        return False


def _same(left: Any, right: Any) -> bool:
    """Equal through JSON, with numbers that are not whole within 1e-6."""
    if isinstance(left, bool) or isinstance(right, bool):
        return left is right
    if isinstance(left, int | float) and isinstance(right, int | float):
        exact = isinstance(left, int) and isinstance(right, int)
        try:
            return left == right if exact else math.isclose(left, right, rel_tol=_TOLERANCE, abs_tol=_TOLERANCE)
        except OverflowError:  # a whole number beyond all floats
            return False
    if isinstance(left, list) and isinstance(right, list | tuple):
        return len(left) == len(right) and all(map(_same, left, right))
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() == {str(key) for key in right} and all(_same(left[str(key)], right[key]) for key in right)
    return left == right
