"""Reads the turns of an answer that passes unchanged, at low cost, so that they can be noted by their words.

Decodes documents in batches, and only down to the parts of their candidates. Skips documents that cannot be read.
"""

from collections.abc import Iterator, Sequence

import msgspec

from addon.core.framing.documents import Document, Malformed, as_list, decode, encode, replace_invalid_text
from addon.core.framing.sse import SseDecoder
from addon.core.history.visible import prefix_digests, visible_form
from addon.graft.exchange import Exchange
from addon.graft.machine_protocol import Note
from addon.graft.turn_records import plain_of

FINISH = b'"finishReason"'
_DATA, _END = b"data: ", b"\r\n\r\n"

AT_ONCE = 64
"""The most documents read together: a larger batch would delay an event."""


class _Content(msgspec.Struct, gc=False):
    parts: list[dict[str, msgspec.Raw]] | dict[str, msgspec.Raw] | None = None


class _Candidate(msgspec.Struct, gc=False):
    content: _Content | None = None
    index: int = 0


class _Response(msgspec.Struct, gc=False):
    candidates: list[_Candidate] | None = None


class _Envelope(msgspec.Struct, gc=False):
    response: _Response | None = None


_response = msgspec.json.Decoder(_Response).decode
_envelope = msgspec.json.Decoder(_Envelope).decode
_many = msgspec.json.Decoder(list[_Response]).decode
_envelopes = msgspec.json.Decoder(list[_Envelope]).decode
_UNREAD = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


class NoteReader:
    """Reads one answer in the format and envelope of its surface."""

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange
        self._is_wrapped = exchange.wire.is_wrapped
        self._events = SseDecoder()
        self._parts: dict[int, list[dict[str, msgspec.Raw]]] = {}
        self._noted: dict[int, bytes] = {}
        self._is_new = False  # something arrived since the last notes

    def events(self, pieces: Sequence[bytes]) -> None:
        """Read whole server-sent events, in any number of pieces."""
        joined = b"".join(pieces)
        if joined.startswith(_DATA) and joined.endswith(_END):  # as the service writes them
            documents = joined[len(_DATA) : -len(_END)].replace(_END + _DATA, b",")
            if b"\n" not in documents and self._take_all(documents):
                return
        self.documents([event.data for event in self._events.feed(joined) if event.data is not None])

    def documents(self, documents: Sequence[bytes]) -> None:
        """Read documents of an answer."""
        if len(documents) > 1 and self._take_all(b",".join(documents)):
            return
        for data in documents:
            try:
                try:
                    self._take(self._response(data))
                except _UNREAD:
                    self._take(self._response(replace_invalid_text(data)))
            except (*_UNREAD, Malformed):
                continue

    def notes(self) -> Iterator[Note]:
        """The notes for the turns so far, without those already made."""
        if not self._is_new:
            return
        self._is_new = False
        for index, parts in self._parts.items():
            try:
                _, digest = visible_form(parts)
                marked = [_decoded(part) for part in parts if "thoughtSignature" in part]
            except (*_UNREAD, Malformed):
                continue
            if self._noted.get(index) != digest:
                self._noted[index] = digest
                yield Note(*plain_of(self._exchange, digest, marked))

    def beginnings(self) -> Iterator[Note]:
        """The notes to make if the client may have kept any part of the turns from the start."""
        for index, parts in self._parts.items():
            try:
                digests = prefix_digests(parts)
            except (*_UNREAD, Malformed):
                continue
            for digest in digests:
                if self._noted.get(index) != digest:
                    yield Note(*plain_of(self._exchange, digest))

    def _take_all(self, documents: bytes) -> bool:
        """Read several Gemini documents together. Returns whether all could be read."""
        if not self._exchange.wire.native:
            return False
        try:
            array = b"[%b]" % documents
            found = [one.response for one in _envelopes(array)] if self._is_wrapped else _many(array)
        except _UNREAD:
            return False
        for response in found:
            self._take(response)
        return True

    def _response(self, data: bytes) -> _Response | None:
        wire = self._exchange.wire
        if wire.native:
            return _envelope(data).response if self._is_wrapped else _response(data)
        response = wire.unwrap(decode(data))
        return _response(encode(response)) if response is not None else None

    def _take(self, response: _Response | None) -> None:
        for candidate in (response.candidates if response is not None else None) or ():
            parts = self._parts.setdefault(candidate.index, [])
            if candidate.content is not None:
                self._is_new = True
                parts += as_list(candidate.content.parts)


def _decoded(part: dict[str, msgspec.Raw]) -> Document:
    return {key: decode(value) for key, value in part.items()}
