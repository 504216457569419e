"""Driver scripts of their own, with a Ray of their own: what a user sees who asks for too much, whose worker fails, or
who does not wait until Ray has started."""

import subprocess
import sys
from pathlib import Path

SCRIPT = """
import ray
from verl.worker import Dispatch, Worker, register
from verl.workers.ray import RayClassWithInitArgs, RayResourcePool, RayWorkerGroup, ensure_ray


class Failing(Worker):
    @register(Dispatch.ONE_TO_ALL)
    def run(self) -> None:
        raise ValueError("x")


try:
    ensure_ray(timeout_s=0.2)
except TimeoutError as error:
    print(error)
with ensure_ray(num_cpus=1) as session:
    assert session.owned
    with ensure_ray(num_cpus=8) as again:
        assert not again.owned
    assert ray.is_initialized()
    first = RayResourcePool([1], use_gpu=False, name_prefix="first")
    first.slots()
    try:
        RayResourcePool([1, 1], use_gpu=False, name_prefix="big", timeout_s=2).slots()
    except RuntimeError as error:
        print(error)
    first.close()
    RayWorkerGroup(RayResourcePool([1], use_gpu=False), RayClassWithInitArgs(Failing), name_prefix="role").run()
"""


def test_h1_h2_a_whole_script(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=120, check=False)
    assert "Ray did not start within 0.2 s" in done.stdout
    assert "resource pool 'big' did not get its resources within 2 s." in done.stdout
    assert "asked: node 0: 1 CPU; node 1: 1 CPU" in done.stdout
    assert "strategy: STRICT_PACK (trainer.placement_strategy, or strategy in trainer.device_map)" in done.stdout
    assert "): 0 of 1 CPU" in done.stdout
    assert "held by: placement group verl:first:0:" in done.stdout
    assert " (1 CPU on " in done.stdout
    assert "asks for 2 CPU but the cluster has 1. Waiting up to 2 s" in done.stderr
    assert done.returncode == 1
    assert "ValueError: x\nraised by role.run on rank 0 (node " in done.stderr


INTERRUPTED = """
import os
import signal
import subprocess
import threading
import time

import psutil
import ray
from verl.workers.ray import ensure_ray


def children() -> list[str]:
    return sorted(child.name() for child in psutil.Process().children(recursive=True))


def when(name: str, number: int, caught: threading.Event) -> None:
    while name not in children():
        time.sleep(0.02)
    time.sleep(0.2)
    others.append(subprocess.Popen(["sleep", "300"]))
    os.kill(os.getpid(), number)
    while not caught.wait(30):  # Python drops what is raised right after a fork
        os.kill(os.getpid(), number)


others = []
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's jobs in the background ignore it
# An alarm is what comes when the deadline passes.
for name, number in ("gcs_server", signal.SIGINT), ("raylet", signal.SIGINT), ("raylet", signal.SIGALRM):
    caught = threading.Event()
    threading.Thread(target=when, args=(name, number, caught)).start()
    try:
        with ensure_ray(num_cpus=1):
            time.sleep(300)
    except (KeyboardInterrupt, TimeoutError) as error:
        caught.set()
        print(name, type(error).__name__, children(), ray.is_initialized())
    for other in others:
        other.kill()
        other.wait()
    others.clear()
with ensure_ray(num_cpus=1):
    print(ray.cluster_resources()["CPU"], children().count("raylet"))
"""


def test_a_start_that_is_interrupted_or_late_leaves_no_process_of_rays(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(INTERRUPTED)
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=280, check=False)
    # What another thread started meanwhile goes on.
    assert done.stdout.splitlines()[:4] == [
        "gcs_server KeyboardInterrupt ['sleep'] False",
        "raylet KeyboardInterrupt ['sleep'] False",
        "raylet TimeoutError ['sleep'] False",
        "1.0 1",
    ], done.stderr
