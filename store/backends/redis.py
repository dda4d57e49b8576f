"""The store in Redis or Valkey, for several proxies.

Writes are computed here, by the rules that all backends share, and applied by one script (`_redis_base`). The server's
clock dates records and ends leases.
"""

import asyncio
import contextlib
import functools
import logging
import math
import secrets
from typing import Any

import pydantic_core

from store.backends import _records as records
from store.backends import _redis_values as values
from store.backends import _rules as rules
from store.backends._redis_base import NEAR, SMALL, Stale, Transaction, body_of, transact
from store.backends._redis_calls import lease_of
from store.backends._redis_client import Command
from store.backends._redis_ledger import index_turn, put_note, read_turn, turn_entries
from store.backends._redis_responses import RedisResponses
from store.backends._redis_values import SESSION
from store.base import BATCH, StoreUnavailable
from store.models import CachedTools, Call, Event, Page, Session, Snapshot

logger = logging.getLogger(__name__)

_BLOCK = 2.0
"""Seconds that one read waits for a notice."""

_REST = 0.05
"""Seconds between two reads of notices while nobody waits."""

_AT_ONCE = 1000
"""The most notices in one read of the reader."""

_PAUSE = 0.05, 2.0
"""The first and the longest pause before the reader tries again, in seconds."""

_READ = 100
"""The most notices in one read of `events`."""

type _Entries = list[tuple[bytes, dict[bytes, bytes]]]

_LATER = 3600.0
"""Seconds until the next try if a session's records could not be deleted."""

_BATCHES = {"thread": BATCH // 8}
"""Members of one batch, by zset: a thread is deleted as a whole."""


class RedisStore(RedisResponses):
    _reader: asyncio.Task[None] | None = None
    _position = "0"

    # --- sessions ---------------------------------------------------------------------------------------------

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

    # --- notices of writes ------------------------------------------------------------------------------------

    async def _begin_reading(self) -> None:
        await self._begin_at_end()
        self._reader = asyncio.ensure_future(self._read_notices())

    async def _begin_at_end(self) -> None:
        (entries,) = await self.link.run(("XREVRANGE", self.keys.notices, "+", "-", "COUNT", 1))
        self._position = entries[0][0].decode() if entries else "0"

    async def close(self) -> None:
        if self._reader is not None:
            self._reader.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._reader
            self._reader = None
        await super().close()

    async def _read_notices(self) -> None:
        pause, lost = _PAUSE[0], False
        while True:
            try:
                read = "XREAD", "COUNT", _AT_ONCE, "BLOCK", int(_BLOCK * 1000), "STREAMS"
                found = await self.link.block(*read, self.keys.notices, self._position, seconds=_BLOCK)
                if lost:
                    await self._check_history()
                    self.notifier.wake_all()
                    if self.on_reconnected is not None:
                        self.on_reconnected()
                pause, lost = _PAUSE[0], False
            except StoreUnavailable as error:
                if not lost:
                    logger.warning("the store's notices cannot be read now: %s", error)
                lost = True
                await asyncio.sleep(pause)
                await self.recovered(math.inf)
                pause = min(2 * pause, _PAUSE[1])
                continue
            for _, entries in found or ():
                for entry_id, fields in entries:
                    self._position = entry_id.decode()
                    try:
                        self._wake_by(int(entry_id.partition(b"-")[0]), fields)
                    except (LookupError, TypeError, ValueError):  # damaged: it may concern any waiter
                        self.notifier.wake_all()
                if len(entries) == _AT_ONCE:  # earlier ones may have been dropped
                    self.notifier.wake_all()
            if found:
                await self.notifier.first(_REST)

    def _wake_by(self, number: int, fields: dict[bytes, bytes]) -> None:
        session, wakes = fields[b"s"].decode(), pydantic_core.from_json(fields[b"w"])
        changed = [session] if wakes["changed"] else []
        if changed and self.on_change is not None:
            self.on_change(session)
        if self.notifier.has_waiters:
            calls = [(session, call_id, tool) for call_id, tool in wakes["calls"]]
            self.notifier.notify([session] if int(fields[b"n"]) else [], calls, changed, number)

    async def _check_history(self) -> None:
        """Give the store another epoch if its server has lost writes: the last notice that was read is missing without
        having been dropped. All processes that notice this agree on the epoch."""
        position = int(self._position.partition("-")[0])
        found, dropped, epoch = await self.link.run(
            ("XRANGE", self.keys.notices, position, position, "COUNT", 1),
            ("HGET", self.keys.meta, "lost"),
            ("HGET", self.keys.meta, "epoch"),
        )
        if epoch == self.epoch.encode() and (found or position <= int(dropped or 0)):
            return
        if epoch in (None, self.epoch.encode()):
            after = f"epoch after {self.epoch}"
            _, _, epoch = await self.link.run(
                ("HSETNX", self.keys.meta, "secret", self.secret),
                ("HSETNX", self.keys.meta, after, secrets.token_hex(4)),
                ("HGET", self.keys.meta, after),
            )
            await self.link.run(("HSET", self.keys.meta, "epoch", epoch))
            logger.warning("the store has lost writes: its server was restarted, or another took its place")
        self.epoch = epoch.decode()
        self.forget()
        self.notifier.last_number = 0  # numbers of the new epoch may be smaller
        await self._begin_at_end()

    # --- events -----------------------------------------------------------------------------------------------

    async def last_event_id(self) -> str:
        (number,) = await self.link.run(("HGET", self.keys.meta, "event"))
        return rules.event_id(self.epoch, int(number or 0))

    async def events(self, *, after: str | None, session: str | None = None, limit: int = 100) -> list[Event]:
        rules.check_limit(limit)
        start, cursor = rules.event_after(after, self.epoch, 10**18, 0), after
        stream, notes, count = self.keys.notices, self.keys.meta, _READ
        if session is not None:
            stream, notes, count = self.keys.of(session, "events"), self.keys.of(session, "ledger"), limit
        events: list[Event] = []
        while len(events) < limit:
            last, lost, entries = await self.link.run(
                ("HGET", self.keys.meta, "event"),
                ("HGET", notes, "lost"),
                ("XRANGE", stream, f"({start}", "+", "COUNT", count),
            )
            rules.event_after(cursor, self.epoch, int(last or 0), int(lost or 0))
            if session is not None:
                events += self._readable(session, entries)
            else:
                events += await self._noticed(entries, start, cursor)
            if len(entries) < count:
                break
            start = int(entries[-1][0].partition(b"-")[0])
            cursor = rules.event_id(self.epoch, start)
        return events[:limit]

    async def _noticed(self, notices: _Entries, start: int, cursor: str | None) -> list[Event]:
        """The events of these notices after the number `start`. Raises CursorLost."""
        ranges = []  # the session of each notice, and the numbers of its first and last event
        for entry_id, fields in notices:
            number = int(entry_id.partition(b"-")[0])
            try:
                ranges.append((fields[b"s"].decode(), max(number - int(fields[b"n"]) + 1, start + 1), number))
            except (LookupError, ValueError):
                records.log_damaged("a notice", entry_id.decode())
        sessions = list(dict.fromkeys(name for name, *_ in ranges)) if cursor is not None else []
        found = await self.link.run(
            *(("XRANGE", self.keys.of(name, "events"), first, number) for name, first, number in ranges),
            *(("HGET", self.keys.of(name, "ledger"), "lost") for name in sessions),
        )
        for lost in found[len(ranges) :]:
            rules.event_after(cursor, self.epoch, 10**18, int(lost or 0))
        return [event for (name, *_), some in zip(ranges, found, strict=False) for event in self._readable(name, some)]

    def _readable(self, session: str, entries: _Entries) -> list[Event]:
        events = []
        for entry_id, fields in entries:
            try:
                event_id = rules.event_id(self.epoch, int(entry_id.partition(b"-")[0]))
                kind, created_at = fields[b"t"].decode(), float(fields[b"c"])
                data = pydantic_core.from_json(values.text_of(fields[b"d"]))
                events.append(Event(event_id=event_id, session=session, type=kind, data=data, created_at=created_at))
            except (LookupError, ValueError):  # includes pydantic's ValidationError
                records.log_damaged("an event", f"{entry_id.decode()} of session {session}")
        return events

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
                ("ZRANGEBYSCORE", of(name), "-inf", f"({now - life!r}", "LIMIT", 0, _BATCHES.get(name, BATCH))
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
