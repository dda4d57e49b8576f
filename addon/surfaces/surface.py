"""Describes a surface: the requests that belong to it. `registry` matches them."""

import re
from collections.abc import Callable
from dataclasses import dataclass

from addon.surfaces.base import Operation, Target
from addon.surfaces.wire import Wire


@dataclass(frozen=True, slots=True)
class Surface:
    """One family of endpoints.

    `host` matches a whole host name in lower case, without a port. `path` matches a whole path without its query. Its
    named groups are `operation` (if missing, the field `operation` applies) and, if the URL has them, `model` and
    `resource`.
    """

    name: str
    host: re.Pattern[str]
    path: re.Pattern[str]
    operation: Operation = Operation.CACHE
    request_path: tuple[str, ...] = ()
    response_path: tuple[str, ...] = ()
    home: Callable[[str], str | None] | None = None
    """Returns the host for a path, for any operation, if the path identifies this surface."""
    wire: Callable[[Target], Wire] | None = None
    """The Wire of a surface with another format than Gemini's."""
    method: str = "POST"
    """The HTTP method; GET for a WebSocket, whose frames are rewritten."""


METHOD = r":(?P<operation>generateContent|streamGenerateContent|countTokens)"
"""The end of a path that names an operation, without `batchGenerateContent` and similar operations."""
