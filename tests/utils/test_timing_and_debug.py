import re
import time

import psutil
import pytest
import torch

from verl.utils.debug import memory_metrics, print_memory_usage
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


def test_peak_memory_sees_a_tensor_that_is_gone() -> None:
    before = memory_metrics()["perf/peak_rss_gib"]
    now = psutil.Process().memory_info().rss
    block = torch.ones(int(before * 2**30) - now + 2**27, dtype=torch.int8)  # 0.125 GiB above the peak
    del block
    assert 0.1 < memory_metrics()["perf/peak_rss_gib"] - before < 0.2


def test_print_memory_usage_is_one_line(capsys: pytest.CaptureFixture) -> None:
    print_memory_usage("after init")
    line = capsys.readouterr().out
    assert re.fullmatch(r"\[after init, pid \d+\] rss \d+\.\d\d GiB \| peak rss \d+\.\d\d GiB.*\n", line)
