import re
import subprocess
import sys

import pytest

from verl.utils.activity import Activity, Awaited, doing
from verl.utils.debug import activity_table, memory_lines, print_memory_usage
from verl.utils.memory import MemoryUsage

GIB = 2**30


def test_print_memory_usage_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    print_memory_usage("after init")
    line = capsys.readouterr().out
    assert re.fullmatch(r"\[after init, pid \d+\] rss \d+\.\d\d GiB \| peak rss \d+\.\d\d GiB.*\n", line)


def test_a_row_for_each_process_and_a_warning_when_ranks_differ() -> None:
    def cuda(pid: int, reserved: float) -> MemoryUsage:
        return MemoryUsage(
            "a", pid, 4 * GIB, 5 * GIB, "cuda:0", 2 * GIB, 3 * GIB, int(reserved * GIB), 7 * GIB, 8 * GIB
        )

    together = [cuda(1, 4.0), cuda(2, 3.0)]
    even = [MemoryUsage("a", 3, 100 * GIB, 110 * GIB), MemoryUsage("b", 4, 85 * GIB, 90 * GIB)]
    uneven = [MemoryUsage("a", 5, 4 * GIB, 4 * GIB), MemoryUsage("b", 6, 3 * GIB, 3 * GIB)]
    lines = memory_lines({"actor": together, "ref": together, "critic": even, "rm": uneven})
    assert [" ".join(line.split()) for line in lines[:4]] == [
        "role rank node pid rss peak rss device tensors peak reserved in use",
        "actor+ref 0 a 1 4.00 GiB 5.00 GiB cuda:0 2.00 GiB 3.00 GiB 4.00 GiB 7.00 GiB of 8.00 GiB",
        "actor+ref 1 a 2 4.00 GiB 5.00 GiB cuda:0 2.00 GiB 3.00 GiB 3.00 GiB 7.00 GiB of 8.00 GiB",
        "critic 0 a 3 100.00 GiB 110.00 GiB cpu - - - -",
    ]
    assert lines[7:] == [  # 85 of 100 is a difference of 15%, which is none yet
        "WARNING: actor+ref: reserved device memory differs by 25% between ranks: 3.00 GiB on rank 1, 4.00 GiB on "
        "rank 0",
        "WARNING: rm: resident memory differs by 25% between ranks: 3.00 GiB on rank 1, 4.00 GiB on rank 0",
    ]


def test_the_table_of_who_waits() -> None:
    def at(role: str, rank: int | None, name: str, since: float, pid: int, **fields: object) -> Activity:
        return Activity(role, rank, name, since, 3, "a:7", node="a", pid=pid, process_started=0, **fields)  # type: ignore[arg-type]

    awaited = (Awaited("actor.make", 0, "a", 8), Awaited("actor.make", 1, "a", 10), Awaited("ref.load", 0, "a", 8))
    found = [
        at("critic", 0, "read", 90.0, 9, waits_for=awaited, waits_since=95.0),
        at("actor", 0, "make", 88.0, 8),
        at("driver", None, "values", 89.5, 7),
        at("actor", 1, "", 99.75, 10),
    ]
    table = activity_table(found, now=100.0)
    assert table.splitlines() == [
        "job of the driver a:7",
        "role    rank  node  pid  step  does    for     waits for",
        "driver  -     a     7    3     values  10 s    -",
        "actor   0     a     8    3     make    12 s    -",
        "actor   1     a     10   3     idle    0.25 s  -",
        "critic  0     a     9    3     read    10 s    actor.make on ranks 0, 1, ref.load on rank 0 (5.00 s)",
    ]
    assert (
        activity_table([], now=0.0)
        == "no process of verl that belongs to you runs on this machine (a run is seen once its workers start)"
    )


def test_another_terminal_sees_this_process() -> None:
    with doing("a phase of this test", step=12):
        done = subprocess.run(
            [sys.executable, "-m", "verl.utils.debug"], capture_output=True, text=True, check=True, timeout=60
        )
    assert re.search(r"driver +- .* 12 +a phase of this test +\d", done.stdout)
