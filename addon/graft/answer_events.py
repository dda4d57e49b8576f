"""Processes the events of the present upstream answer: what the client gets of each, and what is stored before."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from addon.core.answers.answer import AnswerRewriter
from addon.core.framing.documents import Document, Malformed, decode, encode, objects
from addon.core.framing.json_array import ArrayItem
from addon.core.framing.sse import SseEvent
from addon.graft.answer_errors import AnswerErrors, BadAnswer
from addon.graft.answer_state import AnswerState
from addon.graft.decoding import Item
from addon.graft.effects import Effect, Mistake
from addon.graft.note_reader import FINISH
from addon.graft.reading import holds
from addon.surfaces.wire import Wire


class AnswerEvents:
    def __init__(self, state: AnswerState, errors: AnswerErrors) -> None:
        self._state = state
        self._errors = errors
        self._wire = state.wire
        self._writer = state.writer

    def items(self, items: Sequence[Item]) -> Iterator[Effect]:
        if self._writer.framing is None:
            yield from self._writer.frame(self._state.reading.framing)
        for item in items:
            out = self.item(item)
            yield from self._writer.write(out) if isinstance(out, bytes) else out
            if self._state.is_over:
                break

    def rest(self, written: Sequence[bytes], effects: Iterable[Effect], items: Sequence[Item]) -> Iterator[Effect]:
        """Process the remaining `items`, behind what was written and the effects of the item before them."""
        yield from self._writer.write(b"".join(written))
        yield from effects
        if not self._state.is_over:
            yield from self.items(items)

    def item(self, item: Item) -> bytes | Iterable[Effect]:
        """Process an event: the client's bytes, or effects if there is more to do."""
        if item.data is None:
            return self._between(item)
        reading = self._state.reading
        if not reading.passes_item(item):
            return self._event(item, item.data)
        is_last = isinstance(item, SseEvent) and not self._state.rounds.is_loop
        # The last event may lack its last line, as nothing follows it.
        data = item.raw if is_last else self._writer.passthrough(item)
        notes = reading.final_notes() if FINISH in item.data else ()
        return [*notes, *self._writer.write(data)] if notes else data

    def document(self, body: bytes) -> Iterable[Effect]:
        """Process an answer that is not a stream. Nothing of it goes out before its end."""
        item, reading = ArrayItem(body, b"", body), self._state.reading
        out = self._writer.passthrough(item) if reading.passes_body(body) else self._event(item, body, whole=True)
        return self._writer.write(out) if isinstance(out, bytes) else out

    def _between(self, item: Item) -> bytes | Iterable[Effect]:
        """Process bytes that are no event: blank lines, an array's end, an event that was cut off."""
        if holds(item.raw, self._wire.call_markers):
            return self._errors.unreadable()
        return self._writer.between(item)

    def _event(self, item: Item, data: bytes, *, whole: bool = False) -> bytes | Iterable[Effect]:
        state, reading = self._state, self._state.reading
        try:
            document = decode(data)
            response = self._wire.unwrap(document)
        except Malformed as error:
            if whole and state.is_later_round:
                raise BadAnswer(f"its answer is not JSON: {error}") from None
            # the markers may also be in lines of the event that are not data
            if self._wire.is_within_call or holds(item.raw, self._wire.call_markers):
                return self._errors.unreadable()
            is_dropped = state.is_later_round and data.strip() != self._wire.done
            return b"" if is_dropped else self._writer.passthrough(item)
        if b'"error"' in data:
            reading.is_cut = reading.is_cut or _holds_error(document) or _holds_error(response)
        if response is None:
            is_dropped = state.is_later_round and not document
            return b"" if is_dropped else self._writer.passthrough(item, document)
        try:
            visible = reading.read(response, whole=whole)
            saves = state.saves()
            if reading.answer is not None and (token := reading.answer.continuation_token) is not None:
                saves = [*saves, *self._checkpoint(reading.answer, token, visible)]
        except Exception as error:
            if holds(encode(response), Wire.call_markers):
                raise
            visible, saves = response, [Mistake(error, passed=True)]
        if self._writer.streams and saves:
            return self._stored_first(saves, item, document, response, visible)
        if self._writer.streams:
            return self._writer.event(reading, item, document, response, visible)
        self._writer.keep(data, document, response, visible)
        return saves

    def _stored_first(self, saves: Sequence[Effect], *event: Any) -> Iterator[Effect]:
        yield from saves
        yield from self._writer.write(self._writer.event(self._state.reading, *event))

    def _checkpoint(self, answer: AnswerRewriter, token: str, visible: Document | None) -> Iterator[Effect]:
        """Keep the answer if the client gets a token in the middle: the stream may break off after it."""
        candidates = objects(visible.get("candidates")) if visible is not None and self._writer.streams else ()
        if any(one.get("continuationToken") and one.get("finishReason") is None for one in candidates):
            yield self._state.pause(answer, token)


def _holds_error(document: object) -> bool:
    """Whether an event (or a list of one, as Code Assist sends them) holds an error."""
    return any(one.get("error") is not None for one in objects(document))
