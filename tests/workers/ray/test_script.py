"""A driver script of its own, with a Ray of its own: what a user sees who asks for too much, or whose worker fails."""

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
        RayResourcePool([2, 2], use_gpu=False, name_prefix="big", timeout_s=2).slots()
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
    assert "asked: node 0: 2 CPU; node 1: 2 CPU" in done.stdout
    assert "): 0 of 1 CPU" in done.stdout
    assert "held by: placement group verl:first:0:" in done.stdout
    assert " (1 CPU on " in done.stdout
    assert "asks for 4 CPU but the cluster has 1. Waiting up to 2 s" in done.stderr
    assert done.returncode == 1
    assert "ValueError: x\nraised by role.run on rank 0 (node " in done.stderr
