"""The Interactions API. The conversion is in `core.dialects`."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from addon.core.dialects.interaction_answers import (
    DONE,
    InteractionAnswer,
    interaction_error,
    reusable_bytes,
    sse_event,
)
from addon.core.dialects.interaction_requests import InteractionRequest
from addon.core.framing.documents import Document, encode
from addon.core.framing.streams import ArrayItem, SseEvent
from addon.core.history.request import Piece, Prefix, Request, parse
from addon.surfaces import gemini
from addon.surfaces.base import Framing, Operation, Target
from addon.surfaces.surface import Surface, Wire


class InteractionsWire(Wire):
    native = False
    call_markers = (b'"function_call"',)
    done = b"[DONE]"

    def __init__(self, target: Target) -> None:
        super().__init__(target)
        self._answer = InteractionAnswer()
        self._done = DONE
        self._unfinished = ""  # the interaction whose rest is requested

    # --- requests ---------------------------------------------------------------------------------------------

    def read(self, body: bytes, known: Prefix | None = None) -> Request:
        given = self._answer.request = InteractionRequest(body)
        self.keeps_history, self.keeps_answer = bool(given.previous), given.is_stored
        if given.members.get("stream"):
            self.target = self.target.streamed()
        return parse(given.gemini())

    def write(self, request: Request, replaced: Mapping[str, bytes | None], contents: Sequence[Piece] | None) -> bytes:
        body, dropped = self._answer.request.write(request, replaced, contents, self._unfinished)
        self.dropped = dropped or self.dropped
        return body

    def next_request(
        self, request: Request, added: Sequence[Document], mode: str | None, token: str | None = None
    ) -> bytes:
        self._answer.stream.rounds += 1
        self._unfinished = self._answer.last if self._answer.stream.rounds > 1 and token is not None else ""
        return super().next_request(request, added, mode, token)

    def instruction(self, request: Request) -> bytes:
        return encode(self._answer.request.members.get("system_instruction") or "")

    # --- answers ----------------------------------------------------------------------------------------------

    def resume(self, rounds: int, visible: Sequence[Document]) -> None:
        self._answer.resume(rounds, visible)

    def unwrap(self, document: object) -> Document | None:
        return self._answer.unwrap(document)

    @property
    def is_within_call(self) -> bool:
        return self._answer.stream.is_within_call

    def unfinished_response(self) -> Document | None:
        return self._answer.unfinished_response()

    def passthrough_event(self, item: SseEvent | ArrayItem, document: object = None) -> bytes:
        if (item.data or b"").strip() == self.done:
            self._done = reusable_bytes(item) or DONE
            return b""
        return self._counted(self._answer.forward(item, document))

    def event(self, visible: Document, raw: Document | None = None) -> bytes:
        return self._counted(self._answer.events(visible, raw))

    def whole_body(self, visible: Document, raw: Document | None = None) -> bytes:
        return encode(self._answer.whole(visible))

    def end(self) -> bytes:
        return self._done if self.target.framing is Framing.SSE else b""

    def _counted(self, events: bytes) -> bytes:
        self.events_sent += bool(events)
        return events

    # --- errors -----------------------------------------------------------------------------------------------

    def error(self, document: Document) -> bytes:
        return encode({"error": interaction_error(document)})

    def error_event(self, document: Document) -> bytes:
        return self._counted(sse_event({"error": interaction_error(document), "event_type": "error"})) + self.end()


SURFACE = Surface(
    name="interactions",
    host=re.compile(f"{gemini.DEVELOPER.host.pattern}|{gemini.VERTEX.host.pattern}"),
    path=re.compile(r"/+v1(?:alpha|beta)?1?/(?:projects/[^/]+/locations/[^/]+/)?interactions"),
    operation=Operation.GENERATE,
    wire=InteractionsWire,
)
