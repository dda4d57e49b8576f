"""The answer machine: makes one answer to a client from one upstream answer, or from all rounds of a loop.

Bytes go in; effects come out (`graft.effects`): in order, what the client gets and what is stored before that goes out.
A shell drives the machine: `graft.capture` for an answer that mitmproxy has, `loop.runner` for a loop. There is no I/O,
no clock and no waiting here. The Wire knows how an answer looks in its surface's language.

An event without a call passes as its original bytes. In a stream in Gemini's own language, events before the first
call are not even parsed (`passes`). Only with `passthrough` does the client get a call of a grafted tool: never because
the store fails, nor in bytes that cannot be read.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from addon.core.answers.answer import AnswerRewriter, Candidate
from addon.core.answers.arguments import Limits
from addon.core.framing.documents import Document, Malformed, decode, encode, objects
from addon.core.framing.encoding import TooLong
from addon.core.framing.json_array import ArrayItem
from addon.core.framing.sse import SseEvent
from addon.core.history.calls import calls_in
from addon.core.history.request import Request
from addon.core.toolloop import RunTools
from addon.graft.births import Births
from addon.graft.decoding import Item
from addon.graft.effects import Begin, Effect, End, Mistake, Note, Pause, Save, Send, Show, Start, Wait, Warn
from addon.graft.exchange import STORE_FAILED, Exchange
from addon.graft.hidden_calls import HiddenCalls
from addon.graft.journal import Journal, TurnIds
from addon.graft.note_reader import FINISH
from addon.graft.owners import Owners
from addon.graft.reading import Reading, holds, markers_of
from addon.graft.response_writer import ResponseWriter
from addon.graft.resumption import Resumption
from addon.graft.rounds import Over, Rounds
from addon.graft.splice import Splice
from addon.settings import Settings
from addon.surfaces.base import Framing
from addon.surfaces.wire import Wire

_CUT_SHORT = "an answer ended within the arguments of a call of"


class BadAnswer(Exception):
    """The answer of a later round is unusable, for example empty. The client got nothing of it, so a retry is safe."""


class AnswerMachine:
    """`request`: what a loop sends upstream; None: the answer ends with the first upstream answer. `owners`: who runs
    each call. `clock`: the store's. `reading`: the present upstream answer."""

    def __init__(
        self,
        exchange: Exchange,
        settings: Settings,
        clock: Callable[[], float],
        owners: Owners,
        request: Request | None = None,
    ) -> None:
        self.exchange = exchange
        self.wire = exchange.wire
        self._settings = settings
        self._rounds = rounds = Rounds(exchange, request, owners)
        self._splice = Splice()
        self._writer = ResponseWriter(self.wire, self._splice, is_loop=rounds.is_loop)
        self._births = births = Births(owners, rounds, exchange.config)
        self._journal = Journal(exchange, clock, births, self._splice)
        self._markers = markers_of(exchange, loops=self._rounds.runs_calls)
        self._hidden_calls = HiddenCalls(exchange)
        self._turn_ids = TurnIds()
        self._before = exchange.resumes.answer if exchange.resumes is not None else None
        """The incomplete answer that the present round continues."""
        if self._before is not None and 0 in self._before.candidates:
            self._turn_ids.resume(self._before.candidates[0].turn_id)
        self.is_over = False
        self._at_end: Sequence[Candidate] = ()  # of the present round, once the answer is over
        self._beginnings_noted = False
        self.reading = self._read("")

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
        return self._splice.rounds

    @property
    def usage(self) -> Sequence[Document]:
        """The usage of each round, as far as read."""
        return self._splice.usage.rounds

    def start(self) -> list[Effect]:
        """The first request of a loop."""
        return self._sent(self._rounds.first())

    def resume(self, resumption: Resumption) -> list[Effect]:
        """Call this instead of `start`, or before `begin`: the answer continues one that broke off."""
        self._births.resumption = resumption
        if len(resumption.steps) > len(self._journal.steps):
            self._before = None  # it is complete
        self._turn_ids.resume(resumption.turn_id)
        calls = self._journal.resume(resumption)
        if not self._rounds.is_loop or not resumption.steps:
            return self.start() if self._rounds.is_loop else []
        self._splice.resume(resumption.usage, resumption.meta)
        self.wire.resume(resumption.rounds, resumption.visible)
        effects: list[Effect] = []
        if anew := [call for call, birth in calls if birth.repeats is None]:
            effects.append(self._journal.progress(anew))
        effects += self._writer.resume(self.exchange.target.framing, resumption.visible)
        return [*effects, Start(tuple(calls)), Wait(tuple(call for call, _ in calls))]

    def begin(self, content_type: str = "") -> list[Effect]:
        """Begin an upstream answer with status 200: the next one, or a retry of the present one."""
        if not self._rounds.is_loop:
            self._begin_round()
        self._turn_ids.begin_answer(goes_on=self._before is not None)
        self.reading = self._read(content_type)
        self._journal.begin_answer(self.reading.candidates)
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
                return self._done(lambda: self._items(items))
            for index, item in enumerate(items):
                out = self._item(item)
                if not isinstance(out, bytes):
                    return self._done(partial(self._rest, written, out, items[index + 1 :]))
                written.append(out)  # the usual case: bytes only
        except TooLong as error:
            return self.too_long(f"{error} (graft_max_event)")
        except Exception as error:
            return [Show(b"".join(written)), *self._mistaken(error)] if any(written) else self._mistaken(error)
        data = written[0] if len(written) == 1 else b"".join(written)
        if self._may_not_go_out(data):
            return self._unreadable()
        if data:
            self._writer.has_written = True
        return data

    def finish(self) -> Iterator[Effect]:
        """End the present answer cleanly. Raises BadAnswer."""
        return self._done(self._finished)

    def take_responses(self, responses: Mapping[str, Document]) -> Iterator[Effect]:
        """Take the responses, by call id, of the calls that were waited for."""
        resumption = self._births.resumption
        if resumption is None or self._rounds.number:
            return self._done(lambda: self._sent(self._rounds.after_tools(responses)))
        return self._done(lambda: self._sent(self._rounds.resumed(resumption, responses)))

    def keepalive(self) -> bytes:
        """An event that clients ignore; b"" if the answer is not a stream."""
        return self._writer.keepalive()

    def on_hangup(self) -> list[Effect]:
        """The client has hung up. Its turn is complete if its end was sent: some clients stop reading there."""
        if self.is_over or not self._writer.streams or not self._writer.has_written_end:
            return []
        effects = [*self._journal.saves(self.reading.candidates, complete=True, cut=self.reading.is_cut)]
        return [*effects, self._over("answered")]

    def beginnings(self) -> Iterator[Note]:
        """The notes to make if the client does not read to the end, or gets an error there: it may continue with any
        beginning of what it was sent. Given once, and only for streams: nobody keeps the beginning of one document."""
        if not self._writer.streams or self._beginnings_noted:
            return
        self._beginnings_noted = True
        yield from self.reading.beginnings()
        yield from self._journal.beginnings(self._at_end if self.is_over else self.reading.candidates)

    @property
    def unsettled(self) -> list[str]:
        """The ids of the turns that the client may not have completely: all of them until delivery is known."""
        return self._journal.unsettled

    @property
    def complete(self) -> list[str]:
        """The ids of the turns that have ended cleanly."""
        return list(self._journal.complete)

    def close(self) -> None:
        """End the answer: nobody waits for it any longer."""
        if not self.is_over:
            self.is_over, self._at_end = True, self.reading.candidates
            self.reading.answer = None

    def _sent(self, body: bytes) -> list[Effect]:
        self._begin_round()
        return [Send(body, goes_on=self._before is not None and self.rounds > 1)]

    def _begin_round(self) -> None:
        self._splice.begin_round()
        self._writer.has_written = False

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
                    if self._may_not_go_out(data):
                        break
                    yield Show(data)
                    written.clear()
                yield effect
        except BadAnswer:
            raise
        except Exception as error:
            ends = self._mistaken(error)
        else:
            ends = []
        data = written[0] if len(written) == 1 else b"".join(written)
        if self._may_not_go_out(data):
            yield from self._unreadable()
            return
        if data:
            yield Show(data)
        yield from ends

    def _may_not_go_out(self, data: bytes) -> bool:
        """Whether a piece of a stream holds a call that the client may not see."""
        return self._writer.streams and self._hidden_calls.are_in(data, self._writer.framing)

    # --- the present answer -----------------------------------------------------------------------------------

    def _items(self, items: Sequence[Item]) -> Iterator[Effect]:
        if self._writer.framing is None:
            yield from self._writer.frame(self.reading.framing)
        for item in items:
            out = self._item(item)
            yield from self._writer.write(out) if isinstance(out, bytes) else out
            if self.is_over:
                break

    def _rest(self, written: Sequence[bytes], effects: Iterable[Effect], items: Sequence[Item]) -> Iterator[Effect]:
        yield from self._writer.write(b"".join(written))
        yield from effects
        if not self.is_over:
            yield from self._items(items)

    def _item(self, item: Item) -> bytes | Iterable[Effect]:
        """Process an event: the client's bytes, or effects if there is more to do."""
        if item.data is None:
            return self._between(item)
        if not self.reading.passes_item(item):
            return self._event(item, item.data)
        is_last = isinstance(item, SseEvent) and not self._rounds.is_loop
        # The last event may lack its last line, as nothing follows it.
        data = item.raw if is_last else self._writer.passthrough(item)
        notes = self.reading.final_notes() if FINISH in item.data else ()
        return [*notes, *self._writer.write(data)] if notes else data

    def _between(self, item: Item) -> bytes | Iterable[Effect]:
        """Process bytes that are no event: blank lines, an array's end, an event that was cut off."""
        if holds(item.raw, self.wire.call_markers):
            return self._unreadable()
        return self._writer.between(item)

    def _event(self, item: Item, data: bytes, *, whole: bool = False) -> bytes | Iterable[Effect]:
        reading = self.reading
        try:
            document = decode(data)
            response = self.wire.unwrap(document)
        except Malformed as error:
            if whole and self.rounds > 1:
                raise BadAnswer(f"its answer is not JSON: {error}") from None
            # the markers may also be in lines of the event that are not data
            if self.wire.is_within_call or holds(item.raw, self.wire.call_markers):
                return self._unreadable()
            return b"" if self.rounds > 1 and data.strip() != self.wire.done else self._writer.passthrough(item)
        if b'"error"' in data:
            reading.is_cut = reading.is_cut or _holds_error(document) or _holds_error(response)
        if response is None:
            return b"" if self.rounds > 1 and not document else self._writer.passthrough(item, document)
        try:
            visible = reading.read(response, whole=whole)
            saves = self._saves()
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
        yield from self._writer.write(self._writer.event(self.reading, *event))

    def _read(self, content_type: str) -> Reading:
        return Reading(
            self.exchange,
            content_type,
            is_plain=self.rounds == 1 and self.wire.native,
            markers=self._markers,
            note=partial(_note, self._splice, self._rounds),  # a method of this would make a circle
            new_turn_id=self._turn_ids,
            stored_id=self._births.stored_id,
            goes_on=self._rounds.is_answered_here,
            continues=self._rounds.continues,
            before=self._before.resumed(anew=self.rounds <= 1) if self._before is not None else None,
            limits=Limits(self._settings.max_calls, self._settings.max_args),
            max_event=self._settings.max_event,
        )

    def _saves(self, *, complete: bool = False) -> Sequence[Effect]:
        """Store news before they go out, and begin the calls that are run."""
        journal, candidates = self._journal, self.reading.candidates
        if not complete and not journal.has_news(candidates):
            return ()
        fresh = tuple(journal.fresh(candidates))
        saves: list[Effect] = [*journal.saves(candidates, complete=complete, cut=self.reading.is_cut)]
        return [*saves, Start(fresh)] if fresh else saves

    def _checkpoint(self, answer: AnswerRewriter, token: str, visible: Document | None) -> Iterator[Effect]:
        """Keep the answer if the client gets a token in the middle: the stream may break off after it."""
        candidates = objects(visible.get("candidates")) if visible is not None and self._writer.streams else ()
        if any(one.get("continuationToken") and one.get("finishReason") is None for one in candidates):
            yield self._paused(answer, token)

    def _paused(self, answer: AnswerRewriter, token: str) -> Pause:
        return Pause(token, self._rounds.paused(answer, self._journal.steps, self._journal.visible))

    # --- the end of an answer ---------------------------------------------------------------------------------

    def _finished(self) -> Iterator[Effect]:
        reading = self.reading
        yield from self._items(reading.decoder.flush())
        if not self.is_over and self._writer.streams and (unfinished := self.wire.unfinished_response()) is not None:
            yield from self._unfinished(unfinished)
        stored: list[Effect] = []
        if not self.is_over and reading.framing is Framing.JSON:
            stored += self._document(bytes(reading.decoder.body))
        if self.is_over:
            yield from stored
            return
        if self.rounds > 1 and not reading.has_responses and not reading.is_cut:
            yield from stored
            raise BadAnswer("its answer holds nothing")
        if reading.is_cut and self._writer.streams:
            yield from stored
            yield from self._ended("cut")
            return
        closing = reading.closing()
        if reading.goes_on:
            stored += self._saves()
        token = reading.answer.continuation_token if reading.answer is not None else None
        match self._rounds.after(reading.candidates, token):
            case Over(outcome):
                yield from stored
                yield from self._concluded(outcome, closing)
            case RunTools(calls):
                self._before = None
                self._journal.continue_turn(reading.candidates)
                yield from _with_progress(stored, self._journal.progress())
                yield Wait(calls)
            case bytes(body):
                yield from stored
                self._before = reading.answer if reading.continues else None
                self._journal.continue_turn(reading.candidates)
                yield from self._sent(body)

    def _unfinished(self, response: Document) -> Iterator[Effect]:
        """Process a response that the end of the stream left incomplete."""
        visible = self.reading.read(response, whole=False)
        if self.reading.answer is not None:
            contents = [candidate["content"] for candidate in objects(response["candidates"])]
            self.reading.answer.unfinished_calls.update(str(call.get("name")) for call in calls_in(contents))
        yield from self._saves()
        if visible is not None:
            yield from self._writer.write(self.wire.event(visible))

    def _document(self, body: bytes) -> Iterable[Effect]:
        """Process an answer that is not a stream. Nothing of it goes out before its end."""
        item = ArrayItem(body, b"", body)
        out = self._writer.passthrough(item) if self.reading.passes_body(body) else self._event(item, body, whole=True)
        return self._writer.write(out) if isinstance(out, bytes) else out

    def _concluded(self, outcome: str, closing: Document | None) -> Iterator[Effect]:
        """End the whole answer cleanly."""
        is_unfinished = self.reading.is_unfinished
        yield from self.reading.final_notes()
        if is_unfinished:  # its last event may have been an error
            yield from self.beginnings()
        yield from self._saves(complete=True)
        self._writer.has_written_end = True
        if closing is not None and self._writer.streams:
            yield from self._writer.write(self._writer.closing(closing))
        answer = self.reading.answer
        if answer is not None:
            for name in answer.unfinished_calls:
                yield Warn(f"{_CUT_SHORT} {name}: the received part was used")
            if answer.continuation_token is not None:
                yield self._paused(answer, answer.continuation_token)
        yield from self._ended(outcome)

    def _ended(self, outcome: str) -> Iterator[Effect]:
        if self._writer.streams:
            yield from self._writer.write(self._writer.end(self.reading))
        else:
            body = self._whole()
            if self._hidden_calls.are_in(body, Framing.JSON):
                yield from self._unreadable()
                return
            yield Begin()
            yield from self._writer.write(body)
        yield self._over(outcome)

    def _whole(self) -> bytes:
        """The body of an answer that is not streamed."""
        parts = None
        if self.reading.framing is not Framing.JSON or self._before is not None:
            parts = [part for state in self.reading.candidates[:1] for part in state.current_visible_parts]
        return self._writer.whole(self._journal.current_visible, parts)

    def _over(self, outcome: str) -> End:
        self.close()
        return End(outcome)

    # --- what goes wrong --------------------------------------------------------------------------------------

    def fail(self, code: int, status: str, words: str) -> list[Effect]:
        """End the answer with an error of the proxy's own, in the answer's present form."""
        return [self._writer.fail(code, status, words), self._over("error")]

    def too_long(self, words: str) -> list[Effect]:
        """The answer is too long: the rest of it is not read."""
        return self.fail(502, "UNAVAILABLE", words)

    def on_store_failure(self) -> list[Effect] | None:
        """The effects to perform instead of a failed Save and everything after it; None: go on, as the settings say. In
        neither case does the client get an unknown call: its turn is not found again, and nothing else is lost. A
        service that keeps the answer would refuse all that follows it, because nobody could answer its calls."""
        self._journal.forget_ended()
        has_calls = bool(self._journal.steps) or any(one.captured for one in self.reading.candidates)
        if self._settings.on_store_error == "pass" and not (has_calls and self.wire.keeps_answer):
            return None
        return self.fail(503, "UNAVAILABLE", STORE_FAILED)

    def on_refusal(self, status: int, body: bytes) -> list[Effect]:
        """Handle an upstream status other than 200. The client receives it unchanged, or as an error event if its
        stream has begun. In a later round a status that is not an error is useless to the client, and becomes a 502."""
        if self.rounds > 1 and not 400 <= status < 600:
            return self.fail(502, "UNAVAILABLE", f"the model answered with status {status} in a tool loop")
        return [self._writer.refuse(status, body), self._over("refused")]

    def _unreadable(self) -> Iterator[Effect]:
        """Refuse bytes that hold a call and cannot be read: the client must not see the call."""
        yield Warn("an answer with a call could not be read: the client was given an error")
        yield from self.fail(502, "UNAVAILABLE", "the model's answer holds a call and cannot be read")

    def _mistaken(self, error: Exception) -> list[Effect]:
        words = f"{type(error).__name__} while the answer was captured"
        return [Mistake(error, passed=False), *self.fail(500, "INTERNAL", words)]


def _note(splice: Splice, rounds: Rounds, response: Document) -> None:
    splice.note(response)
    rounds.note(response)


def _holds_error(document: object) -> bool:
    """Whether an event (or a list of one, as Code Assist sends them) holds an error."""
    return any(one.get("error") is not None for one in objects(document))


def _with_progress(effects: Sequence[Effect], progress: Save) -> list[Effect]:
    """The effects at the end of a round, whose calls are saved together with the progress."""
    saves = [effect for effect in effects if isinstance(effect, Save)]
    calls = [call for save in saves for call in save.calls]
    return [progress._replace(calls=calls), *(effect for effect in effects if not isinstance(effect, Save))]
