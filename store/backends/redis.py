"""The store in Redis or Valkey: several proxies share it.

A write is computed here, by the rules that all backends share. One script applies it with its events, if what it was
computed from still holds (`_redis_transaction`). The server's clock dates records and ends leases.
"""

from typing import Any

import pydantic_core

from store.backends import _records as records
from store.backends import _redis_values as values
from store.backends import _rules as rules
from store.backends._redis_base import SMALL, body_of
from store.backends._redis_client import Command
from store.backends._redis_expiry import RedisExpiry
from store.backends._redis_transaction import Transaction, transact
from store.backends._redis_values import SESSION
from store.backends._redis_waits import RedisWaits
from store.base import StoreUnavailable
from store.models import CachedTools, Document, Event, Page, Policy, Session, Snapshot, Toolset

_READ = 100
"""Notices that are read at once."""

type _Entries = list[tuple[bytes, dict[bytes, bytes]]]


class RedisStore(RedisExpiry, RedisWaits):
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
        revision = _revision(number)
        self._note_snapshot(session, revision, entries[0] if entries else ())
        kept = self._sessions.get(session)
        while version is not None and (kept is None or kept[0] != int(version)):
            ((version, deleted, record),) = await self.link.run(
                ("HMGET", of(session, "session"), "version", "deleted", "record")
            )
            if version is not None:
                kept = int(version), _readable(session, record)
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

    async def put_policy(self, name: str, policy: Policy, *, if_version: int | None = None) -> Session:
        return await self._put_session(name, "session.updated", {"policy": policy}, if_version)

    async def put_toolset(self, name: str, toolset: Toolset | None, *, if_version: int | None = None) -> Session:
        return await self._put_session(name, "tools.updated", {"toolset": toolset}, if_version)

    async def _put_session(self, name: str, kind: str, changes: dict[str, Any], if_version: int | None) -> Session:
        def compute(tx: Transaction) -> Session:
            old, last = _session(tx)
            rules.check_version(old, name, if_version)
            # the time, which goes on while the session is deleted
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
        of = self.keys.of

        def compute(tx: Transaction) -> bool:
            session, last = _session(tx)
            rules.check_version(session, name, if_version)
            kept = [key for key in SESSION if key not in ("session", "ledger", "writes")]
            found, call_ids = tx.need(
                ("EXISTS", *(of(name, key) for key in kept)), ("ZRANGE", of(name, "calls"), 0, -1)
            )
            version = tx.get("session", "version")[0]
            if version is None and not found:
                return False
            tx.once()
            tx.do("DEL", "session")
            tx.do("HSET", "session", "deleted", max(int(self.link.time() * 1e6), last + 1))
            tx.do("EXPIRE", "session", tx.life)
            for key in (*kept, "ledger", "writes"):
                tx.do("UNLINK", key)
            tx.do("UNLINK", "events")
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
            tx.put("cached", cached.cached_content, [], body_of(cached.model_dump_json()))
            tx.do("ZADD", "cached_at", cached.created_at, cached.cached_content)
            tx.due(cached.created_at + self.ttl)

        await transact(self, cached.session, compute)

    async def cached_tools(self, session: str, cached_content: str) -> CachedTools | None:
        (value,) = await self._fields(session, "cached", [cached_content])
        return self.record_of(CachedTools, value)

    # --- events -----------------------------------------------------------------------------------------------

    async def last_event_id(self) -> str:
        (number,) = await self.link.run(("HGET", self.keys.meta, "event"))
        return rules.event_id(self.epoch, int(number or 0))

    async def events(self, *, after: str | None, session: str | None = None, limit: int = 100) -> list[Event]:
        rules.check_limit(limit)
        start, cursor = rules.event_after(after, self.epoch, 10**18, 0), after
        stream, notes, count = self.keys.notices, self.keys.meta, _READ
        if session is not None:
            stream, notes, count = self.keys.events(session), self.keys.of(session, "ledger"), limit
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
        ranges = self._ranges(notices, start)
        sessions = list(dict.fromkeys(name for name, *_ in ranges)) if cursor is not None else []
        found = await self.link.run(
            *(("XRANGE", self.keys.events(name), first, number) for name, first, number in ranges),
            *(("HGET", self.keys.of(name, "ledger"), "lost") for name in sessions),
        )
        for lost in found[len(ranges) :]:
            rules.event_after(cursor, self.epoch, 10**18, int(lost or 0))
        return [event for (name, *_), some in zip(ranges, found, strict=False) for event in self._readable(name, some)]

    def _ranges(self, notices: _Entries, start: int) -> list[tuple[str, int, int]]:
        """The session of each notice, and the numbers of its first and last event after `start`."""
        ranges = []
        for entry_id, fields in notices:
            number = int(entry_id.partition(b"-")[0])
            try:
                ranges.append((fields[b"s"].decode(), max(number - int(fields[b"n"]) + 1, start + 1), number))
            except (LookupError, ValueError):
                records.log_damaged("a notice", entry_id.decode())
        return ranges

    def _readable(self, session: str, entries: _Entries) -> list[Event]:
        events = []
        for entry_id, fields in entries:
            try:
                event_id = rules.event_id(self.epoch, int(entry_id.partition(b"-")[0]))
                kind, created_at = fields[b"t"].decode(), float(fields[b"c"])
                data = _data(values.text_of(fields[b"d"]))
                events.append(Event(event_id=event_id, session=session, type=kind, data=data, created_at=created_at))
            except (LookupError, ValueError):  # and of pydantic's
                records.log_damaged("an event", f"{entry_id.decode()} of session {session}")
        return events


def _data(text: str) -> Document:
    try:
        data: Document = pydantic_core.from_json(text)
    except ValueError:  # damaged: its place is kept, so that later events are found
        return {}
    return data


def _session(tx: Transaction) -> tuple[Session | None, int]:
    """The session, and its version or the one at which it was deleted. One that cannot be read is replaced as a whole,
    or deleted."""
    # the record last: one that is newer than its version is a conflict
    tx.need(*(tx.field("session", field) for field in ("version", "deleted", "record")))
    version, deleted = tx.get("session", "version", "deleted")
    if version is None:
        return None, int(deleted or 0)
    return records.read(Session, values.text_of(tx.peek("session", "record")[0] or b"")), int(version)


def _revision(number: bytes | None) -> int | None:
    """None: it is damaged, and nothing is known of the ledger until the next write."""
    try:
        return int(number or 0)
    except ValueError:
        return None


def _readable(name: str, record: bytes) -> Session:
    """An unreadable session must not count as one without tools: its calls would run without their approvals."""
    if (session := records.read(Session, values.text_of(record))) is None:
        raise StoreUnavailable(f"session {name} cannot be read: set its tools again, or delete it")
    return session
