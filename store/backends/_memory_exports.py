"""Giving and taking all records, in memory. A mixin of `MemoryStore`."""

import time
from collections.abc import Callable, Iterable, Iterator

from store.backends import _rules as rules
from store.backends._memory_ledger import MemoryLedger
from store.backends._memory_responses import MemoryResponses
from store.exports import HOUR, Exported, Kind, Moved, MovedNote, MovedResponse, MovedTurn
from store.models import Session


class MemoryExports(MemoryLedger, MemoryResponses):
    def __init__(self, *, ttl: float = 7 * 24 * 3600, clock: Callable[[], float] = time.time) -> None:
        super().__init__(ttl=ttl, clock=clock)
        self._move_note = ""

    async def export(self, kind: Kind, *, since: float, after: str | None = None) -> Exported:
        self._check_open()
        exports: dict[Kind, Callable[[float], Iterable[Moved]]] = {
            "sessions": lambda since: self._sessions.values(),
            "turns": self._moved_turns,
            "cached tools": lambda since: (
                cached
                for ledger in self._ledgers.values()
                for cached in ledger.cached.values()
                if cached.created_at >= since
            ),
            "notes": self._moved_notes,
            "responses": self._moved_responses,
        }
        return Exported(list(exports[kind](since)), [], None)

    def _moved_turns(self, since: float) -> Iterator[MovedTurn]:
        for ledger in self._ledgers.values():
            for entry in ledger.turns.values():
                if entry.turn.created_at >= since:
                    calls = [self._calls[call_id].call for call_id in entry.calls]
                    yield MovedTurn(entry.turn, calls, list(entry.keys))

    def _moved_notes(self, since: float) -> Iterator[MovedNote]:
        for name, ledger in self._ledgers.items():
            for key, (noted, chain) in ledger.plain.items():
                if (hour := noted // HOUR * HOUR) + HOUR > since - self.ttl:
                    yield MovedNote(name, key, hour, chain)

    def _moved_responses(self, since: float) -> Iterator[MovedResponse]:
        for name, responses in self._responses.items():
            for response_id, stored in responses.by_id.items():
                if (used_at := stored.thread.used_at) >= since:
                    conversation = stored.response.conversation
                    head = None if conversation is None else responses.heads.get(conversation)
                    unsent = self._unsent.get((name, response_id))
                    yield MovedResponse(stored.response, head, used_at, unsent.undelivered if unsent else None)

    async def restore_session(self, session: Session) -> None:
        self._check_open()
        stored = Session.model_validate_json(session.model_dump_json())
        self._sessions[session.name] = stored
        self._last_event = max(self._last_event, session.version)  # versions are numbers of events
        self._record((session.name, "session.updated", stored.masked().model_dump_json()), changed=[session.name])

    async def restore_head(self, session: str, name: str, response_id: str | None) -> None:
        heads = self._responses_of(session).heads
        if response_id is None:
            heads.pop(name, None)
            return
        if response_id not in self._responses_of(session).by_id:
            raise rules.unknown_response(session, response_id)
        heads[name] = response_id

    async def begin_move(self, secret: bytes) -> None:
        self._check_open()
        self.secret = secret

    async def note_move(self, note: str) -> None:
        self._check_open()
        self._move_note = note

    async def move_note(self) -> str:
        return self._move_note

    async def users(self) -> set[str]:
        return set()

    def steady(self) -> float:
        return self._clocks.steady()
