"""Expiry of records in Redis. A mixin of `RedisStore`."""

import functools
import logging

from store.backends import _redis_values as values
from store.backends import _rules as rules
from store.backends._redis_calls import lease_of
from store.backends._redis_client import Command
from store.backends._redis_ledger import put_note, read_turn
from store.backends._redis_responses import RedisResponses
from store.backends._redis_transaction import NEAR, Stale, Transaction, transact
from store.base import BATCH, StoreUnavailable
from store.models import Call

logger = logging.getLogger(__name__)

_LATER = 3600.0
"""Seconds after which a session is tried again whose records could not be deleted."""

_AT_ONCE = {"thread": BATCH // 8}
"""A thread is deleted as a whole."""


class RedisExpiry(RedisResponses):
    async def expire(self) -> int:
        self.check_writable()
        await self._greet()
        self._clocks.note = self._clocks.checked()
        if self._clocks.note.paused_until:
            return 0
        now = self.times().wall
        proxies, notices, names = await self.link.run(
            ("HGETALL", self.keys.proxies),
            ("XRANGE", self.keys.notices, "-", "+", "COUNT", 8 * BATCH),
            ("ZRANGEBYSCORE", self.keys.due, "-inf", f"({now!r}", "LIMIT", 0, BATCH),
        )
        commands: list[Command] = []  # what they delete counts as no record
        if unused := [name for name, lease in proxies.items() if max(lease_of(lease)) < now - self.ttl]:
            commands.append(("HDEL", self.keys.proxies, *unused))
        if old := _older(notices, now - self.ttl):
            commands.append(("HSET", self.keys.meta, "lost", old[-1]))
            commands.append(("XTRIM", self.keys.notices, "MINID", old[-1] + 1))
        await self.link.run(*commands)
        deleted, left = 0, BATCH
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

    @property
    def _lives(self) -> dict[str, float]:
        """The zsets by age, and the seconds for which their members are kept."""
        lives = dict.fromkeys(("dated", "cached_at", "thread"), self.ttl)
        return lives | {"noted": 2 * self.ttl, "unsent_at": min(self.ttl, rules.ANSWERS_KEPT)}

    async def _expire_in(self, session: str, now: float, most: int) -> tuple[int, int]:
        """Delete a batch of the session's old records. Returns their number, and the number of turns among them."""
        of, horizon = functools.partial(self.keys.of, session), now - self.ttl

        def compute(tx: Transaction) -> tuple[int, int]:
            events: Command = ("XRANGE", of("events"), "-", "+", "COUNT", 2 * BATCH)
            placed: Command = ("ZRANGEBYSCORE", of("turns"), "-inf", (horizon - NEAR) * 1e6, "LIMIT", 0, BATCH)
            ranges: list[Command] = [
                ("ZRANGEBYSCORE", of(name), "-inf", f"({now - life!r}", "LIMIT", 0, _AT_ONCE.get(name, BATCH))
                for name, life in self._lives.items()
            ]
            tx.need(events, placed, *ranges)
            old = dict(zip(self._lives, tx.need(*ranges), strict=True))
            scores: list[Command] = [("ZSCORE", of(name), one) for name, found in old.items() for one in found]
            tx.need(*scores)
            for name, found in old.items():
                ages = tx.watch([("ZSCORE", of(name), one) for one in found])
                if any(age is None or age >= now - self._lives[name] for age in ages):
                    raise Stale
            turns = list(dict.fromkeys([*old["dated"], *tx.need(placed)[0]]))
            deleted, turns_deleted = self._expire_turns(tx, turns, horizon, most)
            deleted += self._expire_responses(tx, old["thread"])
            for name, hash_name in (("cached_at", "cached"), ("noted", "plain")):
                if old[name]:
                    tx.delete(hash_name, *old[name])
                    tx.do("ZREM", name, *old[name])
            for response_id in old["unsent_at"]:
                self._forget_answer(tx, response_id.decode())
            if old_events := _older(tx.need(events)[0], horizon):
                tx.do("XTRIM", "events", "MINID", old_events[-1] + 1)
                tx.do("HSET", "ledger", "lost", old_events[-1])
            return deleted + len(old["cached_at"]) + len(old["noted"]) + len(old_events), turns_deleted

        outcome = await transact(self, session, compute)
        await self._note_due(session)
        return outcome

    def _expire_turns(self, tx: Transaction, ids: list[bytes], horizon: float, most: int) -> tuple[int, int]:
        """Delete those of these turns that are older or cannot be read, with their calls. Returns the number of deleted
        records, and of turns that are gone."""
        found = {one: read_turn(self, value or b"") for one, value in zip(ids, tx.get("turn", *ids), strict=True)}
        turns = {one: turn for one, turn in found.items() if not turn.record or turn.record.created_at < horizon}
        if not (old := list(turns)[:most]):
            return 0, 0
        turns = {one: turns[one] for one in old}
        call_ids = [call_id for turn in turns.values() for call_id in turn.calls]
        calls = tx.get("call", *call_ids)
        for turn_id, turn in turns.items():
            entries = (values.prefix(key, flag) for key in turn.keys for flag in (b"0", b"1"))
            tx.index("key", "turns", turn_id, *entries, remove=True)
            for key in turn.keys:  # they are known for as long again
                put_note(tx, key)
            if turn.record:
                tx.index("asked", "turns", turn_id, values.prefix(turn.record.user_key), remove=True)
                tx.index("request", "turns", turn_id, values.prefix(turn.record.request_key), remove=True)
        for call_id, value in zip(call_ids, calls, strict=True):
            if (call := self.record_of(Call, value)) is not None:
                tx.index("ready", "calls", call_id, values.prefix(call.name.encode()), remove=True)
            tx.do("UNLINK", tx.keys.of_call(call_id.decode()))
        for name in ("turns", "dated"):
            tx.do("ZREM", name, *old)
        tx.delete("turn", *old)
        if call_ids:
            for name in ("calls", "open", "lease"):
                tx.do("ZREM", name, *call_ids)
            for name in ("waiting", "parts", "call"):
                tx.delete(name, *call_ids)
        tx.deleted = tx.unknown_changes = True
        return len(turns) + sum(value is not None for value in calls), len(old)

    async def _note_due(self, session: str) -> None:
        """Note when something of the session expires next, unless it has been written meanwhile."""
        of = functools.partial(self.keys.of, session)

        def compute(tx: Transaction) -> None:
            due: Command = ("ZSCORE", self.keys.due, session.encode())
            first: Command = ("XRANGE", of("events"), "-", "+", "COUNT", 1)
            ages: list[Command] = [("ZRANGE", of(name), 0, 0, "WITHSCORES") for name in (*self._lives, "turns")]
            tx.need(due, first, *ages)
            tx.watch([due])
            *found, turn = tx.need(*ages)
            times = [float(one[1]) + life for one, life in zip(found, self._lives.values(), strict=True) if one]
            times += [float(place) / 1e6 + NEAR + self.ttl for place in turn[1:]]
            times += [_made_at(*entry) + self.ttl for entry in tx.need(first)[0]]
            if times:
                tx.do("ZADD", self.keys.due, repr(min(times)), session)
            else:
                tx.do("ZREM", self.keys.due, session)

        await transact(self, session, compute)


def _older(entries: list[tuple[bytes, dict[bytes, bytes]]], horizon: float) -> list[int]:
    """The numbers of those events or notices that were written before this time."""
    return [int(one.partition(b"-")[0]) for one, fields in entries if _made_at(one, fields) < horizon]


def _made_at(entry_id: bytes, fields: dict[bytes, bytes]) -> float:
    """When an event or a notice was written. Of a damaged one its number tells, which is a time."""
    try:
        return float(fields[b"c"])
    except (LookupError, ValueError):
        return int(entry_id.partition(b"-")[0]) / 1e6
