"""The answer machine: makes one answer to a client from one upstream answer, or from all rounds of a loop.

Bytes go in; effects come out (`graft.effects`): in order, what the client gets and what is stored before that goes out.
A shell drives the machine: `graft.capture` for an answer that mitmproxy has, `loop.runner` for a loop. There is no I/O,
no clock and no waiting here. The Wire knows how an answer looks in its surface's language.

An event without a call passes as its original bytes. In a stream in Gemini's own language, events before the first
call are not even parsed (`passes`). Only with `passthrough` does the client get a call of a grafted tool.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial

from addon.core.framing.documents import Document
from addon.core.framing.encoding import TooLong
from addon.graft.answer_end import AnswerEnd
from addon.graft.answer_errors import AnswerErrors, BadAnswer
from addon.graft.answer_events import AnswerEvents
from addon.graft.answer_state import AnswerState
from addon.graft.effects import Effect, Note, Save, Show, Start, Wait
from addon.graft.exchange import Exchange
from addon.graft.owners import Owners
from addon.graft.reading import Reading
from addon.graft.resumption import Resumption
from addon.settings import Settings
from addon.surfaces.base import Framing


class AnswerMachine:
    """`body`: what a loop sends upstream; None: the answer ends with the first upstream answer. `owners`: who runs
    each call. `clock`: the store's. `loop_id`: the loop that begins the calls, if any."""

    def __init__(
        self,
        exchange: Exchange,
        settings: Settings,
        clock: Callable[[], float],
        owners: Owners,
        body: bytes | None = None,
        loop_id: str | None = None,
    ) -> None:
        self.exchange = exchange
        self._state = state = AnswerState(exchange, settings, clock, owners, body, loop_id)
        self._writer = state.writer
        self._errors = AnswerErrors(state)
        self._events = AnswerEvents(state, self._errors)
        self._end = AnswerEnd(state, self._events, self._errors)

    @property
    def is_over(self) -> bool:
        return self._state.is_over

    @property
    def reading(self) -> Reading:
        """The present upstream answer."""
        return self._state.reading

    @property
    def has_unsaved(self) -> bool:
        """Whether the store failed to take something of the answer."""
        return self._state.has_unsaved

    @property
    def framing(self) -> Framing | None:
        """The framing of the client's answer; None until the first upstream answer has begun."""
        return self._writer.framing

    @property
    def has_written(self) -> bool:
        """Whether the client was sent anything of the present round."""
        return self._writer.has_written

    # --- rounds -----------------------------------------------------------------------------------------------

    @property
    def rounds(self) -> int:
        return self._state.joined.rounds

    @property
    def usage(self) -> Sequence[Document]:
        """The usage of each round, as far as read."""
        return self._state.joined.usage.rounds

    @property
    def is_last_round(self) -> bool:
        """Whether the present request of a loop may not lead to calls."""
        return self._state.rounds.is_last

    def summarise(self) -> None:
        """Put the rounds so far and their tokens into the exchange's summary."""
        summary, usage = self.exchange.summary, self.usage
        summary.rounds = max(self._state.rounds.number, 1)
        summary.prompt = summary.output = 0
        summary.count(usage)
        if not (usage and usage[-1]):
            summary.keep_end(self.reading.last_unread)

    def start(self) -> list[Effect]:
        """The first request of a loop."""
        return self._state.send(self._state.rounds.first())

    def resume(self, resumption: Resumption) -> list[Effect]:
        """Call this instead of `start`, or before `begin`: the answer continues one that broke off."""
        state = self._state
        state.initial_states.resumption = resumption
        if len(resumption.steps) > len(state.journal.steps):
            state.unfinished = None  # it is complete
        state.turn_ids.resume(resumption.turn_id)
        calls = state.journal.resume(resumption)
        if not state.rounds.is_loop or not resumption.steps:
            return self.start() if state.rounds.is_loop else []
        state.joined.resume(resumption.usage, resumption.meta)
        state.wire.resume(resumption.rounds, resumption.visible)
        effects: list[Effect] = []
        if anew := [call for call, initial_state in calls if initial_state.repeats != call.call_id]:
            effects.append(state.journal.progress(anew))
        effects += self._writer.resume(self.exchange.target.framing, resumption.visible)
        return [*effects, Start(tuple(calls)), Wait(tuple(call for call, _ in calls))]

    def begin(self, content_type: str = "") -> list[Effect]:
        """Begin an upstream answer with status 200: the next one, or a retry of the present one."""
        if not self._state.rounds.is_loop:
            self._state.begin_round()
        self._state.begin_reading(content_type)
        return self._writer.frame(self.reading.framing)

    def passes(self, chunk: bytes) -> bool:
        """Whether these bytes of a stream are whole events without a call, as most are. They go out unchanged, and are
        neither parsed nor held back. Do not feed them."""
        if self.reading.passes(chunk):
            self._writer.has_written = True
            return True
        return False

    def feed(self, chunk: bytes) -> bytes | Iterable[Effect]:
        """Take the next bytes of the present answer. Returns the client's bytes, or effects if there is more to do.
        Here and below, perform each effect before asking for the next."""
        if self.is_over:
            return b""
        written: list[bytes] = []
        try:
            items = self.reading.decoder.feed(chunk)
            if self._writer.framing is None:
                return self._done(lambda: self._events.items(items))
            for index, item in enumerate(items):
                out = self._events.item(item)
                if not isinstance(out, bytes):
                    return self._done(partial(self._events.rest, written, out, items[index + 1 :]))
                written.append(out)  # the usual case: bytes only
        except TooLong as error:
            return self._errors.too_long(f"{error} (graft_max_event)")
        except Exception as error:
            before = [Show(b"".join(written))] if any(written) else []
            return [*before, *self._errors.unexpected(error)]
        data = written[0] if len(written) == 1 else b"".join(written)
        if self._errors.may_not_go_out(data):
            return self._errors.unreadable()
        if data:
            self._writer.has_written = True
        return data

    def finish(self, *, is_certain: bool = True) -> Iterator[Effect]:
        """End the present answer cleanly. `is_certain` False: it may also have been cut off, because only the end of
        its connection has ended it. Raises BadAnswer."""
        return self._done(partial(self._end.finish, is_certain=is_certain))

    def take_responses(self, responses: Mapping[str, Document]) -> Iterator[Effect]:
        """Take the responses, by call id, of the calls that were waited for."""
        state = self._state
        state.initial_states.begin_step()
        resumption = state.initial_states.resumption
        if resumption is None or state.rounds.number:
            return self._done(lambda: state.send(state.rounds.after_tools(responses)))
        return self._done(lambda: state.send(state.rounds.resumed(resumption, responses)))

    def keepalive(self) -> bytes:
        """An event that clients ignore; b"" if the answer is not a stream."""
        return self._writer.keepalive()

    def on_hangup(self) -> list[Effect]:
        """The client has hung up. Its turn is complete if its end was sent: some clients stop reading there."""
        if self.is_over or not self._writer.streams or not self._writer.has_written_end:
            return []
        effects = [*self._state.journal.saves(self.reading.candidates, complete=True, cut=self.reading.is_cut)]
        return [*effects, self._state.end("answered")]

    def beginnings(self) -> Iterator[Note | Save]:
        """What to store if the client does not read to the end, or gets an error there."""
        return self._state.beginnings()

    @property
    def unsettled(self) -> list[str]:
        """The ids of the turns that the client may not have completely: all of them until delivery is known."""
        return self._state.journal.unsettled

    @property
    def complete(self) -> list[str]:
        """The ids of the turns that have ended cleanly."""
        return list(self._state.journal.complete)

    @property
    def first_turn(self) -> str:
        """The id of the first candidate's turn, if it has ended cleanly, else ""."""
        return next((turn_id for turn_id, index in self._state.journal.complete.items() if index == 0), "")

    def close(self) -> None:
        """End the answer: nobody waits for it any longer."""
        self._state.close()

    # --- what goes wrong --------------------------------------------------------------------------------------

    def fail(self, code: int, status: str, words: str) -> list[Effect]:
        """End the answer with an error of the proxy's own, in the answer's present form."""
        return self._errors.fail(code, status, words)

    def on_store_failure(self) -> list[Effect] | None:
        """The effects to perform instead of a failed Save and everything after it; None: go on."""
        return self._errors.on_store_failure()

    def on_refusal(self, status: int, body: bytes) -> list[Effect]:
        """Handle an upstream status other than 200."""
        return self._errors.on_refusal(status, body)

    def _done(self, step: Callable[[], Iterable[Effect]]) -> Iterator[Effect]:
        """The effects of a step, with adjacent bytes joined. An unexpected error ends the answer with an error, because
        unread bytes may hold a call."""
        if self.is_over:
            return
        written: list[bytes] = []
        try:
            for effect in step():
                if isinstance(effect, Show):
                    written.append(effect.data)
                    continue
                if written:
                    data = b"".join(written)
                    if self._errors.may_not_go_out(data):
                        break
                    yield Show(data)
                    written.clear()
                yield effect
        except BadAnswer:
            raise
        except Exception as error:
            ends = self._errors.unexpected(error)
        else:
            ends = []
        data = written[0] if len(written) == 1 else b"".join(written)
        if self._errors.may_not_go_out(data):
            yield from self._errors.unreadable()
            return
        if data:
            yield Show(data)
        yield from ends
