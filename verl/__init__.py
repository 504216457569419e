"""Reinforcement learning of large language models. Importing this package loads nothing heavy."""

from typing import TYPE_CHECKING, Any

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
