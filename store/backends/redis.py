"""The store in Redis or Valkey, for several proxies.

Writes are computed here, by the rules that all backends share, and applied by one script (`_redis_transaction`). The
server's clock dates records and ends leases.
"""

import functools
import logging
from typing import Any

from store.backends import _records as records
from store.backends import _redis_values as values
from store.backends import _rules as rules
from store.backends._redis_base import SMALL, body_of
from store.backends._redis_calls import lease_of
from store.backends._redis_client import Command
from store.backends._redis_events import RedisEvents
from store.backends._redis_ledger import index_turn, put_note, read_turn, turn_entries
from store.backends._redis_transaction import NEAR, Stale, Transaction, transact
from store.backends._redis_values import SESSION
from store.base import BATCH, StoreUnavailable
from store.models import CachedTools, Call, Page, Session, Snapshot

logger = logging.getLogger(__name__)

_LATER = 3600.0
"""Seconds until the next try if a session's records could not be deleted."""

_AT_ONCE = {"thread": BATCH // 8}
"""Members of one batch, by zset: a thread is deleted as a whole."""


class RedisStore(RedisEvents):
    async def snapshot(self, session: str) -> Snapshot:
        of = self.keys.of
        commands: list[Command] = [
            ("HMGET", of(session, "session"), "version", "deleted"),
            ("HGET", of(session, "ledger"), "revision"),
            ("EXISTS", of(session, "request")),
        ]
        changes = self._writes.get(session)
        if changes is not None and changes.revision:
            commands.append(("ZRANGEBYSCORE", of(session, "writes"), f"({changes.revision}", "+inf"))
        (version, deleted), number, undelivered, *entries = await self.link.run(*commands)
        self._delivered.put(session, not undelivered, SMALL)
        # None: damaged, so the revision is unknown until the next write
        revision = int(number or 0) if (number or b"0").isdigit() else None
        self._note_snapshot(session, revision, entries[0] if entries else ())
        kept = self._sessions.get(session)
        while version is not None and (kept is None or kept[0] != int(version)):
            ((version, deleted, record),) = await self.link.run(
                ("HMGET", of(session, "session"), "version", "deleted", "record")
            )
            if version is not None:
                if (known := records.read(Session, values.text_of(record))) is None:
                    raise rules.unreadable_session(session)
                kept = int(version), known
                self._sessions.put(session, kept, records.memory_of(len(kept[1].model_dump_json())))
        if version is None or kept is None:
            self._sessions.pop(session)
            return Snapshot(None, -int(deleted or 0), revision)
        return Snapshot(kept[1], kept[0], revision)

    async def sessions(self, *, limit: int = 100, cursor: str | None = None) -> Page[Session]:
        rules.check_limit(limit)
        after = rules.name_after(cursor)
        start = f"({after}" if after else "-"
        (names,) = await self.link.run(("ZRANGEBYLEX", self.keys.names, start, "+", "LIMIT", 0, limit + 1))
        found = await self.link.run(*(("HGET", self.keys.of(name.decode(), "session"), "record") for name in names))
        rows = [
            (name.decode(), records.read(Session, values.text_of(record)))
            for name, record in zip(names, found, strict=True)
            if record is not None
        ]
        return rules.page_of(rows, "session.", limit)

    async def _put_session(self, name: str, kind: str, changes: dict[str, Any], if_version: int | None) -> Session:
        def compute(tx: Transaction) -> Session:
            old, last = _session(tx)
            rules.check_version(old, name, if_version)
            # the time, which advances even while the session is deleted
            version = max(int(self.link.time() * 1e6), last + 1)
            session = rules.changed(old, name, changes, version=version, now=tx.now.wall)
            record = session.model_dump_json()
            tx.do("HSET", "session", "version", version, "record", values.compress(records.versioned(record)))
            tx.do("PERSIST", "session")
            tx.once()
            tx.do("ZADD", self.keys.names, 0, name)
            tx.record(kind, session.masked().model_dump_json())
            tx.deleted = "toolset" in changes
            return Session.model_validate_json(record)

        session = await transact(self, name, compute)
        self._sessions.put(name, (session.version, session), records.memory_of(len(session.model_dump_json())))
        return session

    async def delete_session(self, name: str, *, if_version: int | None = None) -> bool:
        def compute(tx: Transaction) -> bool:
            session, last = _session(tx)
            rules.check_version(session, name, if_version)
            kept = [key for key in SESSION if key not in ("session", "ledger", "writes")]
            some: Command = ("EXISTS", *(tx.of(key) for key in kept))
            found, call_ids = tx.need(some, ("ZRANGE", tx.of("calls"), 0, -1))
            if tx.get("session", "version") == [None] and not found:
                return False
            tx.once()
            tx.do("DEL", "session")
            tx.do("HSET", "session", "deleted", max(int(self.link.time() * 1e6), last + 1))
            tx.do("EXPIRE", "session", tx.life)
            for key in (*kept, "ledger", "writes", "events"):
                tx.do("UNLINK", key)
            for call_id in call_ids:
                tx.do("UNLINK", self.keys.of_call(call_id.decode()))
            for listing in (self.keys.names, self.keys.due, self.keys.active):
                tx.do("ZREM", listing, name)
            tx.record("session.deleted", rules.json_text({"name": name}))
            tx.deleted = tx.unknown_changes = True
            return True

        deleted = await transact(self, name, compute)
        self._sessions.pop(name)
        self._writes.pop(name)
        return deleted

    async def put_cached_tools(self, cached: CachedTools) -> None:
        def compute(tx: Transaction) -> None:
            tx.put("cached", cached.cached_content, body_of(cached.model_dump_json()))
            tx.do("ZADD", "cached_at", cached.created_at, cached.cached_content)
            tx.due(cached.created_at + self.ttl)

        await transact(self, cached.session, compute)

    async def cached_tools(self, session: str, cached_content: str) -> CachedTools | None:
        (value,) = await self._fields(session, "cached", [cached_content])
        return self.record_of(CachedTools, value)

    # --- expiry -----------------------------------------------------------------------------------------------------

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
        commands: list[Command] = []  # not counted as deleted records
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
                # Raises if the server does not answer: the error is not the session's then.
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
        """Delete the old or unreadable ones of these turns, with their calls. Returns the number of deleted records,
        and of deleted turns."""
        found = {one: read_turn(self, value or b"") for one, value in zip(ids, tx.get("turn", *ids), strict=True)}
        turns = {one: turn for one, turn in found.items() if not turn.record or turn.record.created_at < horizon}
        if not (old := list(turns)[:most]):
            return 0, 0
        turns = {one: turns[one] for one in old}
        call_ids = [call_id for turn in turns.values() for call_id in turn.calls]
        calls = tx.get("call", *call_ids)
        for turn_id, turn in turns.items():
            index_turn(tx, turn_id, turn_entries(turn.record, turn.keys), {})
            for key in turn.keys:  # stays known for another `ttl`
                put_note(tx, key)
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
        """Store when the next record of the session expires, unless the session was written meanwhile."""
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


def _session(tx: Transaction) -> tuple[Session | None, int]:
    """The session (None if unreadable), and its version or the one at which it was deleted."""
    # The record is read last: if it is newer than the version, the transaction has a conflict.
    tx.need(*(tx.field("session", field) for field in ("version", "deleted", "record")))
    version, deleted = tx.get("session", "version", "deleted")
    if version is None:
        return None, int(deleted or 0)
    return records.read(Session, values.text_of(tx.peek("session", "record")[0] or b"")), int(version)


def _older(entries: list[tuple[bytes, dict[bytes, bytes]]], horizon: float) -> list[int]:
    """The numbers of the events or notices before this time."""
    return [int(one.partition(b"-")[0]) for one, fields in entries if _made_at(one, fields) < horizon]


def _made_at(entry_id: bytes, fields: dict[bytes, bytes]) -> float:
    """When an event or notice was written; if it is damaged, its number, which is a time."""
    try:
        return float(fields[b"c"])
    except (LookupError, ValueError):
        return int(entry_id.partition(b"-")[0]) / 1e6
