"""The answer machine: makes one answer to a client from one upstream answer, or from all rounds of a loop.

Bytes go in; effects come out: in order, what to send to the client and what to store before that. A shell drives the
machine: `machine_shell.Capture` for a complete answer from mitmproxy, `loop.runner` for all others. The machine does no
I/O, has no clock and never waits. `machine_protocol` lists its states, events and effects.

In the first round of a stream in Gemini's own format, an event without a call passes as its original bytes, and events
before the first call are not even parsed (`passes`). A client gets calls of grafted tools only with `passthrough`:
neither a failing store nor unreadable bytes let one through.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from addon.core.answer import AnswerRewriter
from addon.core.arguments import Limits
from addon.core.framing.documents import Document, Malformed, decode, encode, objects
from addon.core.framing.streams import ArrayItem, SseEvent, TooLong
from addon.core.history.calls import calls_in
from addon.graft.client_answer import ResponseWriter
from addon.graft.exchange import STORE_FAILED, Exchange
from addon.graft.machine_protocol import (
    TABLE,
    Begin,
    Effect,
    End,
    Event,
    ImpossibleEvent,
    Mistake,
    Note,
    Pause,
    Save,
    Send,
    Show,
    Start,
    State,
    Wait,
    Warn,
)
from addon.graft.owners import Owners
from addon.graft.rounds import Resumption, Rounds
from addon.graft.turn_records import Journal
from addon.graft.upstream_answer import FINISH, Item, Reading, holds, holds_hidden_call, markers_of
from addon.settings import Settings
from addon.surfaces.incoming import Framing
from addon.surfaces.surface import Wire

_CUT_OFF = "the connection to the model ended before the answer did"
_CUT_SHORT = "an answer ended within the arguments of a call of"


class BadAnswer(Exception):
    """A later round's answer is unusable, for example empty. The client received nothing of it, so a retry is safe."""


class AnswerMachine:
    """`body`: the Runner's first upstream request; None: the answer ends with the first upstream answer. `owners`:
    decides who runs each call. `clock`: the store's. `loop_id`: the loop that begins the calls, if any.

    `reading`: the current upstream answer. `has_unsaved`: the store failed to save a part of the answer."""

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
        self.has_unsaved = False
        self.state = State.NEW
        self._event: Event = "start"  # the latest
        self._settings = settings
        self._wire = exchange.wire
        self._rounds = rounds = Rounds(exchange, body, owners, loop_id)
        self._joined = rounds.joined
        self._writer = ResponseWriter(self._wire, rounds.joined, has_runner=rounds.has_runner)
        self._journal = Journal(exchange, clock, rounds.initial_state, rounds.joined)
        self._markers = markers_of(exchange, loops=rounds.runs_calls)
        self._beginnings_noted = False
        # The incomplete answer that the current round continues:
        self._unfinished = exchange.resumes.answer if exchange.resumes is not None else None
        self.reading = self._read("")

    def _take(self, event: Event) -> None:
        if event not in TABLE[self.state]:
            raise ImpossibleEvent(f"{event} is impossible while an answer is {self.state}")
        self._event = event

    def _become(self, state: State) -> None:
        if state not in TABLE[self.state][self._event]:
            raise ImpossibleEvent(f"{self._event} cannot lead from {self.state} to {state}")
        self.state = state

    # --- events: perform each of the returned effects before asking for the next ------------------------------

    def start(self) -> list[Effect]:
        """Begin the first request of a loop."""
        self._take("start")
        return self._send(self._rounds.first())

    def resume(self, resumption: Resumption) -> list[Effect]:
        """Continue a broken-off answer. Call this instead of `start`, or before `begin`."""
        self._take("resume")
        rounds, journal = self._rounds, self._journal
        rounds.resumption = resumption
        if len(resumption.steps) > len(journal.steps):
            self._unfinished = None  # it is complete
        calls = journal.resume(resumption)
        if not rounds.has_runner:
            return []
        if not resumption.steps:
            return self._send(rounds.first())
        self._joined.resume(resumption.usage, resumption.meta)
        self._wire.resume(resumption.rounds, resumption.visible)
        unsaved = [call for call, initial_state in calls if initial_state.repeats != call.call_id]
        effects: list[Effect] = [journal.progress(unsaved)] if unsaved else []
        effects += self._writer.resume(self.exchange.target.framing, resumption.visible)
        self._become(State.CALLING)
        return [*effects, Start(tuple(calls)), Wait(tuple(call for call, _ in calls))]

    def begin(self, content_type: str = "") -> list[Effect]:
        """Begin an upstream answer with status 200: the next one, or a retry of the current one."""
        self._take("begin")
        if not self._rounds.has_runner:
            self._joined.begin_round()
        self.reading = self._read(content_type)
        self._journal.begin_answer(self.reading.candidates)
        self._become(State.READING)
        return self._writer.frame(self.reading.framing)

    def passes(self, chunk: bytes) -> bool:
        """Whether these bytes of a stream are whole events without a call, as most are. The shell sends them without
        feeding them."""
        if (self.state is State.WRITING or self.state is State.READING) and self.reading.passes(chunk):
            self.state = State.WRITING
            return True
        return False

    def feed(self, chunk: bytes) -> bytes | Iterable[Effect]:
        """Process the next bytes of the current answer. Returns bytes for the client, or effects."""
        self._take("feed")
        if self.state is State.OVER:
            return b""
        written: list[bytes] = []
        try:
            items = self.reading.decoder.feed(chunk)
            if self._writer.framing is None:
                return self._done(self._items(items))
            for index, item in enumerate(items):
                out = self._item(item)
                if not isinstance(out, bytes):
                    return self._done(self._rest(written, out, items[index + 1 :]))
                written.append(out)  # the usual case: bytes only
        except TooLong as error:
            return self._fail(502, "UNAVAILABLE", f"{error} (graft_max_event)")
        except Exception as error:
            return [*([Show(b"".join(written))] if any(written) else []), *self._unexpected(error)]
        data = written[0] if len(written) == 1 else b"".join(written)
        if self._may_not_go_out(data):
            return self._unreadable()
        if data and self.state is State.READING:
            self._become(State.WRITING)
        return data

    def finish(self, *, is_certain: bool = True) -> Iterator[Effect]:
        """End the current answer cleanly. `is_certain` False: only the end of the connection ended it, so it may have
        been cut off. Raises BadAnswer."""
        self._take("finish")
        return self._done(self._finish(is_certain))

    def take_responses(self, responses: Mapping[str, Document]) -> Iterator[Effect]:
        """Continue with the responses of the awaited calls, by call id."""
        self._take("take_responses")
        return self._done(self._next_request(responses))

    def on_refusal(self, status: int, body: bytes) -> list[Effect]:
        """Handle an upstream status other than 200. The client receives it unchanged, or as an error event if its
        stream has begun. In a later round a status that is not an error is useless to the client, and becomes a 502."""
        self._take("on_refusal")
        if self._is_later_round and not 400 <= status < 600:
            return self._fail(502, "UNAVAILABLE", f"the model answered with status {status} in a tool loop")
        refusal = self._writer.refuse(status, body)
        return [self._end("refused"), refusal]

    def fail(self, code: int, status: str, words: str) -> list[Effect]:
        """End the answer with an error from the proxy, in the answer's current form."""
        self._take("fail")
        return self._fail(code, status, words)

    def on_store_failure(self) -> list[Effect] | None:
        """The effects to perform instead of a failed Save and everything after it; None: continue, as the settings say.
        In neither case does the client get an unknown call: only the ledger entry of its turn is lost. A service that
        keeps the answer would refuse all later requests, because nobody could answer its calls."""
        self.has_unsaved = True
        self._journal.forget_ended()
        has_calls = bool(self._journal.steps) or any(one.captured for one in self.reading.candidates)
        if self._settings.on_store_error == "pass" and not (has_calls and self._wire.keeps_answer):
            return None
        return self.fail(503, "UNAVAILABLE", STORE_FAILED)

    def close(self) -> list[Effect]:
        """End an answer that nobody waits for. If its end was sent, the turn is complete: some clients stop reading
        there."""
        self._take("close")
        if self.state is not State.ENDING:
            self._become(State.OVER)
            return []
        saves = self._journal.saves(self.reading.candidates, complete=True, cut=self.reading.is_cut)
        return [*saves, self._end("answered")]

    # --- requests upstream ------------------------------------------------------------------------------------

    def _send(self, body: bytes) -> list[Effect]:
        """Begin a round with this request."""
        self._joined.begin_round()
        self._become(State.ASKING)
        return [Send(body, goes_on=self._unfinished is not None and self._is_later_round)]

    def _next_request(self, responses: Mapping[str, Document]) -> Iterator[Effect]:
        yield from self._send(self._rounds.after_tools(responses))

    def _read(self, content_type: str) -> Reading:
        rounds, before = self._rounds, self._unfinished
        return Reading(
            self.exchange,
            content_type,
            is_plain=self._joined.rounds == 1 and self._wire.native,
            markers=self._markers,
            rounds=rounds,
            new_turn_id=self._journal.turn_id,
            before=before.resumed(by_client=not self._is_later_round) if before is not None else None,
            limits=Limits(self._calls_left(), self._settings.max_args),
            max_event=self._settings.max_event,
        )

    def _calls_left(self) -> int:
        """How many more calls the current step may have."""
        most, whole = self._settings.max_calls, self.exchange.config.max_tool_calls
        if whole is None:
            return most
        made = sum(slot.call_id is not None for step in self._journal.steps for slot in step.slots)
        return min(most, max(whole - made, 0))

    # --- an upstream answer arrives ---------------------------------------------------------------------------

    def _items(self, items: Sequence[Item]) -> Iterator[Effect]:
        if self._writer.framing is None:
            yield from self._writer.frame(self.reading.framing)
        for item in items:
            out = self._item(item)
            yield from self._write(out) if isinstance(out, bytes) else out
            if self.is_over:
                break

    def _rest(self, written: Sequence[bytes], effects: Iterable[Effect], items: Sequence[Item]) -> Iterator[Effect]:
        """Continue with the remaining `items`, after the bytes `written` and the effects of the item before them."""
        yield from self._write(b"".join(written))
        yield from effects
        if not self.is_over:
            yield from self._items(items)

    def _item(self, item: Item) -> bytes | Iterable[Effect]:
        """Process an event. Returns the client's bytes, or effects if more is to be done."""
        if item.data is None:  # blank lines, an array's end, an event that was cut off
            return self._unreadable() if holds(item.raw, self._wire.call_markers) else self._writer.between(item)
        reading = self.reading
        if not reading.passes_item(item):
            return self._document(item, item.data)
        # without a Runner the event may lack its last line break: nothing follows the last one
        is_unchanged = isinstance(item, SseEvent) and not self._rounds.has_runner
        data = item.raw if is_unchanged else self._writer.passthrough(item)
        notes = reading.final_notes() if FINISH in item.data else ()
        return [*notes, *self._write(data)] if notes else data

    def _body(self, body: bytes) -> Iterable[Effect]:
        """Process an answer that is not a stream. Nothing of it goes out before its end."""
        item = ArrayItem(body, b"", body)
        passes = self.reading.passes_body(body)
        out = self._writer.passthrough(item) if passes else self._document(item, body, whole=True)
        return self._write(out) if isinstance(out, bytes) else out

    def _document(self, item: Item, data: bytes, *, whole: bool = False) -> bytes | Iterable[Effect]:
        reading = self.reading
        try:
            document = decode(data)
            response = self._wire.unwrap(document)
        except Malformed as error:
            if whole and self._is_later_round:
                raise BadAnswer(f"its answer is not JSON: {error}") from None
            # the markers may also be in lines of the event that are not data
            if self._wire.is_within_call or holds(item.raw, self._wire.call_markers):
                return self._unreadable()
            is_last = data.strip() == self._wire.done != b""
            reading.is_done = reading.is_done or is_last
            is_dropped = self._is_later_round and not is_last
            return b"" if is_dropped else self._writer.passthrough(item)
        if b'"error"' in data:
            reading.is_cut = reading.is_cut or _holds_error(document) or _holds_error(response)
        if response is None:
            is_dropped = self._is_later_round and not document
            return b"" if is_dropped else self._writer.passthrough(item, document)
        try:
            visible = reading.read(response, whole=whole)
            saves = self._saves()
            if reading.answer is not None and (token := reading.answer.continuation_token) is not None:
                saves = [*saves, *self._checkpoint(reading.answer, token, visible)]
        except Exception as error:
            if holds(encode(response), Wire.call_markers):
                raise
            visible, saves = response, [Mistake(error, passed=True)]
        if not self._writer.streams:
            self._writer.keep(data, document, response, visible)
            return saves
        event = (item, document, response, visible)
        return self._stored_first(saves, *event) if saves else self._visible_event(*event)

    def _stored_first(self, saves: Sequence[Effect], *event: Any) -> Iterator[Effect]:
        yield from saves
        yield from self._write(self._visible_event(*event))

    def _visible_event(self, item: Item, document: Document, response: Document, visible: Document | None) -> bytes:
        reading = self.reading
        data = self._writer.event(reading, item, document, response, visible)
        if reading.has_ended != (self.state is State.ENDING):
            self._become(State.ENDING if reading.has_ended else State.WRITING)
        return data

    def _saves(self, *, complete: bool = False) -> Sequence[Effect]:
        """Store new calls and ended turns before their bytes go out, and begin the calls that the proxy runs."""
        journal, candidates = self._journal, self.reading.candidates
        if not complete and not journal.has_news(candidates):
            return ()
        fresh = tuple(journal.fresh(candidates))
        saves: list[Effect] = [*journal.saves(candidates, complete=complete, cut=self.reading.is_cut)]
        return [*saves, Start(fresh)] if fresh else saves

    def _checkpoint(self, answer: AnswerRewriter, token: str, visible: Document | None) -> Iterator[Effect]:
        """Keep the answer if the client gets a token before the end: the stream may break off after it."""
        candidates = objects(visible.get("candidates")) if visible is not None and self._writer.streams else ()
        if any(one.get("continuationToken") and one.get("finishReason") is None for one in candidates):
            yield self._pause(answer, token)

    def _pause(self, answer: AnswerRewriter, token: str) -> Pause:
        return Pause(token, self._rounds.paused(answer, self._journal.steps, self._journal.visible))

    # --- an upstream answer ends: another request or calls follow, or the client's answer ends ----------------

    def _finish(self, is_certain: bool) -> Iterator[Effect]:
        reading = self.reading
        yield from self._items(reading.decoder.flush())
        if not is_certain and not self.is_over and not reading.is_cut and reading.lacks_end:
            yield from self._fail(502, "UNAVAILABLE", _CUT_OFF)
            return
        if not self.is_over and self._writer.streams and (unfinished := self._wire.unfinished_response()) is not None:
            yield from self._incomplete(unfinished)
        stored: list[Effect] = []
        if not self.is_over and reading.framing is Framing.JSON:
            stored += self._body(bytes(reading.decoder.body))
        if self.is_over:
            yield from stored
            return
        if self._is_later_round and not reading.has_responses and not reading.is_cut:
            yield from stored
            raise BadAnswer("its answer holds nothing")
        if reading.is_cut and self._writer.streams:
            yield from stored
            yield from self._written_end("cut")
            return
        closing = reading.closing()
        if reading.goes_on:
            stored += self._saves()
        token = reading.answer.continuation_token if reading.answer is not None else None
        match self._rounds.after(reading.candidates, token):
            case tuple() as calls:
                self._unfinished = None
                self._journal.continue_turn(reading.candidates)
                yield from _with_progress(stored, self._journal.progress())
                self._become(State.CALLING)
                yield Wait(calls)
            case bytes(body):
                yield from stored
                self._unfinished = reading.answer if reading.continues else None
                self._journal.continue_turn(reading.candidates)
                yield from self._send(body)
            case str() as outcome:
                yield from stored
                yield from self._conclude(outcome, closing)

    def _incomplete(self, response: Document) -> Iterator[Effect]:
        """Process a response that the end of the stream left incomplete."""
        reading = self.reading
        visible = reading.read(response, whole=False)
        if reading.answer is not None:
            contents = [candidate["content"] for candidate in objects(response["candidates"])]
            reading.answer.unfinished_calls.update(str(call.get("name")) for call in calls_in(contents))
        yield from self._saves()
        if visible is not None:
            yield from self._write(self._wire.event(visible))

    def _conclude(self, outcome: str, closing: Document | None) -> Iterator[Effect]:
        """End the client's answer cleanly."""
        reading, writer = self.reading, self._writer
        is_unfinished = reading.is_unfinished
        yield from reading.final_notes()
        if is_unfinished:  # the last event may have been an error
            yield from self.beginnings()
        yield from self._saves(complete=True)
        if writer.streams:
            self._become(State.ENDING)
            yield from self._write(writer.closing(closing) if closing is not None else b"")
        if (answer := reading.answer) is not None:
            for name in answer.unfinished_calls:
                yield Warn(f"{_CUT_SHORT} {name}: the received part was used")
            if answer.continuation_token is not None:
                yield self._pause(answer, answer.continuation_token)
        yield from self._written_end(outcome)

    def _written_end(self, outcome: str) -> Iterator[Effect]:
        reading, writer = self.reading, self._writer
        if writer.streams:
            yield from self._write(writer.end(reading))
        else:
            parts = None
            if reading.framing is not Framing.JSON or self._unfinished is not None:
                parts = [part for candidate in reading.candidates[:1] for part in candidate.current_visible_parts]
            body = writer.whole(self._journal.current_visible, parts)
            if holds_hidden_call(self.exchange, body, Framing.JSON):
                yield from self._unreadable()
                return
            yield Begin()
            yield from self._write(body)
        yield self._end(outcome)

    def _end(self, outcome: str) -> End:
        self._become(State.OVER)
        return End(outcome)

    # --- failures ---------------------------------------------------------------------------------------------

    def _fail(self, code: int, status: str, words: str) -> list[Effect]:
        """End with an error, which goes out after the end is noted, because the client may then retry immediately."""
        failure = self._writer.fail(code, status, words)
        return [self._end("error"), failure]

    def _unexpected(self, error: Exception) -> list[Effect]:
        words = f"{type(error).__name__} while the answer was captured"
        return [Mistake(error, passed=False), *self._fail(500, "INTERNAL", words)]

    def _unreadable(self) -> Iterator[Effect]:
        """Refuse bytes that hold a call and cannot be read: the client must not see the call."""
        yield Warn("an answer with a call could not be read: the client was given an error")
        yield from self._fail(502, "UNAVAILABLE", "the model's answer holds a call and cannot be read")

    # --- output to the client ---------------------------------------------------------------------------------

    def _write(self, data: bytes) -> Iterable[Effect]:
        if not data:
            return ()
        if self.state is State.READING:
            self._become(State.WRITING)
        return (Show(data),)

    def _may_not_go_out(self, data: bytes) -> bool:
        """Whether a piece of a stream holds a call that the client may not see."""
        return self._writer.streams and holds_hidden_call(self.exchange, data, self._writer.framing)

    def _done(self, effects: Iterable[Effect]) -> Iterator[Effect]:
        """Join adjacent bytes among an event's effects. An unexpected error ends the answer with an error, because
        unread bytes may hold a call."""
        if self.is_over:
            return
        written: list[bytes] = []
        ends: list[Effect] = []
        try:
            for effect in effects:
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
            ends = self._unexpected(error)
        data = written[0] if len(written) == 1 else b"".join(written)
        if self._may_not_go_out(data):
            yield from self._unreadable()
            return
        if data:
            yield Show(data)
        yield from ends

    # --- queries ----------------------------------------------------------------------------------------------

    @property
    def is_over(self) -> bool:
        return self.state is State.OVER

    @property
    def is_complete(self) -> bool:
        """Whether the current upstream answer has ended, whatever its body's framing says."""
        return self.reading.is_complete

    @property
    def can_retry(self) -> bool:
        """Whether the current request can be sent again: the client has received nothing of its answer."""
        return self.state is State.ASKING or self.state is State.READING

    @property
    def framing(self) -> Framing | None:
        """The framing of the client's answer; None until the first upstream answer has begun."""
        return self._writer.framing

    @property
    def rounds(self) -> int:
        return self._joined.rounds

    @property
    def _is_later_round(self) -> bool:
        return self._joined.rounds > 1

    @property
    def is_last_round(self) -> bool:
        """Whether the loop's current request may not lead to calls."""
        return self._rounds.is_last_round

    @property
    def usage(self) -> Sequence[Document]:
        return self._joined.usage.rounds

    def summarise(self) -> None:
        """Put the rounds so far and their tokens into the exchange's summary."""
        summary, usage = self.exchange.summary, self.usage
        summary.rounds = max(self._rounds.number, 1)
        summary.prompt = summary.output = 0
        summary.count(usage)
        if not (usage and usage[-1]):
            summary.keep_end(self.reading.last_unread)

    def keepalive(self) -> bytes:
        """An event that clients ignore; b"" if the answer is not a stream."""
        return self._writer.keepalive()

    def beginnings(self) -> Iterator[Note | Save]:
        """What to store if the client does not read to the end, or gets an error there: it may continue from any part
        that it received. Yields once, and only for streams: no client keeps a part of a single document."""
        if not self._writer.streams or self._beginnings_noted:
            return
        self._beginnings_noted = True
        yield from self.reading.beginnings()
        yield from self._journal.beginnings(self.reading.candidates)

    @property
    def unsettled(self) -> list[str]:
        """The ids of all turns of this answer. Until its delivery is confirmed, the client may lack a part of each."""
        return self._journal.unsettled

    @property
    def complete(self) -> list[str]:
        return list(self._journal.complete)

    @property
    def first_turn(self) -> str:
        """The turn id of the first candidate, or "" if the turn has not ended cleanly."""
        return next((turn_id for turn_id, index in self._journal.complete.items() if index == 0), "")


def _with_progress(effects: Sequence[Effect], progress: Save) -> list[Effect]:
    """The effects at the end of a round, with the progress merged into the Save of its calls."""
    saves = [effect for effect in effects if isinstance(effect, Save)]
    calls = [call for save in saves for call in save.calls]
    return [progress._replace(calls=calls), *(effect for effect in effects if not isinstance(effect, Save))]


def _holds_error(document: object) -> bool:
    """Whether an event (for Code Assist, a list of one) holds an error."""
    return any(one.get("error") is not None for one in objects(document))
