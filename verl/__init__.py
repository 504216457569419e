"""Reinforcement learning of large language models. Importing this package loads nothing heavy."""

import os
from typing import TYPE_CHECKING, Any

# OpenMP reads this once, when torch loads, and Ray's processes inherit it. By default threads that wait for each other
# spin: beside another busy process on the same cores, a training step then takes ten times as long.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

if TYPE_CHECKING:
    from verl.protocol import DataProto

__version__ = "0.1.0"
__all__ = ["DataProto", "__version__"]


def __getattr__(name: str) -> Any:
    # PEP 562: torch takes over a second to import, so it waits until somebody asks for a DataProto.
    if name == "DataProto":
        from verl.protocol import DataProto

        return DataProto
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(set(globals()) | set(__all__))
