import mmap
import subprocess
import sys
from pathlib import Path

import numpy as np
import psutil
import pytest
import torch

from verl.utils import memory
from verl.utils.memory import MemoryUsage, PeakMemory, available_memory, reset_peaks, total_memory

RSS = "perf/peak_rss_gib"
EIGHTH = 2**27  # bytes: 0.125 GiB


def use_and_free(size: int) -> None:
    """Pages that come from the kernel and go back to it. A tensor's may be ones that malloc still held."""
    block = mmap.mmap(-1, size)
    np.frombuffer(block, dtype=np.int8)[:] = 1
    block.close()


def resettable() -> None:
    if RSS not in reset_peaks():
        pytest.skip("this kernel cannot reset the mark of the peak")


def test_the_peak_of_a_phase_sees_memory_that_is_gone_and_the_next_phase_does_not() -> None:
    resettable()
    memory = PeakMemory()
    before = psutil.Process().memory_info().rss / 2**30
    with memory.phase("generate"):
        use_and_free(EIGHTH)
    with memory.phase("update"):
        pass
    peaks = memory.take()
    assert 0.1 < peaks[f"{RSS}/generate"] - before < 0.2
    assert peaks[f"{RSS}/update"] - before < 0.1
    assert peaks[RSS] >= peaks[f"{RSS}/generate"]
    # Phases are reported once, the highest of all time always.
    assert memory.take().keys() == {RSS} and memory.take()[RSS] == peaks[RSS]


def test_two_roles_of_one_process_miss_nothing_between_their_phases() -> None:
    resettable()
    first, second = PeakMemory(), PeakMemory()
    with first.phase("a"):
        pass
    before = psutil.Process().memory_info().rss / 2**30
    use_and_free(EIGHTH)
    with second.phase("b"):  # which resets the mark
        pass
    assert second.take()[RSS] - before > 0.1


def test_a_phase_keeps_its_highest_and_counts_when_it_fails() -> None:
    resettable()
    memory = PeakMemory()
    before = psutil.Process().memory_info().rss / 2**30
    with pytest.raises(KeyError), memory.phase("a"):
        use_and_free(EIGHTH)
        raise KeyError
    with memory.phase("a"):
        pass
    assert memory.take()[f"{RSS}/a"] - before > 0.1


def test_the_memory_of_the_parent_does_not_count() -> None:
    code = "from verl.utils.memory import PeakMemory; print(PeakMemory().take()['perf/peak_rss_gib'])"
    block = torch.ones(2**30, dtype=torch.int8)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    del block
    assert float(done.stdout) < 0.9


def test_a_container_may_have_less_than_the_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "CONTROL_GROUP", tmp_path)
    machine = psutil.virtual_memory().total
    assert total_memory() == machine and 0 < available_memory() < machine
    (tmp_path / "memory.max").write_text("max\n")
    assert total_memory() == machine and 0 < available_memory() < machine
    for name, text in (("max", "1000\n"), ("current", "700\n"), ("stat", "file 450\ninactive_file 400\n")):
        (tmp_path / f"memory.{name}").write_text(text)
    assert total_memory() == 1000 and available_memory() == 700
    (tmp_path / "memory.current").write_text("1500\n")  # the limit was lowered
    assert available_memory() == 0
    (tmp_path / "memory.max").write_text(f"{10 * machine}\n")
    assert total_memory() == machine and 0 < available_memory() < machine


def test_usage_now() -> None:
    usage = MemoryUsage.here()
    assert usage.pid == psutil.Process().pid and 0 < usage.rss <= usage.peak_rss
    if not torch.cuda.is_initialized():
        assert usage.device == "cpu" and usage.allocated is None
