"""Expiry of records in Redis. A mixin of `RedisStore`."""

import logging
from collections.abc import Sequence

from store.backends import _redis_values as values
from store.backends import _rules as rules
from store.backends._redis_calls import lease_of
from store.backends._redis_client import Command
from store.backends._redis_ledger import StoredTurn, note, noted_at, read_turn
from store.backends._redis_responses import RedisResponses
from store.backends._redis_transaction import NEAR, Stale, Transaction, transact
from store.base import BATCH, StoreUnavailable
from store.models import Call

logger = logging.getLogger(__name__)

_SLACK = 3600.0
"""Seconds by which notes are kept longer: all of them are read to find the old ones."""

_LATER = 3600.0
"""Seconds after which a session is tried again whose records could not be deleted."""

_AGES = ("dated", "cached_at", "thread", "unsent_at")
"""Zsets by age."""


class RedisExpiry(RedisResponses):
    async def expire(self) -> int:
        self.check_writable()
        await self._greet()
        self._clocks.note = self._clocks.checked()
        if self._clocks.note.paused_until:
            return 0
        now = self.times().wall
        await self._forget_proxies(now - self.ttl)
        (names,) = await self.link.run(("ZRANGEBYSCORE", self.keys.due, "-inf", f"({now!r}", "LIMIT", 0, BATCH))
        deleted = await self._expire_notices(now - self.ttl)
        left = BATCH
        for name in names:
            try:
                gone, turns = await self._expire_in(name.decode(), now, left)
            except (StoreUnavailable, LookupError, TypeError, ValueError) as error:
                # Raises if the server does not answer: then it is not about this session.
                await self.link.run(("ZADD", self.keys.due, "XX", repr(now + _LATER), name))
                logger.warning("old records of the session %r could not be deleted: %s", name, error)
                continue
            deleted += gone
            left -= turns
            if left <= 0:
                break
        return deleted

    async def _forget_proxies(self, horizon: float) -> None:
        (found,) = await self.link.run(("HGETALL", self.keys.proxies))
        old = [name for name, lease in found.items() if max(lease_of(lease)) < horizon]
        if old:
            await self.link.run(("HDEL", self.keys.proxies, *old))

    async def _expire_notices(self, horizon: float) -> int:
        """Notices are not records: they are not counted."""
        (entries,) = await self.link.run(("XRANGE", self.keys.notices, "-", "+", "COUNT", 8 * BATCH))
        old = [entry_id for entry_id, fields in entries if _made_at(entry_id, fields) < horizon]
        if old:
            number = int(old[-1].partition(b"-")[0])
            await self.link.run(
                ("HSET", self.keys.meta, "lost", number), ("XTRIM", self.keys.notices, "MINID", number + 1)
            )
        return 0

    async def _expire_in(self, session: str, now: float, most: int) -> tuple[int, int]:
        """Delete a batch of the session's old records. Returns their number, and the number of turns among them."""
        notes = await self._old_notes(session, now - 2 * self.ttl - _SLACK)

        def compute(tx: Transaction) -> tuple[int, int]:
            horizon = now - self.ttl
            of, old = tx.keys.of, f"({horizon!r}"
            ranges: list[Command] = [
                ("ZRANGEBYSCORE", of(session, "dated"), "-inf", old, "LIMIT", 0, most),
                ("ZRANGEBYSCORE", of(session, "turns"), "-inf", (horizon - NEAR) * 1e6, "LIMIT", 0, most),
                ("ZRANGEBYSCORE", of(session, "cached_at"), "-inf", old, "LIMIT", 0, BATCH),
                ("ZRANGEBYSCORE", of(session, "thread"), "-inf", old, "LIMIT", 0, BATCH // 8),
            ]
            answers = f"({max(horizon, now - rules.ANSWERS_KEPT)!r}"
            ranges.append(("ZRANGEBYSCORE", of(session, "unsent_at"), "-inf", answers, "LIMIT", 0, BATCH))
            events: Command = ("XRANGE", tx.keys.events(session), "-", "+", "COUNT", 2 * BATCH)
            tx.prefetch(*ranges, events)
            dated, placed, cached, threads, unsent = tx.need(*ranges)
            turns = self._old_turns(tx, list(dict.fromkeys([*dated, *placed])), horizon)[:most]
            for name, found in (("cached_at", cached), ("thread", threads)):
                if any(age is None or age >= horizon for age in tx.get_scores(of(session, name), *found)):
                    raise Stale
            if any(value is None or _noted_at(value) >= horizon - self.ttl for value in tx.get("plain", *notes)):
                notes.clear()
            deleted = self._expire_turns(tx, turns) + self._expire_responses(tx, threads)
            for name in cached:
                tx.delete("cached", name)
                tx.do("ZREM", "cached_at", name)
            for response_id in unsent:
                self._forget_answer(tx, response_id.decode())
            if notes:
                tx.do("HDEL", "plain", *notes)
            old_events = [one for one, fields in tx.need(events)[0] if _made_at(one, fields) < horizon]
            if old_events:
                number = int(old_events[-1].partition(b"-")[0])
                tx.do_shared("XTRIM", tx.keys.events(session), "MINID", number + 1)
                tx.do("HSET", "ledger", "lost", number)
            if turns:
                tx.deleted = tx.unknown_changes = True
            return deleted + len(cached) + len(notes) + len(old_events), len(turns)

        outcome = await transact(self, session, compute)
        await self._note_due(session)
        return outcome

    def _old_turns(self, tx: Transaction, ids: list[bytes], horizon: float) -> list[bytes]:
        """Those of the turns that are older, or cannot be read."""
        turns = [read_turn(self, value) if value is not None else None for value in tx.get("turn", *ids)]
        return [
            one
            for one, turn in zip(ids, turns, strict=True)
            if turn is None or turn.record is None or turn.record.created_at < horizon
        ]

    def _expire_turns(self, tx: Transaction, ids: Sequence[bytes]) -> int:
        found = dict(zip(ids, tx.get("turn", *ids), strict=True))
        turns = {turn_id: read_turn(self, value) for turn_id, value in found.items() if value is not None}
        call_ids = [call_id for turn in turns.values() for call_id in turn.calls]
        calls = tx.get("call", *call_ids)
        for turn_id, turn in turns.items():
            _forget_keys(tx, turn_id, turn)
        for call_id, value in zip(call_ids, calls, strict=True):
            if (call := self.record_of(Call, value)) is not None:
                tx.index("ready", "calls", call_id, values.prefix(call.name.encode()), remove=True)
            tx.do_shared("UNLINK", tx.keys.of_call(call_id.decode()))
        for name in ("turns", "dated") if ids else ():
            tx.do("ZREM", name, *ids)
        if ids:
            tx.delete("turn", *ids)
        if call_ids:
            for name in ("calls", "open", "lease"):
                tx.do("ZREM", name, *call_ids)
            tx.do("HDEL", "waiting", *call_ids)
            tx.do("HDEL", "parts", *call_ids)
            tx.delete("call", *call_ids)
        return len(turns) + sum(value is not None for value in calls)

    async def _old_notes(self, session: str, horizon: float) -> list[bytes]:
        """Keys of a batch of notes from before this time."""
        of = self.keys.of
        (oldest,) = await self.link.run(("HGET", of(session, "ledger"), "oldest"))
        if oldest is None or float(oldest) >= horizon:
            return []
        cursor, first, old = b"0", float("inf"), list[bytes]()
        while True:
            ((cursor, found),) = await self.link.run(("HSCAN", of(session, "plain"), cursor, "COUNT", BATCH))
            for key, value in found.items():
                first = min(first, noted := _noted_at(value))
                if noted < horizon:
                    old.append(key)
            if len(old) >= BATCH:
                return list(dict.fromkeys(old))[: 2 * BATCH]
            if not int(cursor):
                break
        if not old:
            fields: tuple[object, ...] = ("HDEL", of(session, "ledger"), "oldest")
            if first != float("inf"):
                fields = ("HSET", of(session, "ledger"), "oldest", repr(first))
            await self.link.run(fields)
        return old

    async def _note_due(self, session: str) -> None:
        """Note when something of the session expires next, unless it has been written meanwhile."""
        of = self.keys.of

        def compute(tx: Transaction) -> None:
            ages: list[Command] = [("ZRANGE", of(session, name), 0, 0, "WITHSCORES") for name in _AGES]
            first: Command = ("XRANGE", tx.keys.events(session), "-", "+", "COUNT", 1)
            notes: Command = ("HGET", of(session, "ledger"), "oldest")
            turn: Command = ("ZRANGE", of(session, "turns"), 0, 0, "WITHSCORES")
            tx.get_scores(tx.keys.due, session.encode(), before=[*ages, first, notes, turn])
            lives = (self.ttl, self.ttl, self.ttl, min(self.ttl, rules.ANSWERS_KEPT))
            times = [float(found[1]) + life for found, life in zip(tx.need(*ages), lives, strict=True) if found]
            times += [float(place) / 1e6 + NEAR + self.ttl for place in tx.need(turn)[0][1:]]
            times += (_made_at(*entry) + self.ttl for entry in tx.need(first)[0])
            if (oldest := tx.need(notes)[0]) is not None:
                times.append(float(oldest) + 2 * self.ttl + _SLACK)
            if times:
                tx.do_shared("ZADD", tx.keys.due, repr(min(times)), session)
            else:
                tx.do_shared("ZREM", tx.keys.due, session)

        await transact(self, session, compute)


def _made_at(entry_id: bytes, fields: dict[bytes, bytes]) -> float:
    """When an event or a notice was written. Of a damaged one its number tells, which is a time."""
    try:
        return float(fields[b"c"])
    except (LookupError, ValueError):
        return int(entry_id.partition(b"-")[0]) / 1e6


def _noted_at(value: bytes) -> float:
    """When a note was written; a damaged one is old."""
    try:
        return noted_at(value)
    except ValueError:
        return 0.0


def _forget_keys(tx: Transaction, turn_id: bytes, turn: StoredTurn) -> None:
    """Remove a turn from the indexes. Its keys are known for as long again."""
    entries = (values.prefix(key, flag) for key in turn.keys for flag in (b"0", b"1"))
    tx.index("key", "turns", turn_id, *entries, remove=True)
    for key in turn.keys:
        tx.do("HSET", "plain", key, note(tx.now.wall, b""))
        tx.do("HSETNX", "ledger", "oldest", repr(tx.now.wall))
    if (record := turn.record) is not None:
        for name, key in (("asked", record.user_key), ("request", record.request_key)):
            if key:
                tx.index(name, "turns", turn_id, values.prefix(key), remove=True)
