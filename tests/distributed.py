"""Runs one function of a test file on several gloo processes; the fixture `run_distributed` starts this script."""

import importlib.util
import os
import socket
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def load_file(path: str) -> Any:
    spec = importlib.util.spec_from_file_location(Path(path).stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[Path(path).stem] = module
    spec.loader.exec_module(module)
    return module


def run_rank(rank: int, function: Callable[..., Any], folder: Path, world_size: int, port: int) -> None:
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(world_size), LOCAL_RANK=str(rank))
    dist.init_process_group(
        "gloo",
        init_method=f"tcp://127.0.0.1:{port}",
        rank=rank,
        world_size=world_size,
        timeout=timedelta(seconds=60),
    )
    result = function(*torch.load(folder / "args.pt", weights_only=False))
    torch.save(result, folder / f"result_{rank}.pt")
    dist.barrier()
    dist.destroy_process_group()


def main(source: str, function: str, folder: str, world_size: int) -> None:
    torch.set_num_threads(1)
    sys.path.insert(0, str(Path(__file__).parents[1]))  # so that test files can import tests.conftest
    target = getattr(load_file(source), function)
    # Forked and not spawned: what the test file imports, which takes seconds, is imported once.
    mp.start_processes(
        run_rank, (target, Path(folder), world_size, free_port()), nprocs=world_size, start_method="fork"
    )


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]))
