"""Chats, as lists of messages."""

from collections.abc import Mapping, Sequence
from typing import Any


def without_null_fields(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The messages without their null fields, but for `content`: an absent field of a parquet struct reads as null, and
    a template that asks whether a message has `tool_calls` means more than null."""
    return [
        {key: value for key, value in message.items() if value is not None or key == "content"} for message in messages
    ]
