"""What a surface is, and what one request to it is. Data only: matching is in `registry`, rewriting elsewhere."""

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
    """What a request asks for, by the name that its URL bears."""

    GENERATE = "generateContent"
    STREAM = "streamGenerateContent"
    COUNT = "countTokens"
    CACHE = "cachedContents"
    LIVE = "BidiGenerateContent"


class Framing(enum.StrEnum):
    """How a successful response is framed. Errors may come as plain JSON whatever this says."""

    JSON = "json"
    SSE = "sse"
    ARRAY = "array"


@dataclass(frozen=True, slots=True)
class Target:
    """What one request is. A path is the keys that lead to a document inside the body: () is the body itself."""

    surface: str
    operation: Operation
    framing: Framing
    model: str
    """Bare id from the URL; an endpoint's id for `endpoints/E`; "" where the body names it (or nothing does)."""
    request_path: tuple[str, ...]
    """Where the request's own fields (contents, tools, toolConfig …) are in the request body."""
    response_path: tuple[str, ...]
    """Where the GenerateContentResponse is in the answer, in each event or element of a stream."""
    resource: str = ""
    """The model as a body of the Developer API names it, `models/M` or `tunedModels/M`; "" on other surfaces."""
    is_vertex: bool = False
    """Whether Vertex AI reads the request in its own language, by itself or behind Firebase: it does not know
    includeServerSideToolInvocations and the parts that it brings, and takes longer names of functions."""

    def streamed(self) -> Target:
        """The same request where its body asks for server-sent events."""
        return dataclasses.replace(self, operation=Operation.STREAM, framing=Framing.SSE)


@dataclass(frozen=True, slots=True)
class Surface:
    """One family of endpoints.

    `host` matches a whole host name in lower case, without a port. `path` matches a whole path without its query,
    and names what it finds: `operation`, or nothing for what `operation` below stands for, and, where the URL tells,
    `model` and `resource`.
    """

    name: str
    host: re.Pattern[str]
    path: re.Pattern[str]
    operation: Operation = Operation.CACHE
    request_path: tuple[str, ...] = ()
    response_path: tuple[str, ...] = ()
    home: Callable[[str], str | None] | None = None
    """The host that serves a path, whatever is asked of it, where the path shows that it is this surface's."""
    wire: Callable[[Target], Wire] | None = None
    """What translates an exchange of a surface whose language is not Gemini's own."""
    method: str = "POST"
    """Of the requests; GET for a WebSocket, whose frames then are what is rewritten."""


METHOD = r":(?P<operation>generateContent|streamGenerateContent|countTokens)"
"""The end of a path that names an operation; `batchGenerateContent` and the like are not among them."""
