"""The state of one answer in the making, which the parts of the answer machine share."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial

from addon.core.answers.answer import AnswerRewriter, Candidate
from addon.core.answers.arguments import Limits
from addon.core.framing.documents import Document
from addon.graft.effects import Effect, End, Note, Pause, Save, Send, Start
from addon.graft.exchange import Exchange
from addon.graft.initial_states import InitialStates
from addon.graft.joined_rounds import JoinedRounds
from addon.graft.journal import Journal, TurnIds
from addon.graft.owners import Owners
from addon.graft.reading import Reading, markers_of
from addon.graft.response_writer import ResponseWriter
from addon.graft.rounds import Rounds
from addon.settings import Settings


class AnswerState:
    """`body`: what a loop sends upstream; None: the answer ends with the first upstream answer. `reading`: the
    present upstream answer. `unfinished`: the incomplete answer that the present round continues. `has_unsaved`: the
    store failed to take something of the answer."""

    def __init__(
        self,
        exchange: Exchange,
        settings: Settings,
        clock: Callable[[], float],
        owners: Owners,
        body: bytes | None,
        loop_id: str | None,
    ) -> None:
        self.exchange = exchange
        self.wire = exchange.wire
        self.settings = settings
        self.rounds = rounds = Rounds(exchange, body, owners)
        self.joined = JoinedRounds()
        self.writer = ResponseWriter(self.wire, self.joined, is_loop=rounds.is_loop)
        self.initial_states = initial_states = InitialStates(owners, rounds, exchange.config, loop_id)
        self.journal = Journal(exchange, clock, initial_states, self.joined)
        self.turn_ids = TurnIds()
        self.unfinished = exchange.resumes.answer if exchange.resumes is not None else None
        if self.unfinished is not None and 0 in self.unfinished.candidates:
            self.turn_ids.resume(self.unfinished.candidates[0].turn_id)
        self.is_over = False
        self.has_unsaved = False
        self._markers = markers_of(exchange, loops=rounds.runs_calls)
        self._at_end: Sequence[Candidate] = ()  # of the present round, once the answer is over
        self._beginnings_noted = False
        self.reading = self._read("")

    @property
    def is_later_round(self) -> bool:
        return self.joined.rounds > 1

    def begin_round(self) -> None:
        self.joined.begin_round()
        self.writer.has_written = False

    def send(self, body: bytes) -> list[Effect]:
        """Begin a round with this request."""
        self.begin_round()
        return [Send(body, goes_on=self.unfinished is not None and self.is_later_round)]

    def begin_reading(self, content_type: str) -> None:
        self.reading = self._read(content_type)
        self.journal.begin_answer(self.reading.candidates)

    def _read(self, content_type: str) -> Reading:
        before = self.unfinished
        return Reading(
            self.exchange,
            content_type,
            is_plain=self.joined.rounds == 1 and self.wire.native,
            markers=self._markers,
            note=partial(_note, self.joined, self.rounds),  # a method of this would make a circle
            new_turn_id=self.turn_ids,
            stored_id=self.initial_states.stored_id,
            goes_on=self.rounds.is_answered_here,
            continues=self.rounds.continues,
            before=before.resumed(anew=not self.is_later_round) if before is not None else None,
            limits=Limits(self._calls_left(), self.settings.max_args),
            max_event=self.settings.max_event,
        )

    def _calls_left(self) -> int:
        """How many calls the present step may have."""
        most, whole = self.settings.max_calls, self.exchange.config.max_tool_calls
        if whole is None:
            return most
        made = sum(slot.call_id is not None for step in self.journal.steps for slot in step.slots)
        return min(most, max(whole - made, 0))

    def saves(self, *, complete: bool = False) -> Sequence[Effect]:
        """Store news before they go out, and begin the calls that are run."""
        journal, candidates = self.journal, self.reading.candidates
        if not complete and not journal.has_news(candidates):
            return ()
        fresh = tuple(journal.fresh(candidates))
        saves: list[Effect] = [*journal.saves(candidates, complete=complete, cut=self.reading.is_cut)]
        return [*saves, Start(fresh)] if fresh else saves

    def pause(self, answer: AnswerRewriter, token: str) -> Pause:
        return Pause(token, self.rounds.paused(answer, self.journal.steps, self.journal.visible))

    def beginnings(self) -> Iterator[Note | Save]:
        """What to store if the client does not read to the end, or gets an error there: it may continue with any
        beginning of what it was sent. Given once, and only for streams: nobody keeps the beginning of one document."""
        if not self.writer.streams or self._beginnings_noted:
            return
        self._beginnings_noted = True
        yield from self.reading.beginnings()
        yield from self.journal.beginnings(self._at_end if self.is_over else self.reading.candidates)

    def end(self, outcome: str) -> End:
        self.close()
        return End(outcome)

    def close(self) -> None:
        if not self.is_over:
            self.is_over, self._at_end = True, self.reading.candidates
            self.reading.answer = None


def _note(joined: JoinedRounds, rounds: Rounds, response: Document) -> None:
    joined.note(response)
    rounds.note(response)
