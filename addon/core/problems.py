"""Log lines about problems that somebody has to know of: each is also a record with fields (`graft_log=json`)."""

from typing import Any

FIELDS = "graft"
"""The attribute of a log record that holds its fields."""


def problem(event: str, **fields: Any) -> dict[str, Any]:
    """What to give a logger as `extra`."""
    return {FIELDS: {"event": event, **fields}}
