"""Errors of groups, beside those that workers raise themselves."""


class WorkerDiedError(RuntimeError):
    """A worker's process ended without raising: `os._exit`, a signal, no memory, a lost node."""


class GroupStoppedError(RuntimeError):
    """The group's processes were ended, because one of them failed (its error is the cause) or by `shutdown`."""
