"""What goes from the driver to a worker and back."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from verl.utils.activity import Awaited
from verl.utils.events import Origin
from verl.worker.rows import RowPlan


@dataclass(frozen=True)
class Call:
    """The arguments of one method call on one rank, and where they come from."""

    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)
    origin: Origin = field(default_factory=Origin, compare=False)

    def map(self, fn: Callable[[Any], Any]) -> "Call":
        """The call with `fn` applied to every argument."""
        kwargs = {name: fn(value) for name, value in self.kwargs.items()}
        return replace(self, args=tuple(map(fn, self.args)), kwargs=kwargs)

    def named(self) -> Iterator[tuple[str, Any]]:
        """Each argument with the name that an error message gives it."""
        for number, value in enumerate(self.args):
            yield f"positional argument {number}", value
        for name, value in self.kwargs.items():
            yield f"argument {name!r}", value


@dataclass(frozen=True)
class Reply:
    """What a rank returned. `plan` is there when the rank itself split a batch that the driver never saw."""

    value: Any
    plan: RowPlan | None = None


@dataclass(frozen=True)
class CallSite:
    """Which call, in which process. `pid` is 0 while nothing is known of the process."""

    role: str
    method: str
    rank: int
    node: str
    pid: int

    def __str__(self) -> str:
        return str(self.awaited)

    @property
    def awaited(self) -> Awaited:
        return Awaited(f"{self.role}.{self.method}", self.rank, self.node, self.pid)


def annotate(error: Exception, site: CallSite) -> None:
    """Add to `error` a note, and the attribute `raised_by`, that tell where it was raised.

    An error that already came from another worker, through a future, keeps its origin and gets a second note.
    """
    if hasattr(error, "raised_by"):
        error.add_note(f"and reached {site}, which had been handed the result")
    else:
        error.raised_by = site  # type: ignore[attr-defined]
        error.add_note(f"raised by {site}")
