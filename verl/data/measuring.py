"""A process that measures prompts. Imports neither torch nor files' readers, so that it starts soon."""

import pickle
import traceback
from multiprocessing.connection import Connection

from verl.data.prompts import PromptEncoder


def main(descriptor: int) -> None:
    """Take an encoder from the other end of `descriptor`, then measure one list of rows after another, until it is
    closed. An answer is a list of lengths, or the exception instead."""
    connection = Connection(descriptor)
    try:
        encoder: PromptEncoder = pickle.loads(connection.recv_bytes())
        while True:
            connection.send_bytes(_measured(encoder, connection.recv_bytes()))
    except (EOFError, OSError):
        return  # the driver has what it wanted, or is gone


def _measured(encoder: PromptEncoder, rows: bytes) -> bytes:
    try:
        return pickle.dumps(encoder.lengths(pickle.loads(rows)))
    except Exception as error:
        text = "".join(traceback.format_exception(error))
        try:
            return pickle.dumps(error)
        except Exception:
            return pickle.dumps(RuntimeError(f"in a process that measures prompts:\n{text}"))
