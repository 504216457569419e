"""A worker's exception on its way to the driver."""

import traceback
from dataclasses import dataclass

from ray import cloudpickle

from verl.worker.messages import CallSite, annotate


@dataclass(frozen=True)
class Failure:
    """An exception as plain data. Ray's own way would change its type and its text."""

    site: CallSite
    kind: str
    message: str
    notes: tuple[str, ...]
    pickled: bytes | None

    @staticmethod
    def of(error: Exception, site: CallSite) -> "Failure":
        """Annotate `error`, with its traceback if it was raised here, and pack it."""
        if not hasattr(error, "raised_by"):
            text = "".join(traceback.format_exception(error))
            annotate(error, site)
            error.add_note(f"traceback of the worker:\n{text}")
        else:
            annotate(error, site)
        return Failure(site, type(error).__name__, str(error), tuple(error.__notes__), _pickled(error))

    def exception(self) -> Exception:
        """The worker's exception, or a RuntimeError with its type's name and text if it cannot be pickled."""
        if self.pickled is not None:
            try:
                return cloudpickle.loads(self.pickled)
            except Exception:  # the driver may lack the module that defines it; the text is all here
                pass
        error = RuntimeError(f"{self.kind}: {self.message}")
        error.raised_by = self.site  # type: ignore[attr-defined]
        for note in self.notes:
            error.add_note(note)
        return error


def _pickled(error: Exception) -> bytes | None:
    # Exceptions whose __init__ takes other arguments than it passes on can be pickled, but not unpickled.
    try:
        pickled = cloudpickle.dumps(error)
        same = cloudpickle.loads(pickled)
    except Exception:  # whatever the attributes of a foreign exception raise
        return None
    return pickled if type(same) is type(error) and str(same) == str(error) else None
