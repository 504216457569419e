"""What is known about a run besides its config."""

from collections.abc import Collection
from dataclasses import dataclass


@dataclass(frozen=True)
class Facts:
    """What the config does not say itself; see `validate`."""

    needs_critic: bool | None = None
    needs_groups: bool | None = None
    given: Collection[str] = ()
