"""Describes one request: to which surface it goes, and what the client sent. Data only."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from addon.core.security.secrets import Fields


class Operation(enum.StrEnum):
    GENERATE = "generateContent"
    STREAM = "streamGenerateContent"
    COUNT = "countTokens"
    CACHE = "cachedContents"
    LIVE = "BidiGenerateContent"


class Framing(enum.StrEnum):
    """The framing of a successful response. Errors may be plain JSON in any case."""

    JSON = "json"
    SSE = "sse"
    ARRAY = "array"


@dataclass(frozen=True, slots=True)
class Target:
    """One request. A path is the sequence of keys that leads to a document inside the body; () is the body itself."""

    surface: str
    operation: Operation
    framing: Framing
    model: str
    """The bare id from the URL; for `endpoints/E` the endpoint's id; "" if the URL names no model."""
    request_path: tuple[str, ...]
    """The path to the request's fields (contents, tools, toolConfig …) in the request body."""
    response_path: tuple[str, ...]
    """The path to the GenerateContentResponse in the answer, or in each event or element of a stream."""
    resource: str = ""
    """The model as named in a body of the Developer API, `models/M` or `tunedModels/M`; "" on other surfaces."""
    is_vertex: bool = False
    """Whether Vertex AI processes the request, directly or behind Firebase. Vertex AI does not support
    includeServerSideToolInvocations and its parts, and accepts longer function names."""

    def streamed(self) -> Target:
        """The same request with server-sent events, for a body that asks for a stream."""
        return dataclasses.replace(self, operation=Operation.STREAM, framing=Framing.SSE)


@dataclass(frozen=True, slots=True)
class Incoming:
    """A request before any processing, made once at a proxy port or a front door. It holds the client's secrets, so it
    must stay in this process.

    `session`: its name. `body`: decompressed. `url`, `fields`: the client's URL and headers. `asker`, `sender`: as in
    `core.history.keys`; or the asker's digest. `takes_ids`: whether this version of the API supports ids of calls.
    `turn_ids`: the ledger's turn ids of Contents, by their index. `at_door`: a front door made the Gemini request.
    """

    target: Target
    session: str
    body: bytes
    method: str = "POST"
    url: str = ""
    fields: Fields = ()
    asker: str | bytes = ""
    sender: bytes = b""
    user_agent: str = ""
    takes_ids: bool = True
    turn_ids: Mapping[int, str] = MappingProxyType({})
    at_door: bool = False
