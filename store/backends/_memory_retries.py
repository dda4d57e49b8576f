"""Answers that broke off, in memory, for requests that are sent again. A mixin of `MemoryStore`."""

from typing import Any

from store.backends import _rules as rules
from store.backends import _states as states
from store.backends._memory_base import Ledger, StoredTurn
from store.backends._memory_calls import MemoryCalls
from store.models import Call, Document, Turn


class MemoryRetries(MemoryCalls):
    async def mark_broken_off(self, session: str, turn_id: str, *, proxy_id: str | None = None) -> bool:
        self._check_open()
        entry = self._ledger(session).turns.get(turn_id)
        if entry is None or (turn := rules.broken_off(entry.turn, proxy_id, steady=self._clocks.steady())) is None:
            return False
        self._put_turn(entry, turn)
        return True

    async def mark_delivered(self, session: str, turn_id: str) -> bool:
        self._check_open()
        ledger = self._ledger(session)
        entry = ledger.turns.get(turn_id)
        if entry is None or (turn := rules.delivered(entry.turn)) is None:
            return False
        self._put_turn(entry, turn)
        note_request(ledger, entry)
        return True

    async def take_over(
        self, session: str, request_key: bytes, *, window: float, proxy_id: str
    ) -> tuple[Turn, list[Call]] | None:
        self._check_open()
        now = self._clocks.now()
        proxies = self._proxies(now.steady)
        entries = self._ledger(session).by_request.get(request_key, {}) if request_key else {}
        for entry in reversed(entries.values()):
            if rules.can_be_taken_over(
                entry.turn, proxies=proxies, last_alive=self._last_alive, window=window, steady=now.steady
            ):
                turn = self._put_turn(entry, rules.taken_over(entry.turn, proxy_id))
                return turn, [self._taken_over(call_id, proxies | {proxy_id}, proxy_id) for call_id in entry.calls]
        return None

    async def mark_handed_over(self, session: str, response_id: str) -> None:
        self._check_open()
        self._unsent.pop((session, response_id), None)

    async def mark_not_handed_over(self, session: str, response_id: str) -> None:
        self._check_open()
        stored = self._unsent.get((session, response_id))
        if stored is not None and stored.broke_off is None:
            stored.broke_off = self._clocks.steady()

    async def take_answer(
        self, session: str, key: bytes, *, window: float, proxy_id: str
    ) -> tuple[str, Document | None] | None:
        self._check_open()
        steady = self._clocks.steady()
        times: dict[str, Any] = {"proxies": self._proxies(steady), "last_alive": self._last_alive, "window": window}
        for (owner, response_id), stored in reversed(self._unsent.items()):
            undelivered = stored.undelivered
            if (owner, undelivered.key) != (session, key):
                continue
            if rules.can_be_retaken(stored.broke_off, undelivered.proxy_id, **times, steady=steady):
                stored.undelivered, stored.broke_off = undelivered._replace(proxy_id=proxy_id), None
                return response_id, rules.plain_json(undelivered.answer)
        return None

    def _taken_over(self, call_id: str, proxies: set[str], proxy_id: str) -> Call:
        call = self._calls[call_id].call
        now = self._clocks.now()
        after = states.lost(call, proxies=proxies, now=now) or states.moved(call, proxy_id=proxy_id, now=now)
        return self._put_call(after) if after else call

    def _put_turn(self, entry: StoredTurn, turn: Turn) -> Turn:
        data = turn.model_dump_json()
        entry.turn = turn
        self._changed(self._ledgers[turn.session], [turn.turn_id])
        self._record((turn.session, "turn.updated", data))
        return turn


def note_request(ledger: Ledger, entry: StoredTurn) -> None:
    """Index the turn by the key of its request, until it is delivered."""
    turn = entry.turn
    if not turn.request_key:
        return
    if not turn.delivered:
        ledger.by_request.setdefault(turn.request_key, {})[turn.turn_id] = entry
    else:
        forget_request(ledger, entry)


def forget_request(ledger: Ledger, entry: StoredTurn) -> None:
    entries = ledger.by_request.get(entry.turn.request_key, {})
    entries.pop(entry.turn.turn_id, None)
    if not entries:
        ledger.by_request.pop(entry.turn.request_key, None)
