"""The ledger in memory: turns and their keys. A mixin of `MemoryStore`."""

import itertools
from collections.abc import Collection, Sequence
from operator import attrgetter

from store.backends import _rules as rules
from store.backends._memory_base import Ledger, MemoryBase, StoredCall, StoredTurn
from store.backends._memory_retries import note_request
from store.base import BATCH, MATCHES
from store.models import Call, LedgerChanges, LedgerMatches, Page, Turn


class MemoryLedger(MemoryBase):
    async def save_turn(self, turn: Turn, calls: Sequence[Call] = (), keys: Sequence[bytes] = ()) -> None:
        self._check_open()
        rules.check_calls(turn, calls)
        ledger = self._ledger(turn.session)
        entry = ledger.turns.get(turn.turn_id)
        turn = rules.replaced(entry.turn if entry else None, turn)
        data = turn.model_dump_json()
        fresh = {call.call_id: call.model_dump_json() for call in calls if call.call_id not in self._calls}
        stored = Turn.model_validate_json(data)

        self._ledgers[turn.session] = ledger
        if entry is None:
            entry = ledger.turns[turn.turn_id] = StoredTurn(next(self._places), stored)
            events = [(turn.session, "turn.created", data)]
        else:
            entry.turn = stored
            events = [(turn.session, "turn.updated", data)]
        ledger.add_keys(entry, keys)
        note_request(ledger, entry)
        new_calls = []
        parts = {call.call_id: call.parts for call in calls if call.parts}
        for call_id, call_data in fresh.items():
            call = Call.model_validate_json(call_data).model_copy(update={"parts": parts.get(call_id, [])})
            new_calls.append(call)
            self._calls[call_id] = StoredCall(next(self._places), call)
            entry.calls.append(call_id)
            if not call.status.final:
                ledger.open[call_id] = None
            events.append((turn.session, "call.created", call_data))
        self._changed(ledger, [turn.turn_id], [*keys, turn.user_key])
        self._record(*events, calls=new_calls)

    async def save_plain(self, session: str, keys: Sequence[bytes], chain: bytes = b"") -> None:
        self._check_open()
        ledger, now = self._ledgers.setdefault(session, Ledger()), self.clock()
        for key, own in itertools.zip_longest(keys, [chain], fillvalue=b""):
            known = ledger.plain.get(key)
            ledger.plain[key] = now, own if known is None or known[1] == own else b""
        if ledger.turns:
            self._changed(ledger, (), keys)

    async def look_up(
        self,
        session: str,
        *,
        turn_ids: Collection[str] = (),
        keys: Collection[bytes] = (),
        known: Collection[bytes] = (),
        matches: int = MATCHES,
    ) -> LedgerMatches:
        self._check_open()
        ledger = self._ledger(session)
        found = LedgerMatches(
            plain={key: ledger.plain[key][1] for key in keys if key in ledger.plain},
            known={key for key in known if key in ledger.by_key},
        )
        entries_found = [ledger.turns[turn_id] for turn_id in turn_ids if turn_id in ledger.turns]
        for key in keys:
            if entries := ledger.by_key.get(key):
                best = sorted(entries.values(), key=lambda e: (e.turn.delivered, e.place), reverse=True)[:matches]
                found.by_key[key] = [entry.turn.turn_id for entry in best]
                entries_found += best
                if len(entries) > matches:
                    found.crowded.add(key)
        for entry in entries_found:
            found.turns[entry.turn.turn_id] = entry.turn
            for call_id in entry.calls:
                found.calls[call_id] = self._calls[call_id].call
        return found

    async def bind(
        self, session: str, user_key: bytes, keys: Sequence[bytes], *, exclude: Collection[str] = ()
    ) -> str | None:
        self._check_open()
        if not user_key:
            return None
        ledger = self._ledger(session)
        unbound = [
            entry
            for turn_id, entry in ledger.turns.items()
            if entry.turn.user_key == user_key and not entry.turn.bound and turn_id not in exclude
        ]
        if not unbound:
            return None
        entry = max(unbound, key=attrgetter("place"))
        entry.turn = entry.turn.model_copy(update={"bound": True})
        ledger.add_keys(entry, keys)
        self._changed(ledger, [entry.turn.turn_id], keys)
        self._record((session, "turn.updated", entry.turn.model_dump_json()))
        return entry.turn.turn_id

    def revision(self, session: str) -> int | None:
        self._check_open()
        return self._ledger(session).revision

    def changes(self, session: str, since: int) -> LedgerChanges | None:
        ledger = self._ledger(session)
        return LedgerChanges() if since == ledger.revision else ledger.changes.since(since, ledger.revision)

    async def turns(self, session: str, *, limit: int = 100, cursor: str | None = None) -> Page[Turn]:
        self._check_open()
        rules.check_limit(limit)
        after = rules.place("turn", cursor)
        rows = ((e.place, e.turn) for e in self._ledger(session).turns.values() if e.place > after)
        return rules.page_of(list(itertools.islice(rows, limit + 1)), "turn", limit)

    def _expire_plain(self, ledger: Ledger, horizon: float) -> int:
        """`horizon` is the one of turns. Returns how many notes went."""
        horizon -= self.ttl
        old = (key for key, (noted, _) in ledger.plain.items() if noted < horizon)
        keys = list(itertools.islice(old, 2 * BATCH))
        for key in keys:
            del ledger.plain[key]
        return len(keys)
