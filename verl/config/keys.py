"""How a config key is declared: a default, a one-line meaning, and nothing else."""

from dataclasses import field
from typing import Any


def key(default: Any, doc: str) -> Any:
    """A dataclass field with its meaning. `default` may be a class or other factory (called for each instance).

    The meaning becomes the key's row in docs/config.md.
    """
    if callable(default):
        return field(default_factory=default, metadata={"doc": doc})
    return field(default=default, metadata={"doc": doc})
