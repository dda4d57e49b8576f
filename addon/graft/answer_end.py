"""The clean end of an upstream answer: another round follows, or the client's answer ends."""

from collections.abc import Iterator, Sequence

from addon.core.framing.documents import Document, objects
from addon.core.history.calls import calls_in
from addon.core.toolloop import RunTools
from addon.graft.answer_errors import AnswerErrors, BadAnswer
from addon.graft.answer_events import AnswerEvents
from addon.graft.answer_state import AnswerState
from addon.graft.effects import Begin, Effect, Save, Wait, Warn
from addon.graft.rounds import Over
from addon.surfaces.base import Framing

_CUT_OFF = "the connection to the model ended before the answer did"
_CUT_SHORT = "an answer ended within the arguments of a call of"


class AnswerEnd:
    def __init__(self, state: AnswerState, events: AnswerEvents, errors: AnswerErrors) -> None:
        self._state = state
        self._events = events
        self._errors = errors
        self._wire = state.wire
        self._writer = state.writer
        self._journal = state.journal

    def finish(self, *, is_certain: bool) -> Iterator[Effect]:
        """End the present upstream answer. Raises BadAnswer."""
        state, reading = self._state, self._state.reading
        yield from self._events.items(reading.decoder.flush())
        if not is_certain and not state.is_over and not reading.is_cut and reading.lacks_end:
            yield from self._errors.fail(502, "UNAVAILABLE", _CUT_OFF)
            return
        if not state.is_over and self._writer.streams and (unfinished := self._wire.unfinished_response()) is not None:
            yield from self._unfinished(unfinished)
        stored: list[Effect] = []
        if not state.is_over and reading.framing is Framing.JSON:
            stored += self._events.document(bytes(reading.decoder.body))
        if state.is_over:
            yield from stored
            return
        if state.is_later_round and not reading.has_responses and not reading.is_cut:
            yield from stored
            raise BadAnswer("its answer holds nothing")
        if reading.is_cut and self._writer.streams:
            yield from stored
            yield from self._ended("cut")
            return
        closing = reading.closing()
        if reading.goes_on:
            stored += state.saves()
        token = reading.answer.continuation_token if reading.answer is not None else None
        match state.rounds.after(reading.candidates, token):
            case Over(outcome):
                yield from stored
                yield from self._concluded(outcome, closing)
            case RunTools(calls):
                state.unfinished = None
                self._journal.continue_turn(reading.candidates)
                yield from _with_progress(stored, self._journal.progress())
                yield Wait(calls)
            case bytes(body):
                yield from stored
                state.unfinished = reading.answer if reading.continues else None
                self._journal.continue_turn(reading.candidates)
                yield from state.send(body)

    def _unfinished(self, response: Document) -> Iterator[Effect]:
        """Process a response that the end of the stream left incomplete."""
        reading = self._state.reading
        visible = reading.read(response, whole=False)
        if reading.answer is not None:
            contents = [candidate["content"] for candidate in objects(response["candidates"])]
            reading.answer.unfinished_calls.update(str(call.get("name")) for call in calls_in(contents))
        yield from self._state.saves()
        if visible is not None:
            yield from self._writer.write(self._wire.event(visible))

    def _concluded(self, outcome: str, closing: Document | None) -> Iterator[Effect]:
        """End the whole answer cleanly."""
        state, reading = self._state, self._state.reading
        is_unfinished = reading.is_unfinished
        yield from reading.final_notes()
        if is_unfinished:  # its last event may have been an error
            yield from state.beginnings()
        yield from state.saves(complete=True)
        self._writer.has_written_end = True
        if closing is not None and self._writer.streams:
            yield from self._writer.write(self._writer.closing(closing))
        answer = reading.answer
        if answer is not None:
            for name in answer.unfinished_calls:
                yield Warn(f"{_CUT_SHORT} {name}: the received part was used")
            if answer.continuation_token is not None:
                yield state.pause(answer, answer.continuation_token)
        yield from self._ended(outcome)

    def _ended(self, outcome: str) -> Iterator[Effect]:
        if self._writer.streams:
            yield from self._writer.write(self._writer.end(self._state.reading))
        else:
            body = self._whole()
            if self._errors.body_may_not_go_out(body):
                yield from self._errors.unreadable()
                return
            yield Begin()
            yield from self._writer.write(body)
        yield self._state.end(outcome)

    def _whole(self) -> bytes:
        """The body of an answer that is not streamed."""
        parts, reading = None, self._state.reading
        if reading.framing is not Framing.JSON or self._state.unfinished is not None:
            parts = [part for candidate in reading.candidates[:1] for part in candidate.current_visible_parts]
        return self._writer.whole(self._journal.current_visible, parts)


def _with_progress(effects: Sequence[Effect], progress: Save) -> list[Effect]:
    """The effects at the end of a round, whose calls are saved together with the progress."""
    saves = [effect for effect in effects if isinstance(effect, Save)]
    calls = [call for save in saves for call in save.calls]
    return [progress._replace(calls=calls), *(effect for effect in effects if not isinstance(effect, Save))]
