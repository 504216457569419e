import io
import logging
from collections.abc import Iterator

import pytest

from verl.utils.activity import current, doing
from verl.utils.events import LogSettings, Origin, event, phase

logger = logging.getLogger("verl.trainer.ppo")


@pytest.fixture
def verl_logger() -> Iterator[logging.Logger]:
    """The logger "verl", as it was before when the test is over."""
    root = logging.getLogger("verl")
    level, handlers, propagate = root.level, list(root.handlers), root.propagate
    yield root
    root.setLevel(level)
    root.handlers[:] = handlers
    root.propagate = propagate


def fields(record: logging.LogRecord) -> tuple[object, ...]:
    return record.role, record.rank, record.step, record.duration  # type: ignore[attr-defined]


def test_an_event_has_fields_and_reads_as_a_line(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, "verl"):
        event(logger, "actor completed gen", role="actor", step=123, seconds=1.25)
        event(logger, "started", level=logging.DEBUG)
        with doing("update", role="critic", rank=1, step=4):
            event(logging.getLogger("verl.worker.critic"), "update completed", seconds=30.4)
    assert [record.getMessage() for record in caplog.records] == [
        "[Step 123] actor completed gen, 1.25 s",
        "started",
        "[Step 4] update completed, 30 s",
    ]
    assert [fields(record) for record in caplog.records] == [
        ("actor", None, 123, 1.25),
        ("driver", None, None, None),
        ("critic", 1, 4, 30.4),
    ]
    assert caplog.records[0].funcName == "test_an_event_has_fields_and_reads_as_a_line"


def test_a_phase_is_timed_logged_and_shown(caplog: pytest.LogCaptureFixture) -> None:
    timings = {"gen": 1.0}
    with caplog.at_level(logging.DEBUG, "verl"):
        with phase("gen", timings, logger=logger, role="actor_rollout", step=3):
            assert current() is not None and (current().name, current().step) == ("gen", 3)  # type: ignore[union-attr]
        with pytest.raises(KeyError), phase("values", timings, logger=logger, role="critic"):
            raise KeyError
    assert timings["gen"] > 1.0 and timings["values"] > 0
    begin, end, failed = caplog.records  # what fails is not completed
    assert begin.getMessage() == "[Step 3] dispatching gen to actor_rollout" and begin.levelno == logging.DEBUG
    assert end.getMessage().startswith("[Step 3] actor_rollout completed gen, 0.00 s") and end.levelno == logging.INFO
    assert fields(end)[:3] == ("actor_rollout", None, 3)
    assert fields(end)[3] == pytest.approx(timings["gen"] - 1.0, abs=1e-3)
    assert failed.getMessage() == "dispatching values to critic"


def test_workers_log_as_the_driver_does_and_nothing_twice(verl_logger: logging.Logger) -> None:
    text, other = io.StringIO(), io.StringIO()
    verl_logger.setLevel(logging.DEBUG)
    verl_logger.addHandler(logging.StreamHandler(other))
    verl_logger.handlers[-1].setFormatter(logging.Formatter("%(levelname)s|%(name)s|%(message)s"))
    settings = LogSettings.here()
    assert settings.level == logging.DEBUG and settings.format == "%(levelname)s|%(name)s|%(message)s"
    assert Origin().log == settings

    verl_logger.handlers.clear()  # as in a worker's process
    handler = logging.StreamHandler(text)
    for _ in range(2):
        settings.apply(handler)
    logging.getLogger().addHandler(twice := logging.StreamHandler(other))
    event(logging.getLogger("verl.worker.actor"), "made", level=logging.DEBUG)
    logging.getLogger().removeHandler(twice)
    assert text.getvalue() == "DEBUG|verl.worker.actor|made\n" and other.getvalue() == ""


def test_where_a_call_comes_from() -> None:
    with doing("gen", step=7):
        origin = Origin()
    assert origin.step == 7 and Origin().step is None
    assert origin.job == Origin().job
