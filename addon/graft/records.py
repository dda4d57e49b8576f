"""Builds the records of an answer for the store: its turn, its calls, and the keys that find it."""

from collections.abc import Sequence
from typing import Protocol

from addon.core.answers.answer import Candidate, CapturedCall
from addon.core.framing.documents import Document
from addon.core.history.keys import marks_of
from addon.core.history.turns import WINDOWS, HistoryTurn, chain_key, windows
from addon.core.history.visible import visible_digest
from addon.core.live_frames import LiveStep
from addon.graft.exchange import Exchange
from addon.graft.owners import InitialState
from addon.graft.session_config import SessionConfig
from addon.surfaces.base import Target
from store.models import Call, Slot, Status, Step, Turn

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
    it, and of the model's marks."""
    return [*_word_keys(exchange, visible_digest(visible)), *_mark_keys(exchange, visible)]


def plain_of(exchange: Exchange, digest: bytes, marked: Sequence[Document] = ()) -> tuple[list[bytes], bytes]:
    """The keys of a turn without hidden parts, from the digest of its words, and the chain that belongs to the first
    key. `marked`: the parts that may hold marks of the model."""
    keys = _word_keys(exchange, digest)
    if marked:
        keys += _mark_keys(exchange, marked)
    return keys, exchange.keys.mask_chain(keys[0], _chain(exchange, digest))


def _word_keys(exchange: Exchange, digest: bytes) -> list[bytes]:
    keys, before = exchange.keys, [turn.digest for turn in _turns(exchange)[-2 * WINDOWS :]]
    return keys.words(keys.own(digest), _chain(exchange, digest), windows(before, digest))


def _chain(exchange: Exchange, digest: bytes) -> bytes:
    turns = _turns(exchange)
    return chain_key(turns[-1].chain if turns else b"", "model", digest)


def _mark_keys(exchange: Exchange, visible: Sequence[Document]) -> list[bytes]:
    return [exchange.keys.mark(*mark) for mark in marks_of([{"parts": list(visible)}])]


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
    delivered: bool,
    now: float,
    usage: Sequence[Document] = (),
) -> Turn:
    """`usage`: the usageMetadata of each request of the turn."""
    delivery = exchange.config.delivery
    shows_placeholder = any(turn_id in part["text"] for part in visible if isinstance(part.get("text"), str))
    keys, turns, digest = exchange.keys, _turns(exchange), visible_digest(visible)
    pair = windows([turn.digest for turn in turns[-1:]], digest)
    return Turn(
        turn_id=turn_id,
        session=exchange.config.session,
        visible=list(visible),
        steps=list(steps),
        delivery="passthrough" if delivery == "passthrough" else "loop" if len(steps) > 1 else "placeholder",
        user_key=keys.user(turns[-1].digest) if shows_placeholder and turns else b"",
        chain=keys.mask_chain(turn_id.encode(), _chain(exchange, digest)),
        pair=keys.window(keys.own(digest), pair[0]) if pair else b"",
        delivered=delivered,
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
    status = _status(initial_state)
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


def _status(initial_state: InitialState) -> Status:
    if initial_state.error is not None:
        return Status.FAILED
    return Status.PENDING if initial_state.loop_id is None else Status.RUNNING


def _turns(exchange: Exchange) -> Sequence[HistoryTurn]:
    """The client's history up to the answer."""
    request = exchange.request
    request.history.identify(request.body)
    return request.history.turns
