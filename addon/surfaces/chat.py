"""The OpenAI-compatible surface: chat completions, on the Developer API's host and on Vertex AI's.

The conversion is in `core.dialects`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from addon.core.dialects.chat_answers import Completions
from addon.core.dialects.chat_requests import translate, write_body
from addon.core.framing.documents import Document, camel, decode, encode, objects
from addon.core.framing.streams import ArrayItem, SseEvent
from addon.core.history.request import Piece, Prefix, Request, parse
from addon.surfaces import gemini
from addon.surfaces.incoming import Operation, Target
from addon.surfaces.surface import Surface, Wire

_DONE = b"[DONE]"


class ChatWire(Wire):
    """Chat completions. The client sends its history itself, as with Gemini."""

    native = False
    call_markers = (b'"tool_calls"', b'"function_call"')
    done = _DONE

    def __init__(self, target: Target) -> None:
        super().__init__(target)
        self._answers = Completions()

    def read(self, body: bytes, known: Prefix | None = None) -> Request:
        self._source = translate(body)
        if self._source.member("stream") is True:
            self.target = self.target.streamed()
        return parse(self._source.gemini, (), known)

    def write(self, request: Request, replaced: Mapping[str, bytes | None], contents: Sequence[Piece] | None) -> bytes:
        if any(camel(key) != "functionDeclarations" for tool in objects(_tools(replaced)) for key in tool):
            self.dropped = "built-in tools, which chat completions have no form for"
        return write_body(self._source, replaced, contents)

    def instruction(self, request: Request) -> bytes:
        source, contents = self._source, set(self._source.origins)
        spans = (span for index, span in enumerate(source.messages) if index not in contents)
        return b",".join(source.body[start:end] for start, end in spans)

    def next_request(
        self, request: Request, added: Sequence[Document], mode: str | None, token: str | None = None
    ) -> bytes:
        self._answers.begin_round()
        return super().next_request(request, added, mode, token)

    def unwrap(self, document: object) -> Document | None:
        return self._answers.read(document)

    def passthrough_event(self, item: SseEvent | ArrayItem, document: object = None) -> bytes:
        if (item.data or b"").strip() == self.done:
            return b""  # `end` writes the only one
        # an event that could not be read is not the last one read
        renumbered = self._answers.forward() if document is not None else None
        return super().passthrough_event(item) if renumbered is None else self._framed(encode(renumbered))

    def event(self, visible: Document, raw: Document | None = None) -> bytes:
        return self._framed(encode(self._answers.write(visible, raw, "chat.completion.chunk")))

    def end(self) -> bytes:
        return b"data: %b\n\n" % _DONE

    def whole_body(self, visible: Document, raw: Document | None = None) -> bytes:
        return encode(self._answers.write(visible, raw, "chat.completion"))

    def _framed(self, body: bytes) -> bytes:
        self.events_sent += 1
        return b"data: %b\n\n" % body


def _tools(replaced: Mapping[str, bytes | None]) -> object:
    return decode(replaced.get("tools") or b"null")


SURFACE = Surface(
    name="chat",
    host=re.compile(f"{gemini.DEVELOPER.host.pattern}|{gemini.VERTEX.host.pattern}"),
    path=re.compile(
        r"/+(?:v1(?:alpha|beta)?/openai|v1(?:alpha1|beta1)?/projects/[^/]+/locations/[^/]+/endpoints/openapi)"
        r"/chat/completions"
    ),
    operation=Operation.GENERATE,
    wire=ChatWire,
)
