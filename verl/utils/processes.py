"""Python processes that serve this one over a connection."""

import os
import signal
import subprocess
import sys
from contextlib import suppress
from multiprocessing.connection import Connection
from socket import socketpair


def start_python(main: str, **environment: str) -> tuple["subprocess.Popen[bytes]", Connection]:
    """A new Python that calls `main` ("package.module:function") with the file descriptor of its end of a connection,
    and this process's end.

    No fork, since this process may have threads and devices; and unlike multiprocessing's spawn, it does not import the
    user's script again, which costs seconds and runs whatever is not guarded there. `environment` is added to this
    process's own. See `end_python`.
    """
    module, _, function = main.partition(":")
    ours, theirs = socketpair()
    process = subprocess.Popen(
        [sys.executable, "-c", f"from {module} import {function}; {function}({theirs.fileno()})"],
        pass_fds=[theirs.fileno()],
        stdin=subprocess.DEVNULL,
        env={"OMP_NUM_THREADS": "1", **os.environ, **environment, "PYTHONPATH": os.pathsep.join(sys.path)},
        start_new_session=True,  # a group of its own, which can be ended as a whole
    )
    theirs.close()
    return process, Connection(ours.detach())


def end_python(process: "subprocess.Popen[bytes]") -> None:
    """End a process that `start_python` started, and whatever it has started itself."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
