"""Builds the records of an answer for the store: its turns, its calls, and the keys that find a turn.

The functions build single records. `Journal` keeps track of what one answer has stored so far.
"""

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

from addon.core.answer import Candidate, CapturedCall
from addon.core.framing.documents import Document
from addon.core.history.keys import marks_of
from addon.core.history.steps import CallSlot
from addon.core.history.turns import WINDOWS, HistoryTurn, chain_key, chains_without_ids, windows, windows_without_ids
from addon.core.history.visible import prefix_digests_of, step_digests, text_of, visible_digest
from addon.core.live import LiveStep
from addon.graft.exchange import Exchange, new_turn_id
from addon.graft.machine_protocol import Note, Save
from addon.graft.owners import InitialState
from addon.graft.rounds import JoinedRounds, Resumption
from addon.graft.session_config import SessionConfig
from addon.surfaces.incoming import Target
from store.models import Call, Progress, Slot, Status, Step, Turn

TRY = "try"
"""The surface of a call that a person tries without a model."""


class RecordSource(Protocol):
    """Where calls come from."""

    @property
    def config(self) -> SessionConfig: ...
    @property
    def model(self) -> str: ...
    @property
    def target(self) -> Target: ...


def keys_of(exchange: Exchange, visible: Sequence[Document]) -> list[bytes]:
    """The keys of a turn with these visible parts: of its own words, of its words with all or some of the turns before
    it, and of the model's marks. A placeholder's words are its own alone, so it has the keys by which it is found
    without its id instead of those with some turns."""
    digest, marks = visible_digest(visible), [*_mark_keys(exchange, visible), *_step_keys(exchange, visible)]
    if not exchange.config.placeholder.find(text_of(visible)):
        return [*_word_keys(exchange, digest), *marks]
    own = exchange.keys.own(digest)
    return [*exchange.keys.words(own, _chain(exchange, digest), ()), *_bare_keys(exchange), *marks]


def note_of(exchange: Exchange, digest: bytes, marked: Sequence[Document] = ()) -> Note:
    """The note of a turn without hidden parts, from the digest of its words. `marked`: the parts that may hold marks of
    the model."""
    keys = _word_keys(exchange, digest)
    if marked:
        keys += [*_mark_keys(exchange, marked), *_step_keys(exchange, marked)]
        if exchange.config.placeholder.is_bare(text_of(marked)):
            keys += _bare_keys(exchange)
    return Note(keys, exchange.keys.mask_chain(keys[0], _chain(exchange, digest)))


def _word_keys(exchange: Exchange, digest: bytes) -> list[bytes]:
    keys, before = exchange.keys, [turn.digest for turn in _turns(exchange)[-2 * WINDOWS :]]
    return keys.words(keys.own(digest), _chain(exchange, digest), windows(before, digest))


def _chain(exchange: Exchange, digest: bytes) -> bytes:
    turns = _turns(exchange)
    return chain_key(turns[-1].chain if turns else b"", "model", digest)


def _mark_keys(exchange: Exchange, visible: Sequence[Document]) -> list[bytes]:
    return [exchange.keys.mark(*mark) for mark in marks_of([{"parts": list(visible)}])]


def _step_keys(exchange: Exchange, visible: Sequence[Document]) -> list[bytes]:
    """The keys of a turn with calls for clients that change them, or drop the text beside them."""
    turns = _turns(exchange)
    return [exchange.keys.step(turns[-1].chain if turns else b"", digest) for digest in step_digests(visible)]


def _bare_keys(exchange: Exchange) -> list[bytes]:
    """The keys of a placeholder whose id a client drops."""
    keys, turns, body, placeholder = exchange.keys, _turns(exchange), exchange.request.body, exchange.config.placeholder
    sent = windows_without_ids(turns, body, placeholder)
    chains = chains_without_ids(turns, body, placeholder)
    return [keys.bare(chains[-1] if chains else b""), *map(keys.bare_window, sent)]


def step_of(candidate: Candidate) -> Step:
    """The model's Content, with the owner of each of its calls."""
    return Step(
        content={"role": "model", "parts": list(candidate.true_parts)},
        slots=[Slot(name=slot.name, call_id=slot.call_id) for slot in candidate.slots],
    )


def turn_of(
    exchange: Exchange,
    turn_id: str,
    visible: Sequence[Document],
    steps: Sequence[Step],
    *,
    now: float,
    usage: Sequence[Document] = (),
) -> Turn:
    """A turn that is not marked as delivered: until the client has all of it, a retry continues it. `usage`: the
    usageMetadata of each request of the turn."""
    delivery = exchange.config.delivery
    keys, turns, digest = exchange.keys, _turns(exchange), visible_digest(visible)
    return Turn(
        turn_id=turn_id,
        session=exchange.config.session,
        visible=list(visible),
        steps=list(steps),
        delivery="passthrough" if delivery == "passthrough" else "loop" if len(steps) > 1 else "placeholder",
        chain=keys.mask_chain(turn_id.encode(), _chain(exchange, digest)),
        pair=keys.pair(turns[-1].digest, digest) if turns else b"",
        before=exchange.before,
        model=exchange.model,
        surface=exchange.target.surface,
        usage=list(usage),
        request_key=exchange.request_key,
        proxy_id=exchange.proxy_id,
        created_at=now,
    )


def live_turn_of(source: RecordSource, turn_id: str, called: LiveStep, *, now: float) -> Turn:
    """The entry of a Live API toolCall. The service keeps the history, so the entry is never looked up."""
    slots = [Slot(name=slot.name, call_id=slot.call_id) for slot in called.slots]
    return Turn(
        turn_id=turn_id,
        session=source.config.session,
        visible=[part for part, slot in zip(called.parts, slots, strict=True) if slot.call_id is None],
        steps=[Step(content={"role": "model", "parts": list(called.parts)}, slots=slots)],
        delivery="passthrough" if source.config.delivery == "passthrough" else "loop",
        delivered=True,
        model=source.model,
        surface=source.target.surface,
        created_at=now,
    )


def call_of(
    source: RecordSource, turn_id: str, call: CapturedCall, initial_state: InitialState, *, now: float, number: int = 0
) -> Call:
    """`number`: the round of the call."""
    if initial_state.error is not None:
        status = Status.FAILED
    else:
        status = Status.PENDING if initial_state.loop_id is None else Status.RUNNING
    is_running = status is Status.RUNNING
    return Call(
        call_id=call.call_id,
        session=source.config.session,
        name=call.name,
        args=call.args,
        status=status,
        error=initial_state.error,
        owner=initial_state.owner,
        redeliver=initial_state.redeliver,
        proxy_id=initial_state.proxy_id,
        approval="waiting" if initial_state.approval else None,
        loop_id=initial_state.loop_id,
        turn_id=turn_id,
        gemini_id=call.gemini_id,
        model=source.model,
        surface=source.target.surface,
        round=number,
        index=call.place,
        attempts=int(is_running),
        started_at=now if is_running else None,
        created_at=now,
        updated_at=now,
    )


def _turns(exchange: Exchange) -> Sequence[HistoryTurn]:
    """The client's history up to the answer."""
    request = exchange.request
    request.history.identify(request.body)
    return request.history.turns


class Journal:
    """`steps` and `visible`: the result of the rounds before the current one. `current_visible`: the visible parts that
    answer the client's current request. `clock` gives the store's time. `initial_state` decides a call's state when it
    is stored. `joined` holds the usage and metadata of all rounds."""

    def __init__(
        self,
        exchange: Exchange,
        clock: Callable[[], float],
        initial_state: Callable[[CapturedCall], InitialState],
        joined: JoinedRounds,
    ) -> None:
        self.exchange = exchange
        self.clock = clock
        self._initial_state = initial_state
        self._initial_states: dict[str, InitialState] = {}
        before = exchange.resumes
        self.steps: list[Step] = [*before.steps] if before is not None else []
        self.visible: list[Document] = [*before.visible] if before is not None else []
        self.current_visible: list[Document] = []
        self.joined = joined
        self._saved: dict[int, tuple[int, bool]] = {}
        """By candidate of the current round: the number of calls stored, and whether the turn was stored as ended."""
        self._noted: dict[int, bytes] = {}
        self._steps: dict[Candidate, tuple[list[Document], list[CallSlot], Step]] = {}
        """The last step made of each candidate, with the parts and slots that it was made of."""
        self._turns: dict[str, Turn] = {}
        """The turns as last stored, by id."""
        self.complete: dict[str, int] = {}
        """The turns that ended cleanly: id → index of the candidate."""
        self._ended: set[str] = set()
        """The ids of the turns that their visible parts find."""
        self._past: list[Candidate] = []
        """The candidates of the finished rounds."""
        self._resumed: list[Document] = [*self.visible]
        self._first_id = ""  # of the first candidates' turn
        if before is not None and 0 in before.answer.candidates:
            self._first_id = before.answer.candidates[0].turn_id
        self._turn_id = ""  # of the client's turn, once one of its rounds is complete
        self._taken_over = ""  # the id of the broken-off turn that this answer continues

    @property
    def unsettled(self) -> list[str]:
        """The ids of all turns of this answer. Until its delivery is confirmed, the client may lack a part of each."""
        return list(dict.fromkeys([*([self._taken_over] if self._taken_over else []), *self._turns]))

    def resume(self, resumption: Resumption) -> list[tuple[CapturedCall, InitialState]]:
        """Continue the turn of a broken-off answer. Returns its calls."""
        self._first_id = self._turn_id = self._taken_over = resumption.turn_id
        self.steps, self.visible = list(resumption.steps), list(resumption.visible)
        self._resumed = list(resumption.visible)
        self.current_visible = list(resumption.visible)
        calls: list[tuple[CapturedCall, InitialState]] = []
        for call, runs_twice in resumption.calls:
            initial_state = self._initial_state(call) if runs_twice else InitialState(begins=True, repeats=call.call_id)
            self._initial_states[call.call_id] = initial_state
            calls.append((call, initial_state))
        return calls

    def turn_id(self, index: int) -> str:
        """The id for the turn of a new candidate. The first candidates of all rounds share one."""
        if index:
            return new_turn_id()
        self._first_id = self._first_id or new_turn_id()
        return self._first_id

    def progress(self, unsaved: Sequence[CapturedCall] = ()) -> Save:
        """Record that all rounds so far are complete, for a retry to continue after them. `unsaved`: their unstored
        calls."""
        turn = self._turn(self._turn_id, self.visible, self.steps)
        numbers = {slot.call_id: number for number, step in enumerate(self.steps) for slot in step.slots}
        calls = [self._call(self._turn_id, call, numbers[call.call_id]) for call in unsaved]
        return Save(turn, calls, [], last=False)

    def begin_answer(self, candidates: Sequence[Candidate]) -> None:
        """Begin the answer of the current round. The calls that `candidates` hold are already stored."""
        self._saved = {one.index: (len(one.captured), False) for one in candidates}
        self._steps.clear()

    def continue_turn(self, candidates: Sequence[Candidate]) -> None:
        """Close this round: the proxy answers its step, and the client's turn goes on."""
        for candidate in candidates:
            if candidate.answered_by_proxy:
                self._past.append(candidate)
                self._turn_id = candidate.turn_id
                self.steps += [self._step(candidate)] if candidate.captured else []
                self.visible += candidate.visible_parts
                self.current_visible += candidate.current_visible_parts
            elif candidate.ended and candidate.turn_id in self._turns:
                self.complete[candidate.turn_id] = candidate.index

    def has_news(self, candidates: Sequence[Candidate]) -> bool:
        """Whether there may be something to store. Most events bring nothing new."""
        for one in candidates:
            if self._saved.get(one.index, (0, False)) != (len(one.captured), one.ended):
                return True
        return False

    def fresh(self, candidates: Sequence[Candidate]) -> list[tuple[CapturedCall, InitialState]]:
        """The calls that are not stored yet, each with its initial state."""
        calls = [call for one in candidates for call in one.captured[self._saved.get(one.index, (0, False))[0] :]]
        return [(call, self._initial_state_of(call)) for call in calls]

    def _initial_state_of(self, call: CapturedCall) -> InitialState:
        initial_state = self._initial_states.get(call.call_id)
        if initial_state is None:
            initial_state = self._initial_states[call.call_id] = self._initial_state(call)
        return initial_state

    def saves(self, candidates: Sequence[Candidate], *, complete: bool, cut: bool) -> Iterator[Save | Note]:
        """What to store of these candidates of the current round before their bytes go out: new calls, and turns that
        have ended, with or without calls. `complete`: the whole answer ended cleanly. `cut`: it contains an error, so
        only a finishReason ends a turn; some clients read the finishReason and not the error."""
        for state in candidates:
            ends = (state.ended or (complete and not cut)) and not (state.answered_by_proxy or state.paused)
            stored, known = self._saved.get(state.index, (0, False))
            fresh = state.captured[stored:]
            if not fresh and (not ends or (known and not complete)):
                continue
            self._saved[state.index] = len(state.captured), ends
            if self.steps or state.is_grafted or self._taken_over:
                before = self._turns.get(state.turn_id)
                visible, steps = self._result(state)
                turn = self._turn(state.turn_id, visible, steps)
                if ends:
                    self._ended.add(state.turn_id)
                if ends and complete:
                    self.complete[state.turn_id] = state.index
                if fresh or not known or turn is not before:
                    calls = [self._call(state.turn_id, call, len(self.steps)) for call in fresh]
                    # visible parts find only turns that have ended
                    yield Save(turn, calls, keys_of(self.exchange, visible) if ends else [], ends)
            elif self.exchange.notes:
                yield from self._notes(state)

    def forget_ended(self) -> None:
        """Forget the ended turns: the store failed to save one, so nothing can find them."""
        self._ended.clear()

    def beginnings(self, candidates: Sequence[Candidate]) -> Iterator[Note | Save]:
        """What to store if the client may have kept any part of the answer from the start, over all rounds.
        `candidates`: the current round's. Signatures are not noted: a retry sends them again, and there they prove the
        whole turn.

        All visible parts together, after complete steps, are stored as a turn with these steps. A retry that produces
        the same words shares it."""
        if not self.exchange.notes:
            return
        own = {visible_digest(self._turns[turn_id].visible) for turn_id in self._ended}
        before = [*self._resumed, *(piece for one in self._past for piece in one.visible_pieces)]
        present: list[Candidate | None] = [one for one in candidates if one not in self._past]
        for one in present or [None]:
            pieces = [*before, *(one.visible_pieces if one is not None else ())]
            # no other turn has the words of a placeholder
            pieces = [*itertools.takewhile(lambda piece: not self._is_placeholder(piece), pieces)]
            if not pieces:
                continue
            *shorter, whole = prefix_digests_of(pieces)
            for digest in shorter:
                if digest not in own:
                    yield note_of(self.exchange, digest)
            if whole in own:
                continue
            if one is not None and self.steps and not one.captured and one.visible_parts:
                visible, steps = self._result(one)
                yield Save(self._turn(one.turn_id, visible, steps), [], keys_of(self.exchange, visible), last=False)
            else:
                unsigned = [{key: value for key, value in one.items() if key != "thoughtSignature"} for one in pieces]
                yield note_of(self.exchange, whole, unsigned)

    def _is_placeholder(self, part: Document) -> bool:
        return bool(self._first_id) and self._first_id in str(part.get("text", ""))

    def _notes(self, candidate: Candidate) -> Iterator[Note]:
        visible = [*self.visible, *candidate.visible_parts]
        digest = visible_digest(visible)
        if self._noted.get(candidate.index) != digest:
            self._noted[candidate.index] = digest
            yield note_of(self.exchange, digest, visible)

    def _result(self, candidate: Candidate) -> tuple[list[Document], list[Step]]:
        """The visible parts and the steps of all rounds, with this candidate's as the current round's."""
        return [*self.visible, *candidate.visible_parts], [*self.steps, self._step(candidate)]

    def _step(self, candidate: Candidate) -> Step:
        """The candidate's step. Returns the same object while nothing changes."""
        parts, slots = candidate.true_parts, candidate.slots
        if (made := self._steps.get(candidate)) is None or (parts, slots) != made[:2]:
            made = self._steps[candidate] = parts, [*slots], step_of(candidate)
        return made[2]

    def _turn(self, turn_id: str, visible: list[Document], steps: list[Step]) -> Turn:
        """The turn to store. Returns the same object while nothing changes."""
        rounds, before, progress = self.joined.usage.rounds, self._turns.get(turn_id), None
        usage = [one for one in rounds if one]
        if self.steps:
            done = len(rounds) - (len(steps) > len(self.steps))
            progress = Progress(steps=len(self.steps), visible=len(self.visible), rounds=done, meta=self.joined.meta)
        if before is not None and (before.visible, before.steps, before.usage) == (visible, steps, usage):
            turn = before
        else:
            now = self.clock() if before is None else before.created_at
            turn = turn_of(self.exchange, turn_id, visible, steps, now=now, usage=usage)
        if turn.progress != progress:
            turn = turn.model_copy(update={"progress": progress})
        self._turns[turn_id] = turn
        self.exchange.summary.turn_id = self.exchange.summary.turn_id or turn_id
        return turn

    def _call(self, turn_id: str, call: CapturedCall, number: int) -> Call:
        return call_of(self.exchange, turn_id, call, self._initial_state_of(call), now=self.clock(), number=number)
