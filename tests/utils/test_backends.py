"""Devices, dtypes, and what is installed."""

import subprocess
import sys
from importlib.util import find_spec

import pytest
import torch

from verl.utils.backends import (
    BACKENDS,
    backends_table,
    communication_backend,
    get_available_backends,
    require_backend,
    resolve_device,
    resolve_dtype,
)


def test_devices_and_dtypes() -> None:
    assert resolve_device("auto") == ("cuda" if torch.cuda.is_available() else "cpu")
    assert resolve_dtype("auto", "cpu") == torch.float32 and resolve_dtype("auto", "cuda") == torch.bfloat16
    assert resolve_dtype("bfloat16", "cpu") == resolve_dtype("bf16", "cuda") == torch.bfloat16
    assert communication_backend("cpu") == "gloo" and communication_backend("cuda") == "cpu:gloo,cuda:nccl"
    with pytest.raises(ValueError, match="unknown device 'npu': expected auto, cpu or cuda"):
        resolve_device("npu")
    with pytest.raises(ValueError, match="unknown dtype 'int8': expected auto, fp32, bf16, fp16"):
        resolve_dtype("int8", "cpu")


def test_what_is_available() -> None:
    available = get_available_backends()
    asked = {"fsdp", "megatron", "mcore", "vllm", "sglang", "hf", "flash_attn", "liger", "peft", "ray", "cuda", "gloo"}
    assert asked <= set(available) and all(type(value) is bool for value in available.values())
    assert available["fsdp"] and available["hf"] and available["ray"]
    assert available["vllm"] == (find_spec("vllm") is not None)
    assert available["cuda"] == torch.cuda.is_available()


def test_looking_imports_nothing_heavy() -> None:
    code = (
        "import sys; from verl.utils import get_available_backends; get_available_backends();"
        "print([name for name in ('vllm', 'sglang', 'ray', 'transformers', 'megatron') if name in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_the_table_has_versions_and_install_commands() -> None:
    from transformers import __version__

    lines = backends_table().splitlines()
    assert lines[0].split()[:2] == ["backend", "version"] and set(lines[1]) == {"-"}
    rows = {line.split()[0]: line for line in lines[2:]}
    assert list(rows) == [backend.name for backend in BACKENDS] + ["cuda"]
    assert __version__ in rows["hf"]
    for backend in BACKENDS:
        assert (backend.install in rows[backend.name]) == (not backend.is_available())


def test_the_command() -> None:
    done = subprocess.run([sys.executable, "-m", "verl.utils.backends"], capture_output=True, text=True, check=True)
    assert done.stdout == backends_table() + "\n" and done.stderr == ""


def test_what_is_needed_and_missing() -> None:
    require_backend("hf", "this test")
    for backend in BACKENDS:
        if not backend.is_available():
            with pytest.raises(ValueError, match=f"x=1 needs {backend.name}, which is not installed: pip install"):
                require_backend(backend.name, "x=1")
