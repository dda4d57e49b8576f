"""Writes the client's answer: one stream or one document, made of all rounds of an answer.

Bytes and documents go in; bytes and effects come out. Wire knows the form of an event, JoinedRounds the fields that the
rounds share, and this class how much of the answer is written.
"""

from collections.abc import Sequence

from addon.core.framing import replies
from addon.core.framing.documents import Document, Malformed, decode, objects
from addon.core.framing.streams import CLOSE, OPEN, SseEvent
from addon.graft.machine_protocol import Begin, Effect, Refuse, Show
from addon.graft.rounds import JoinedRounds, is_empty
from addon.graft.upstream_answer import Item, Reading
from addon.surfaces.incoming import Framing
from addon.surfaces.surface import Wire

_MAX_ERROR_TEXT = 1000
"""The most characters of a non-JSON upstream error in a client's stream."""


class ResponseWriter:
    """`framing`: of the client's answer, None until the first upstream answer. `streams`: a stream has begun."""

    def __init__(self, wire: Wire, joined: JoinedRounds, *, has_runner: bool) -> None:
        self.framing: Framing | None = None
        self.streams = False
        self._wire = wire
        self._joined = joined
        self._has_runner = has_runner
        self._tail = b""  # the bytes after the upstream's array
        self._last: tuple[object, Document | None] | bytes = b""  # an unstreamed answer: its bytes, or decoded

    def frame(self, framing: Framing | None) -> list[Effect]:
        """Set the framing by the upstream's answer, unless it is set. The head of a stream goes out immediately."""
        if self.framing is not None or framing is None:
            return []
        self.framing, self.streams = framing, framing is not Framing.JSON
        self._wire.set_framing(framing)
        return [Begin()] if self.streams else []

    def resume(self, framing: Framing, visible: Sequence[Document]) -> list[Effect]:
        """Begin an answer with the visible parts of a broken-off one."""
        if framing is Framing.JSON:
            return []
        return [*self.frame(framing), Show(self._wire.event(self._joined.made(visible)))]

    def passthrough(self, item: Item, document: object = None) -> bytes:
        """An event that needs no change."""
        if self.streams:
            return self._wire.passthrough_event(item, document)
        self._last = item.data or b""
        return b""

    def event(
        self, reading: Reading, item: Item, document: Document, response: Document, visible: Document | None
    ) -> bytes:
        """A stream event with `visible`, the client's view of the upstream's `response`."""
        is_later = self._joined.rounds > 1
        if visible is None or (is_later and not reading.has_responses):
            return b""
        if is_later or (self._has_runner and reading.hides):
            if reading.goes_on and all(is_empty(one) for one in objects(visible.get("candidates"))):
                return b""
            visible = self._joined.filled(self._joined.part_of_answer(visible))
        return self.passthrough(item, document) if visible is response else self._wire.event(visible, document)

    def between(self, item: Item) -> bytes:
        """Bytes that are no event: blank lines, the end of an array, or an event that was cut off."""
        if self._joined.rounds > 1 or not self.streams:
            return b""
        if isinstance(item, SseEvent):
            # without its line break, a client would read the next event as the rest of this line
            return item.raw if item.raw.endswith((b"\r", b"\n")) else item.raw + b"\r\n\r\n"
        self._tail += item.raw  # the whole answer has one end
        return b""

    def closing(self, response: Document) -> bytes:
        """The event with the last parts at the clean end of a stream."""
        return self._wire.event(self._joined.filled(self._joined.part_of_answer(response)))

    def keepalive(self) -> bytes:
        """An event that clients ignore; b"" if the answer is not a stream."""
        return self._wire.event(self._joined.made([])) if self.streams else b""

    def keep(self, data: bytes, document: Document, response: Document, visible: Document | None) -> None:
        """Keep a document of an unstreamed answer, which is written at its end."""
        self._last = data if visible is response and self._joined.rounds == 1 else (document, visible)

    def end(self, reading: Reading) -> bytes:
        """The bytes after the last event. For an unchanged array, the upstream's own."""
        tail, sent = self._tail.lstrip(), self._wire.events_sent > 0
        if self.framing is Framing.ARRAY and self._joined.rounds == 1:
            if tail.startswith(CLOSE if sent else OPEN) or reading.answer is None:
                return self._tail
        return self._wire.end()

    def whole(self, before: Sequence[Document], parts: Sequence[Document] | None) -> bytes:
        """The body of an unstreamed answer. `before`: the client's parts of earlier rounds. `parts`: the last round's,
        if its answer came in pieces."""
        if isinstance(self._last, bytes):
            return self._last
        raw, response = self._last
        merged = self._joined.merged(response, before, parts)
        return self._wire.whole_body(merged, raw if isinstance(raw, dict) and response is not None else None)

    def fail(self, code: int, status: str, words: str) -> Effect:
        """An error from the proxy, in the current form of the client's answer."""
        document = replies.error(code, status, f"toolgraft: {words}")
        if self.streams:
            return Show(self._wire.error_event(document))
        return Refuse(code, self._wire.error(document))

    def refuse(self, status: int, body: bytes) -> Effect:
        """An error from the upstream: unchanged, or as an event if the client's stream has begun."""
        if not self.streams:
            return Refuse(status, body, own=False)
        try:
            document = next(objects(decode(body)), None)
        except Malformed:
            document = None
        if document is None or "error" not in document:
            text = body.decode("utf-8", "replace").strip()[:_MAX_ERROR_TEXT]
            document = replies.error(status, "UNKNOWN", text or f"the model answered with status {status}")
        return Show(self._wire.error_event(document))
