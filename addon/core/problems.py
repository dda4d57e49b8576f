"""Log lines about problems that a person must know of. Each is also a record with fields (`graft_log=json`)."""

from typing import Any

FIELDS = "graft"
"""The attribute of a log record that holds its fields."""


def problem(event: str, **fields: Any) -> dict[str, Any]:
    """The `extra` argument for a logger."""
    return {FIELDS: {"event": event, **fields}}
