"""Reads one upstream answer: cuts it into documents and takes the calls out of them.

Most answers have no call and pass unparsed. `Reading` keeps the bytes that passed, and parses them if a call follows.
`NoteReader` reads the turns of such answers for the ledger: many documents at once, and of each only the parts.
"""

import json
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec

from addon.core.answer import AnswerRewriter, Candidate
from addon.core.arguments import Limits
from addon.core.dialects.interaction_requests import marked_id
from addon.core.framing.documents import (
    Document,
    Malformed,
    as_list,
    content_of,
    decode,
    encode,
    objects,
    parts_of,
    replace_invalid_text,
)
from addon.core.framing.streams import BOM, ArrayDecoder, ArrayItem, SseDecoder, SseEvent, TooLong
from addon.core.history.calls import called_names
from addon.core.history.visible import prefix_digests, visible_form
from addon.core.toolloop import WRONG_CALLS
from addon.graft.exchange import Exchange
from addon.graft.machine_protocol import Note
from addon.graft.rounds import Rounds
from addon.graft.turn_records import note_of
from addon.surfaces.incoming import Framing

Item = SseEvent | ArrayItem

_JSON = "application/json"
_EVENTS = "text/event-stream"
_FIELDS = (b"data:", b"event:", b"id:", b"retry:", b":")
_LONGEST = max(map(len, _FIELDS))
_BLANK = 4096  # the most leading white space, in bytes, skipped before the framing is decided


class Decoder:
    """`framing`: None until the first bytes decide it. JSON is an array or one document; other content types are
    sniffed. `body`: the bytes of an answer that is not a stream (Framing.JSON), in any format. `events`: the decoder of
    a stream of server-sent events."""

    def __init__(self, content_type: str, max_event: int = sys.maxsize) -> None:
        kind = content_type.partition(";")[0].strip().lower()
        self.framing: Framing | None = None
        self.body = bytearray()
        self.events: SseDecoder | None = None
        self._cutter: SseDecoder | ArrayDecoder | None = None
        self._max_event = max_event
        self._is_json = kind == _JSON
        if kind == _EVENTS:
            self._become(Framing.SSE)

    @property
    def is_array_over(self) -> bool:
        return isinstance(self._cutter, ArrayDecoder) and self._cutter.is_over

    def feed(self, chunk: bytes) -> Sequence[Item]:
        """Raises TooLong if an event of a stream is longer than `max_event` bytes."""
        items: Sequence[Item] = ()
        if self._cutter is not None:
            items = self._cutter.feed(chunk)
        else:
            self.body += chunk
            if self.framing is None:
                items = self._begun()
        if self._cutter is not None and self._cutter.pending > self._max_event:
            raise TooLong(f"an event of the model's answer has more than {self._max_event} bytes")
        return items

    def flush(self) -> Sequence[Item]:
        """End the body. Returns a stream's last items."""
        items: Sequence[Item] = ()
        if self.framing is None:
            items = self._begun(ended=True)
        return items if self._cutter is None else [*items, *self._cutter.flush()]

    def _begun(self, *, ended: bool = False) -> Sequence[Item]:
        start = self.body.lstrip()[:_LONGEST]
        if not start and not ended and len(self.body) < _BLANK:
            return ()
        if start.startswith(b"["):
            return self._become(Framing.ARRAY)
        if not self._is_json and start.startswith(_FIELDS):
            return self._become(Framing.SSE)
        if ended or self._is_json or len(start) >= _LONGEST or not any(one.startswith(bytes(start)) for one in _FIELDS):
            self.framing = Framing.JSON
        return ()

    def _become(self, framing: Framing) -> Sequence[Item]:
        self.framing = framing
        if framing is Framing.SSE:
            self._cutter = self.events = SseDecoder()
        else:
            self._cutter = ArrayDecoder()
        body = bytes(self.body)
        self.body.clear()
        return self._cutter.feed(body) if body else ()


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
                marked = [_decoded(part) for part in parts]
            except (*_UNREAD, Malformed):
                continue
            if self._noted.get(index) != digest:
                self._noted[index] = digest
                yield note_of(self._exchange, digest, marked)

    def beginnings(self) -> Iterator[Note]:
        """The notes to make if the client may have kept any part of the turns from the start."""
        for index, parts in self._parts.items():
            try:
                digests = prefix_digests(parts)
            except (*_UNREAD, Malformed):
                continue
            for digest in digests:
                if self._noted.get(index) != digest:
                    yield note_of(self._exchange, digest)

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


_MARKERS = (b'"continuationToken"',)
_MESSAGE_MARKERS = (b'"finishMessage"',)
_LOOP_MARKERS = tuple(f'"{reason}"'.encode() for reason in sorted(WRONG_CALLS))
_SERVER_MARKERS = (b'"toolCall"', b'"toolResponse"')
_ESCAPED_LETTER = re.compile(rb"\\u00[4-7]")  # or an underscore
_OTHER_ENDS = (b'"promptFeedback"', b'"error"')
_BLANK_LINES = (b"\r\n\r\n", b"\n\n")


def markers_of(exchange: Exchange, *, loops: bool = False) -> tuple[bytes, ...]:
    """The strings that mark bytes of an answer that must be read."""
    markers = exchange.wire.call_markers + _MARKERS + (_LOOP_MARKERS if loops else ())
    if exchange.naming.names and exchange.config.delivery != "passthrough":
        markers += _MESSAGE_MARKERS
    return markers + _SERVER_MARKERS if exchange.plan.hides_server_tools else markers


def holds(data: bytes | bytearray, markers: tuple[bytes, ...]) -> bool:
    """Whether bytes contain one of these markers, or may: letters can be escaped, and text can be UTF-16."""
    find = data.find  # several times as fast as `in`
    for marker in markers:
        if find(marker) >= 0:
            return True
    if find(b"\\") >= 0 and find(b"\\u00") >= 0 and _ESCAPED_LETTER.search(data) is not None:
        return True
    return find(b"\0") >= 0


class Reading:
    """`is_plain`: nothing had to be read so far. `markers`: strings in bytes that must be read. `has_responses`: the
    model sent something, if only its end. `is_cut`: the stream holds an error. `is_done`: it holds its last event."""

    def __init__(
        self,
        exchange: Exchange,
        content_type: str,
        *,
        is_plain: bool,
        markers: tuple[bytes, ...],
        rounds: Rounds,
        new_turn_id: Callable[[int], str],
        limits: Limits,
        max_event: int,
        before: AnswerRewriter | None = None,
    ) -> None:
        """`before`: the answer that this one continues."""
        self.decoder = Decoder(content_type, max_event)
        self.answer = before
        self.is_plain = is_plain and self.answer is None
        self.has_responses = False
        self.is_cut = False
        self.is_done = False
        self._exchange = exchange
        self._markers = markers
        self._rounds = rounds
        self._new_turn_id = new_turn_id
        self._limits = limits
        if before is not None:
            before.proxy_answers, before.proxy_resumes = rounds.is_answered_here, rounds.continues
            before.new_turn_id, before.call_id = new_turn_id, rounds.call_id
        self._unread: list[bytes] = []
        self._note_reader = NoteReader(exchange) if self.is_plain and exchange.notes else None
        self._finished = self._note_reader is None
        self._notes_taken = 0  # the number of unread pieces already given to the note reader
        self._take_notes_at = AT_ONCE if self._note_reader is not None else sys.maxsize

    @property
    def framing(self) -> Framing | None:
        return self.decoder.framing

    @property
    def candidates(self) -> Sequence[Candidate]:
        return tuple(self.answer.candidates.values()) if self.answer is not None else ()

    @property
    def goes_on(self) -> bool:
        """Whether the proxy answers the step itself."""
        return any([state.answered_by_proxy for state in self.candidates])  # faster than a generator, here and below

    @property
    def continues(self) -> bool:
        """Whether the proxy asks for the rest of the answer."""
        return any([state.resumed_by_proxy for state in self.candidates])

    @property
    def has_ended(self) -> bool:
        """Whether the client's turn has ended: each candidate has its finishReason."""
        return bool(self.candidates) and all(state.ended and not state.answered_by_proxy for state in self.candidates)

    @property
    def hides(self) -> bool:
        return any([state.hides_parts for state in self.candidates])

    def passes(self, chunk: bytes) -> bool:
        """Whether a chunk is whole events that need not be read. They are kept; do not decode them."""
        if (
            self.is_plain
            and (events := self.decoder.events) is not None
            and chunk.endswith(_BLANK_LINES)
            and not holds(chunk, self._markers)
            and (self._finished or chunk.find(FINISH) < 0)
            and events.is_between
        ):
            self._unread.append(chunk)
            if len(self._unread) >= self._take_notes_at:
                self._take_notes()
            return True
        return False

    def passes_item(self, item: Item) -> bool:
        """Whether one event need not be read."""
        if not self.is_plain or item.data is None or holds(item.raw, self._markers):
            return False
        self._unread.append(item.raw if isinstance(item, SseEvent) else item.data)
        if len(self._unread) >= self._take_notes_at:
            self._take_notes()
        return True

    def passes_body(self, body: bytes) -> bool:
        """Whether an answer that is not a stream need not be read."""
        if not self.is_plain or holds(body, self._markers):
            return False
        self._unread.append(body)
        return True

    @property
    def last_unread(self) -> bytes:
        """The last piece that passed unread, if nothing was read."""
        return self._unread[-1] if self._unread else b""

    def final_notes(self) -> Sequence[Note]:
        """The notes for the turns that passed unread and end here."""
        if self._note_reader is None or not self.is_plain:
            return ()
        self._finished = True
        self._take_notes()
        return [*self._note_reader.notes()]

    @property
    def is_unfinished(self) -> bool:
        """Whether no finishReason has passed unread so far."""
        return self.is_plain and not self._finished

    @property
    def is_complete(self) -> bool:
        """Whether the answer's format shows its end: an array's bracket, or `[DONE]`. A finishReason does not: usage or
        further parts may follow."""
        return self.is_done or self.decoder.is_array_over

    @property
    def lacks_end(self) -> bool:
        """Whether nothing shows that the answer is complete: it is cut-off JSON, or a stream without a finishReason.
        Errors and refused prompts have no finishReason either, and count as complete."""
        if self.framing is Framing.JSON:
            return not _is_json(bytes(self.decoder.body))
        if self.is_complete:
            return False
        if self.is_plain:
            return self.is_unfinished and not any(end in piece for piece in self._unread for end in _OTHER_ENDS)
        return not all(state.ended or state.paused for state in self.candidates)

    def beginnings(self) -> Sequence[Note]:
        """The notes to make if the client may have kept any part of what passed unread."""
        if self._note_reader is None or not self.is_plain:
            return ()
        self._take_notes()
        return [*self._note_reader.beginnings()]

    def _take_notes(self) -> None:
        """Give the note reader the pieces that passed unread since the last call."""
        assert self._note_reader is not None
        pieces, self._notes_taken = self._unread[self._notes_taken :], len(self._unread)
        self._take_notes_at = self._notes_taken + AT_ONCE
        if self.framing is Framing.SSE:
            self._note_reader.events(pieces)
        else:
            self._note_reader.documents(pieces)

    def read(self, response: Document, *, whole: bool) -> Document | None:
        """The client's view of a response: see `AnswerRewriter.feed`."""
        self.has_responses = self.has_responses or _has_content(response)
        answer = self.answer or self._start()
        self._rounds.note(response)
        return answer.feed(response, whole=whole)

    def closing(self) -> Document | None:
        """The client's last response at the clean end of a stream, if any."""
        return self.answer.close() if self.answer is not None and self.framing is not Framing.JSON else None

    def _start(self) -> AnswerRewriter:
        """Start to parse the answer, beginning with the bytes that passed unread."""
        exchange, rounds = self._exchange, self._rounds
        answer = self.answer = AnswerRewriter(
            exchange.naming,
            exchange.config.placeholder,
            passthrough=exchange.config.delivery == "passthrough",
            hides_server_tools=exchange.plan.hides_server_tools,
            new_turn_id=self._new_turn_id,
            call_id=rounds.call_id,
            sign=exchange.keys.signature,
            limits=self._limits,
            proxy_answers=rounds.is_answered_here,
            proxy_resumes=rounds.continues,
        )
        for response in self._responses():
            rounds.note(response)
            answer.feed(response)
        self.is_plain = False
        self._unread.clear()
        return answer

    def _responses(self) -> Iterator[Document]:
        """The responses that passed unread."""
        found = self._unread
        if self.framing is Framing.SSE:
            found = _event_data(b"".join(found))
        for data in found:
            try:
                response = self._exchange.wire.unwrap(decode(data))
            except Malformed:
                continue
            if response is not None:
                yield response


def _event_data(events: bytes) -> list[bytes]:
    """The data of whole server-sent events."""
    decoder = SseDecoder()
    return [event.data for event in decoder.feed(events) + decoder.flush() if event.data is not None]


def _is_json(data: bytes) -> bool:
    try:
        decode(data)
    except Malformed:
        return False
    return True


def _has_content(response: Document) -> bool:
    """Whether a response has more than usage and candidates without content or end."""
    return bool(response.get("promptFeedback")) or any(
        candidate.get("finishReason") is not None or any(map(_is_content, parts_of(content_of(candidate))))
        for candidate in objects(response.get("candidates"))
    )


def _is_content(part: Document) -> bool:
    return any(value for key, value in part.items() if key != "thought") and marked_id({"parts": [part]}) is None


def holds_hidden_call(exchange: Exchange, data: bytes, framing: Framing | None) -> bool:
    """Whether whole events, or a whole document, hold a call that the client may not see. This is the last check before
    bytes go out: `Reading` takes calls out of the places where the service puts them, and a broken answer may have one
    elsewhere, such as in a list instead of an object. Unreadable bytes count if they may hold one, as does an object
    with a member twice, because readers differ in which of the two counts."""
    if not holds(data, exchange.wire.call_markers) or exchange.config.delivery == "passthrough":
        return False
    if framing is Framing.SSE and any(holds(line, exchange.wire.call_markers) for line in _ignored_lines(data)):
        return True
    naming = exchange.naming
    try:
        for name in called_names(_documents(data, framing)):
            is_further_piece = not name and naming.own  # of one of the client's own calls
            if not is_further_piece and naming.toolset_name(str(name)) is not None:
                return True
    except Malformed:
        return True
    return False


def _ignored_lines(events: bytes) -> Iterator[bytes]:
    """The lines that clients of server-sent events need not read. Some do: the service writes errors there."""
    return (line for line in events.removeprefix(BOM).splitlines() if not line.startswith(b"data:"))


def _documents(data: bytes, framing: Framing | None) -> list[Any]:
    if framing is Framing.SSE:
        return [_decode_strictly(one) for one in _event_data(data) if one.strip() not in (b"", b"[DONE]")]
    if framing is Framing.ARRAY:
        data = b"[" + data.strip(b"[], \t\r\n") + b"]"
    return [_decode_strictly(data)]


def _decode_strictly(data: bytes) -> Any:
    """Like `decode`. Raises Malformed also if an object has a member twice."""
    document = decode(data)
    text = data.decode(errors="replace")
    json.loads(text, strict=False, object_pairs_hook=_unique, parse_int=float)  # a huge int would be an error
    return document


def _unique(pairs: list[tuple[str, Any]]) -> Document:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise Malformed("an object has a member twice")
    return found
