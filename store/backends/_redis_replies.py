"""Replies of Redis as Python values: maps and streams' entries as dicts, numbers as numbers."""

from collections.abc import Callable, Sequence
from typing import Any

import hiredis


def shaped(command: Sequence[Any], reply: Any) -> Any:
    """The reply to this command. Raises ReplyError if the command was refused."""
    if isinstance(reply, hiredis.ReplyError):
        raise reply
    shape = _SHAPES.get(command[0])
    return reply if shape is None or reply is None else shape(reply)


def _map(flat: list[Any]) -> dict[Any, Any]:
    return dict(zip(flat[::2], flat[1::2], strict=True))


def _entries(found: list[Any]) -> list[tuple[bytes, dict[bytes, bytes]]]:
    return [(entry_id, _map(fields or [])) for entry_id, fields in found]


def _info(text: bytes) -> dict[str, str]:
    lines = (line.partition(":") for line in text.decode("utf-8", "replace").splitlines() if line[:1] not in "#")
    return {name: value for name, _, value in lines}


_SHAPES: dict[str, Callable[[Any], Any]] = {
    "HGETALL": _map,
    "HSCAN": lambda reply: (reply[0], _map(reply[1])),
    "INFO": _info,
    "TIME": lambda reply: (int(reply[0]), int(reply[1])),
    "XRANGE": _entries,
    "XREAD": lambda reply: [(stream, _entries(found)) for stream, found in reply],
    "XREVRANGE": _entries,
    "ZSCORE": float,
}
