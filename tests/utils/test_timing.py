import time

import pytest

from verl.utils.timing import timer


def test_timer_adds_up_seconds_and_counts_a_failing_block() -> None:
    timings: dict[str, float] = {}
    with timer("gen", timings):
        time.sleep(0.02)
    first = timings["gen"]
    with pytest.raises(KeyError), timer("gen", timings):
        time.sleep(0.02)
        raise KeyError
    assert 0.02 <= first < 30
    assert timings["gen"] >= first + 0.02
    assert list(timings) == ["gen"]
