"""Reward functions that misbehave, in processes: each ends as documented, and the others keep their scores."""

import asyncio
import os
import re
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from verl.protocol import DataProto
from verl.rewards import Limits, RewardManager

Batches = Callable[..., DataProto]
WORDS = ["one", "two", "three"]


def process_ids(manager: RewardManager) -> list[int]:
    assert manager._pool is not None
    return [worker.process.pid for worker in manager._pool._workers]


@pytest.fixture
def manager(tiny_tokenizer: Any) -> Iterator[Callable[..., RewardManager]]:
    """`manager(fn, timeout_s=..., ...)` -> a manager with 2 processes, which end with the test."""
    made: list[RewardManager] = []

    def build(fn: Any, **limits: Any) -> RewardManager:
        made.append(RewardManager(tiny_tokenizer, fn, Limits(**{"num_workers": 2, **limits})))
        return made[-1]

    yield build
    for each in made:
        each.close()


def row_scores(result: Any) -> list[float]:
    return [round(value, 4) for value in result.token_level_scores.sum(-1).tolist()]


def test_rows_come_back_in_order_whatever_order_they_end_in(manager: Any, responses_batch: Batches) -> None:
    def slow_first(solution_str: str, **_: Any) -> dict[str, Any]:
        time.sleep(0.3 if solution_str == "0" else 0)
        return {"score": float(solution_str), "process": os.getpid()}

    texts = [str(number) for number in range(40)]
    result = manager(slow_first)(responses_batch(texts))
    assert row_scores(result) == [float(text) for text in texts]
    assert len(set(result.extras["process"])) == 2
    assert os.getpid() not in result.extras["process"]


@pytest.mark.parametrize(
    ("misbehave", "counted", "reason"),
    [
        (lambda: 1 / 0, "errors", "raised ZeroDivisionError: division by zero"),
        (lambda: time.sleep(60), "timeouts", "took longer than 1 s and was stopped"),
        (lambda: re.match(r"(a+)+$", "a" * 40 + "b"), "timeouts", "took longer than 1 s"),
        (lambda: os._exit(3), "crashes", r"ended its process \(exit code 3\)"),
        (lambda: sys.exit(4), "errors", "raised SystemExit: 4"),
        (lambda: None, "no_score", "returned None where a finite number"),
        (lambda: float("nan"), "no_score", "returned nan where"),
        (lambda: "0.5", "no_score", "returned '0.5' where"),
        (lambda: {"score": lambda: 0}, "errors", "raised"),  # cannot come back from the process
    ],
    ids=["raises", "sleeps", "regex", "dies", "exits", "none", "nan", "string", "unpicklable"],
)
def test_d3_the_others_keep_their_scores(
    manager: Any, responses_batch: Batches, misbehave: Callable[[], Any], counted: str, reason: str
) -> None:
    """D3: one of 3 raises, or hangs with a limit of 1 s: default, a flag and a count, at about the limit."""

    def score(solution_str: str, **_: Any) -> Any:
        return misbehave() if solution_str == "two" else 1.0

    started = time.monotonic()
    result = manager(score, timeout_s=1, on_invalid="default", default_score=-0.5)(responses_batch(WORDS))
    assert time.monotonic() - started < 15
    assert row_scores(result) == [1, -0.5, 1]
    assert result.extras["invalid"].tolist() == [False, True, False]
    assert re.search(reason, result.extras["invalid_reason"][1])
    assert result.metrics["reward/invalid"] == result.metrics[f"reward/{counted}"] == 1
    assert result.excluded is None


def test_d3_raise_names_the_row_and_stops_at_once(manager: Any, responses_batch: Batches) -> None:
    """The row and the traceback of the process; rows that hang after it are not waited for."""

    def score(solution_str: str, **_: Any) -> float:
        if solution_str == "two":
            raise KeyError("answer")
        time.sleep(0 if solution_str == "one" else 60)
        return 1.0

    started = time.monotonic()
    with pytest.raises(
        ValueError, match=r"row 1 \(data_source 's', response 'two'\): .* raised KeyError: 'answer'"
    ) as caught:
        manager(score, timeout_s=30)(responses_batch(WORDS))
    assert time.monotonic() - started < 15
    assert "in score\nKeyError: 'answer'" in str(caught.value.__cause__)


def test_one_slow_row_of_many_costs_only_itself(manager: Any, responses_batch: Batches) -> None:
    def score(solution_str: str, **_: Any) -> float:
        time.sleep(10 if solution_str == "77" else 0)
        return float(solution_str)

    texts = [str(number) for number in range(256)]
    started = time.monotonic()
    result = manager(score, timeout_s=1, on_invalid="exclude")(responses_batch(texts))
    assert time.monotonic() - started < 9
    expected = [float(text) for text in texts]
    expected[77] = 0
    assert row_scores(result) == expected
    assert result.excluded.nonzero().flatten().tolist() == [77]


def test_a_process_that_was_ended_is_replaced(manager: Any, responses_batch: Batches) -> None:
    def score(solution_str: str, **_: Any) -> float:
        return os._exit(1) if solution_str == "two" else 1.0

    scoring = manager(score, num_workers=1, on_invalid="default")
    first = scoring(responses_batch(WORDS))
    second = scoring(responses_batch(["one", "one"]))
    assert (row_scores(first), row_scores(second)) == ([1, 0, 1], [1, 1])


def test_everything_that_a_hung_function_started_is_ended(
    manager: Any, responses_batch: Batches, tmp_path: Path
) -> None:
    file = tmp_path / "child"

    def score(solution_str: str, **_: Any) -> float:
        child = os.fork()
        if child == 0:
            time.sleep(60)
            os._exit(0)
        file.write_text(str(child))
        time.sleep(60)
        return 1.0

    result = manager(score, timeout_s=1, on_invalid="default")(responses_batch(["x"]))
    assert result.metrics["reward/timeouts"] == 1
    child = int(file.read_text())
    stat = Path(f"/proc/{child}/stat")
    deadline = time.monotonic() + 5
    while stat.exists() and stat.read_text().split()[2] != "Z":
        assert time.monotonic() < deadline, "the child of the reward function is still there"
        time.sleep(0.1)


def test_a_function_that_forks_or_prints_does_no_harm(manager: Any, responses_batch: Batches) -> None:
    def score(solution_str: str, **_: Any) -> float:
        print("scored", solution_str)
        os.fork()  # the child comes back as well
        return 2.0

    assert row_scores(manager(score)(responses_batch(WORDS))) == [2, 2, 2]


def test_async_functions_run_together(manager: Any, responses_batch: Batches) -> None:
    async def score(solution_str: str, **_: Any) -> float:
        if solution_str == "7":
            raise RuntimeError("no reply")
        await asyncio.sleep(30 if solution_str == "5" else 0.5)
        return float(solution_str)

    texts = [str(number) for number in range(40)]
    started = time.monotonic()
    result = manager(score, timeout_s=2, on_invalid="default", default_score=-1)(responses_batch(texts))
    assert time.monotonic() - started < 10  # one by one it would be 20 s in two processes
    expected = [float(text) for text in texts]
    expected[5] = expected[7] = -1
    assert row_scores(result) == expected
    assert (result.metrics["reward/timeouts"], result.metrics["reward/errors"]) == (1, 1)


def test_an_async_function_that_blocks_the_loop_is_found(manager: Any, responses_batch: Batches) -> None:
    async def score(solution_str: str, **_: Any) -> float:
        if solution_str == "two":
            os._exit(1)
        return 1.0

    result = manager(score, on_invalid="default")(responses_batch(["one", "two", "one", "one", "one"]))
    assert row_scores(result) == [1, 0, 1, 1, 1]
    assert result.metrics["reward/crashes"] == 1


def test_lambdas_with_surroundings_travel(manager: Any, responses_batch: Batches) -> None:
    scale = {"value": 3.0}
    assert row_scores(manager(lambda prompts, responses: [scale["value"]] * len(prompts))(responses_batch(WORDS))) == [
        3,
        3,
        3,
    ]


def test_what_cannot_travel_is_said_at_the_start(manager: Any) -> None:
    import threading

    lock = threading.Lock()
    with pytest.raises(ValueError, match="'score' cannot be sent to a scoring process .*reward.num_workers=0"):
        manager(lambda solution_str, **_: float(lock.locked()))


class EndsItsProcess:
    """A function that ends each process that loads it, as long as `file` is there."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __call__(self, data_source: Any, solution_str: Any, ground_truth: Any, extra_info: Any) -> float:
        return 1.0

    def __reduce__(self) -> Any:
        source = f"import os; os.path.exists({str(self.file)!r}) and os._exit(3)"
        return eval, (f"[exec({source!r}), lambda **_: 1.0][1]",)


def test_a_process_that_ends_while_it_loads_is_told_and_replaced(
    manager: Any, responses_batch: Batches, tmp_path: Path
) -> None:
    """Both processes end; the next run starts two new ones."""
    file = tmp_path / "there"
    file.touch()
    scoring = manager(EndsItsProcess(file))
    for _ in range(2):
        with pytest.raises(RuntimeError, match="cannot load the reward functions: ended while it started"):
            scoring(responses_batch(WORDS))
        assert process_ids(scoring) == []
    file.unlink()
    assert row_scores(scoring(responses_batch(WORDS))) == [1, 1, 1]


def test_a_process_that_ends_before_it_reads_is_told_and_replaced(
    manager: Any, responses_batch: Batches, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The function, of 16 MB, is sent to a process that is gone: the connection is reset."""
    table = os.urandom(1 << 24)
    scoring = manager(lambda **_: float(len(table) == 1 << 24))
    with monkeypatch.context() as patch:
        patch.setattr(sys, "executable", "/bin/false")
        with pytest.raises(RuntimeError, match="cannot load the reward functions: ended while it started"):
            scoring(responses_batch(WORDS))
    assert row_scores(scoring(responses_batch(WORDS))) == [1, 1, 1]


def test_a_batch_function_that_hangs_fails_all_rows(manager: Any, responses_batch: Batches) -> None:
    def score(prompts: list[str], responses: list[str]) -> list[float]:
        time.sleep(60)
        return [1.0] * len(responses)

    result = manager(score, batch_timeout_s=1, on_invalid="exclude")(responses_batch(WORDS))
    assert result.excluded.tolist() == [True, True, True]
    with pytest.raises(ValueError, match="the batch: the scoring function took longer than 1 s"):
        manager(score, batch_timeout_s=1)(responses_batch(WORDS))


def test_processes_stay_between_batches_and_end_with_close(manager: Any, responses_batch: Batches) -> None:
    scoring = manager(lambda solution_str, **_: 1.0)
    scoring(responses_batch(WORDS))
    first = process_ids(scoring)
    scoring(responses_batch(WORDS))
    assert process_ids(scoring) == first
    scoring.close()
    assert process_ids(scoring) == []
    assert not any(os.path.exists(f"/proc/{pid}") for pid in first)
    assert row_scores(scoring(responses_batch(WORDS))) == [1, 1, 1]


def test_processes_that_died_between_two_batches_are_replaced(manager: Any, responses_batch: Batches) -> None:
    """Such as by the system, for memory: all of them at once."""
    scorer = manager(lambda solution_str, **_: float(solution_str))
    assert row_scores(scorer(responses_batch(["1", "2"]))) == [1.0, 2.0]
    for worker in scorer._pool._workers:
        worker.process.kill()
        worker.process.wait()
    assert row_scores(scorer(responses_batch(["3", "4"]))) == [3.0, 4.0]
