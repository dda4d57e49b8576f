"""Describes a surface, and one request to it. Data only: matching is in `registry`, rewriting elsewhere."""

from __future__ import annotations

import dataclasses
import enum
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from addon.surfaces.wire import Wire


class Operation(enum.StrEnum):
    """The operation of a request, by its name in the URL."""

    GENERATE = "generateContent"
    STREAM = "streamGenerateContent"
    COUNT = "countTokens"
    CACHE = "cachedContents"
    LIVE = "BidiGenerateContent"


class Framing(enum.StrEnum):
    """How a successful response is framed. Errors may be plain JSON in any case."""

    JSON = "json"
    SSE = "sse"
    ARRAY = "array"


@dataclass(frozen=True, slots=True)
class Target:
    """One request. A path lists the keys that lead to a document inside the body; () is the body itself."""

    surface: str
    operation: Operation
    framing: Framing
    model: str
    """The bare id from the URL; for `endpoints/E` the endpoint's id; "" if the URL does not name the model."""
    request_path: tuple[str, ...]
    """The path of the request's own fields (contents, tools, toolConfig …) in the request body."""
    response_path: tuple[str, ...]
    """The path of the GenerateContentResponse in the answer, or in each event or element of a stream."""
    resource: str = ""
    """The model as a body of the Developer API names it, `models/M` or `tunedModels/M`; "" on other surfaces."""
    is_vertex: bool = False
    """Whether Vertex AI processes the request, directly or behind Firebase. Vertex AI does not support
    includeServerSideToolInvocations and its parts, and accepts longer function names."""

    def streamed(self) -> Target:
        """The same request with server-sent events, for a body that asks for a stream."""
        return dataclasses.replace(self, operation=Operation.STREAM, framing=Framing.SSE)


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
    """Returns the host that serves a path, for any operation, if the path shows that it belongs to this surface."""
    wire: Callable[[Target], Wire] | None = None
    """The Wire of a surface whose format is not Gemini's own."""
    method: str = "POST"
    """The HTTP method; GET for a WebSocket, whose frames are rewritten."""


METHOD = r":(?P<operation>generateContent|streamGenerateContent|countTokens)"
"""The end of a path that names an operation. `batchGenerateContent` and similar operations are excluded."""
