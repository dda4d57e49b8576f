"""Reads one upstream answer: cuts it into documents and takes the calls out of them.

Most answers hold no call and are never parsed. Bytes that pass unread are kept, and read if a call follows.
"""

import re
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial

from addon.core.answers.answer import AnswerRewriter, Candidate
from addon.core.answers.arguments import Limits
from addon.core.dialects.interactions.contents import marked_id
from addon.core.framing.documents import Document, Malformed, content_of, decode, objects, parts_of
from addon.core.framing.sse import SseDecoder, SseEvent
from addon.core.toolloop import WRONG_CALLS
from addon.graft.decoding import Decoder, Item
from addon.graft.exchange import Exchange, new_call_id
from addon.graft.machine_protocol import Note
from addon.graft.note_reader import AT_ONCE, FINISH, NoteReader
from addon.graft.rounds import Rounds
from addon.surfaces.base import Framing

_MARKERS = (b'"continuationToken"',)
_LOOP_MARKERS = tuple(f'"{reason}"'.encode() for reason in sorted(WRONG_CALLS))
_SERVER_MARKERS = (b'"toolCall"', b'"toolResponse"')
_ESCAPED_LETTER = re.compile(rb"\\u00[4-7]")  # or an underscore
_OTHER_ENDS = (b'"promptFeedback"', b'"error"')
_BLANK_LINES = (b"\r\n\r\n", b"\n\n")


def markers_of(exchange: Exchange, *, loops: bool = False) -> tuple[bytes, ...]:
    """The strings that mark bytes of an answer that must be read."""
    markers = exchange.wire.call_markers + _MARKERS + (_LOOP_MARKERS if loops else ())
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
    model sent something, if only its end. `is_cut`: the stream holds an error."""

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
        self._exchange = exchange
        self._markers = markers
        self._rounds = rounds
        self._new_turn_id = new_turn_id
        self._limits = limits
        if before is not None:
            before.proxy_answers, before.proxy_resumes = rounds.is_answered_here, rounds.continues
            before.new_turn_id, before.call_id = new_turn_id, partial(_call_id, rounds)
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
    def lacks_end(self) -> bool:
        """Whether nothing shows that the answer is complete: it is cut-off JSON, or a stream without a finishReason.
        Errors and refused prompts have no finishReason either, and count as complete."""
        if self.framing is Framing.JSON:
            return not _is_json(bytes(self.decoder.body))
        if self.decoder.is_array_over:
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
            call_id=partial(_call_id, rounds),
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
            decoder = SseDecoder()
            events = decoder.feed(b"".join(found)) + decoder.flush()
            found = [event.data for event in events if event.data is not None]
        for data in found:
            try:
                response = self._exchange.wire.unwrap(decode(data))
            except Malformed:
                continue
            if response is not None:
                yield response


def _call_id(rounds: Rounds, name: str, args: Document) -> str:
    return rounds.stored_id(name, args) or new_call_id()


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
