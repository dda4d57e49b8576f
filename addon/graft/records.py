"""The records that an answer leaves in the store: its turn, its calls, and the keys by which it is found again."""

import secrets
from collections.abc import Sequence
from typing import Protocol

from addon.core.answer import MAX_DEPTH, Candidate, Captured
from addon.core.documents import Document, encode
from addon.core.live import Called
from addon.core.request import parse
from addon.core.turns import chain_key, pair_key, visible_digest
from addon.graft.exchange import Exchange
from addon.graft.scope import Scope
from addon.surfaces.base import Target
from store.models import Call, Slot, Status, Step, Turn


class Source(Protocol):
    """Where calls come from."""

    @property
    def scope(self) -> Scope: ...
    @property
    def model(self) -> str: ...
    @property
    def target(self) -> Target: ...


def new_turn_id() -> str:
    return f"turn_{secrets.token_hex(8)}"


def new_call_id() -> str:
    return f"call_{secrets.token_hex(12)}"


def keys_of(exchange: Exchange, shown: Sequence[Document]) -> list[bytes]:
    """The keys of a turn of which the client was shown these parts."""
    chain, before = _history_keys(exchange)
    digest = visible_digest(shown)
    keys = [chain_key(chain, "model", digest), pair_key(before, digest)]
    for contents in exchange.wire.stand_ins(shown):
        request = parse(encode({"contents": contents}))
        request.history.identify(request.body)
        keys.append(request.history.turns[-1].chain)
    return keys


def step_of(candidate: Candidate) -> Step:
    """What the model said, and whose its calls are."""
    return Step(
        content={"role": "model", "parts": list(candidate.said)},
        slots=[Slot(name=slot.name, call_id=slot.call_id) for slot in candidate.slots],
    )


def turn_of(
    exchange: Exchange,
    turn_id: str,
    shown: Sequence[Document],
    steps: Sequence[Step],
    *,
    delivered: bool,
    now: float,
    usage: Sequence[Document] = (),
) -> Turn:
    """`usage`: the usageMetadata of each request that it took."""
    delivery = exchange.scope.delivery
    return Turn(
        turn_id=turn_id,
        session=exchange.scope.session,
        visible=list(shown),
        steps=list(steps),
        delivery="passthrough" if delivery == "passthrough" else "loop" if len(steps) > 1 else "placeholder",
        user_key=_history_keys(exchange)[1],
        delivered=delivered,
        model=exchange.model,
        surface=exchange.target.surface,
        usage=list(usage),
        created_at=now,
    )


def live_turn_of(source: Source, turn_id: str, called: Called, *, now: float) -> Turn:
    """The entry of a toolCall of the Live API: its history is the service's, so it is never looked up."""
    slots = [Slot(name=slot.name, call_id=slot.call_id) for slot in called.slots]
    return Turn(
        turn_id=turn_id,
        session=source.scope.session,
        visible=[part for part, slot in zip(called.parts, slots, strict=True) if slot.call_id is None],
        steps=[Step(content={"role": "model", "parts": list(called.parts)}, slots=slots)],
        delivery="passthrough" if source.scope.delivery == "passthrough" else "loop",
        user_key=turn_id.encode(),  # no user turn's: a bare placeholder finds none of these
        delivered=True,
        model=source.model,
        surface=source.target.surface,
        created_at=now,
    )


def call_of(source: Source, turn_id: str, call: Captured, *, now: float, number: int = 0) -> Call:
    """`number` is the round in which the call came."""
    return Call(
        call_id=call.call_id,
        session=source.scope.session,
        name=call.name,
        args=call.args,
        status=Status.PENDING if (fault := fault_of(call)) is None else Status.FAILED,
        error=fault,
        turn_id=turn_id,
        gemini_id=call.gemini_id,
        model=source.model,
        surface=source.target.surface,
        round=number,
        index=call.place,
        created_at=now,
        updated_at=now,
    )


def fault_of(call: Captured) -> str | None:
    """Why a call fails at once; None where it can be answered."""
    if not call.known:
        return f"unknown tool: {call.name}"
    return f"arguments nested more than {MAX_DEPTH} levels deep" if call.too_deep else None


def _history_keys(exchange: Exchange) -> tuple[bytes, bytes]:
    """The chain up to the answer, and the digest of the turn before it. Worked out once for a history."""
    request = exchange.request
    request.history.identify(request.body)
    turns = request.history.turns
    return (turns[-1].chain, turns[-1].digest) if turns else (b"", b"")
