"""The store in one SQLite file, written by one process.

Runs in the thread of the event loop that opened it, and suspends only to wait for another program: each method is a few
indexed statements in one transaction.
"""

import asyncio
import functools
import inspect
from collections.abc import Callable, Coroutine
from typing import Any

import pydantic_core

from store.backends import _records as records
from store.backends import _rules as rules
from store.backends._sqlite_base import KnownSession, Transaction, marks_for, note_lost_event, note_time
from store.backends._sqlite_calls import SqliteCalls
from store.backends._sqlite_ledger import SqliteLedger
from store.backends._sqlite_responses import SqliteResponses
from store.base import BATCH, Store, StoreBusy
from store.models import CachedTools, Document, Event, Page, Session, Snapshot

TABLES = (
    *("turn_key", "plain_key", "call", "turn", "cached_tools"),
    *("given_call", "conversation", "response", "thread", "unsent"),
)
"""The tables with a session's data, except its own record and its events."""

LISTED = "(SELECT value FROM json_each(?))"

DATED = (("turn", "created_at"), ("cached_tools", "created_at"), ("thread", "used_at"), ("event", "created_at"))
"""Tables with rows that expire, and the column of their age."""


class SqliteStore(SqliteLedger, SqliteResponses, SqliteCalls):
    # --- sessions ---------------------------------------------------------------------------------------------

    async def snapshot(self, session: str) -> Snapshot:
        record = self._session(session)
        version = record.version if record else -(self._deleted.get(session) or 0)
        return Snapshot(record, version, self.revision(session))

    def _session(self, name: str) -> Session | None:
        known = self._known_session(name)
        if known.is_unreadable:
            raise rules.unreadable_session(name)
        return known.record

    async def sessions(self, *, limit: int = 100, cursor: str | None = None) -> Page[Session]:
        rules.check_limit(limit)
        rows = self._rows(
            "SELECT name, record FROM session WHERE name > ? ORDER BY name LIMIT ?",
            rules.name_after(cursor),
            limit + 1,
        )
        return rules.page_of([(name, records.read(Session, record)) for name, record in rows], "session.", limit)

    async def _put_session(self, name: str, kind: str, changes: dict[str, Any], if_version: int | None) -> Session:
        with Transaction(self) as tx:
            old = self._known_session(name).record
            rules.check_version(old, name, if_version)
            # the number of this write's event, which is unique
            session = rules.changed(old, name, changes, version=self._last_event + 1, now=tx.now)
            record = session.model_dump_json()
            tx.db.execute("INSERT OR REPLACE INTO session VALUES (?, ?)", (name, records.versioned(record)))
            tx.record(name, kind, session.masked().model_dump_json())
            if "toolset" in changes:
                tx.changed.append(name)
        stored = Session.model_validate_json(record)
        self._remember_session(name, KnownSession(stored), len(record))
        return stored

    async def delete_session(self, name: str, *, if_version: int | None = None) -> bool:
        with Transaction(self) as tx:
            rules.check_version(self._known_session(name).record, name, if_version)
            deleted = tx.db.execute("DELETE FROM session WHERE name = ?", (name,)).rowcount
            for table in TABLES:
                deleted += tx.db.execute(f"DELETE FROM {table} WHERE session = ?", (name,)).rowcount
            if not deleted:
                return False
            tx.db.execute("DELETE FROM event WHERE session = ?", (name,))
            tx.record(name, "session.deleted", rules.json_text({"name": name}))
            tx.changed.append(name)
        self._sessions.pop(name)
        self._writes.pop(name)
        self._deleted.put(name, self._last_event, 128)
        return True

    async def put_cached_tools(self, cached: CachedTools) -> None:
        record = cached.model_dump_json()
        with Transaction(self) as tx:
            tx.db.execute(
                "INSERT OR REPLACE INTO cached_tools VALUES (?, ?, ?, ?)",
                (cached.session, cached.cached_content, cached.created_at, records.versioned(record)),
            )

    async def cached_tools(self, session: str, cached_content: str) -> CachedTools | None:
        rows = self._rows(
            "SELECT record FROM cached_tools WHERE session = ? AND cached_content = ?", session, cached_content
        )
        return records.read(CachedTools, rows[0][0]) if rows else None

    # --- events -----------------------------------------------------------------------------------------------

    async def last_event_id(self) -> str:
        return rules.event_id(self.epoch, self._last())

    def _last(self) -> int:
        """The number of the last event."""
        return self._stored_last_event() if self.read_only or self._db is None else self._last_event

    async def events(self, *, after: str | None, session: str | None = None, limit: int = 100) -> list[Event]:
        rules.check_limit(limit)
        of_session, values = ("", ()) if session is None else ("AND session = ?", (session,))
        rows = self._rows(
            "SELECT event_id, session, type, data, created_at FROM event"
            f" WHERE event_id > ? {of_session} ORDER BY event_id LIMIT ?",
            rules.event_after(after, self.epoch, self._last(), self._lost_event),
            *values,
            limit,
        )
        return [
            Event(
                event_id=rules.event_id(self.epoch, number),
                session=name,
                type=kind,
                data=_data(data),
                created_at=created_at,
            )
            for number, name, kind, data, created_at in rows
        ]

    # --- upkeep -----------------------------------------------------------------------------------------------

    async def expire(self) -> int:
        with Transaction(self) as tx:
            before, after = self._clocks.note, self._clocks.checked()
            note_time(tx, after)
            if after.paused_until:
                self._clocks.note = after
                return 0
            # Older rows were deleted before the pause: these were written during it, with a clock that was behind.
            for table, date in DATED if before.paused_until else ():
                tx.db.execute(f"UPDATE {table} SET {date} = ? WHERE {date} < ?", (tx.now, before.seen - self.ttl))
            horizon = tx.now - self.ttl
            old = tx.db.execute(
                "SELECT seq, session FROM turn WHERE created_at < ? LIMIT ?", (horizon, BATCH)
            ).fetchall()
            names = {name for _, name in old}
            turns = (rules.json_text([seq for seq, _ in old]),)
            deleted = self._expire_keys(tx, turns)
            tx.db.execute(f"DELETE FROM turn_key WHERE turn IN {LISTED}", turns)
            proxies = self._proxies(tx.times.steady)
            tx.db.execute(
                f"DELETE FROM proxy WHERE seen_at < ? AND proxy_id NOT IN ({marks_for(proxies)})",
                (horizon, *proxies),
            )
            deleted += tx.db.execute(f"DELETE FROM call WHERE turn IN {LISTED}", turns).rowcount
            deleted += tx.db.execute(f"DELETE FROM turn WHERE seq IN {LISTED}", turns).rowcount
            deleted += tx.db.execute(
                "DELETE FROM cached_tools WHERE (session, cached_content) IN"
                " (SELECT session, cached_content FROM cached_tools WHERE created_at < ? LIMIT ?)",
                (horizon, BATCH),
            ).rowcount
            # Events are ordered by time: the first younger one ends the search, without an index.
            events = tx.db.execute(
                "DELETE FROM event WHERE event_id IN (SELECT event_id FROM event WHERE event_id < coalesce("
                "(SELECT event_id FROM event WHERE created_at >= ? ORDER BY event_id LIMIT 1), ?)"
                " ORDER BY event_id LIMIT ?) RETURNING event_id",
                (horizon, self._last_event + 1, 2 * BATCH),
            ).fetchall()
            lost = max((number for (number,) in events), default=self._lost_event)
            if events:
                note_lost_event(tx, lost)
            deleted += len(events) + self._expire_responses(tx)
        self._clocks.note, self._lost_event = after, lost
        for name in names:
            self._writes.pop(name)
        self._forget_calls((), names)
        self.notifier.notify((), (), names)
        return deleted


def _data(text: str) -> Document:
    try:
        data: Document = pydantic_core.from_json(text)
    except ValueError:  # damaged: keeps its place, so that later events are found
        return {}
    return data


# --- waiting for other programs that lock the database ----------------------------------------------------------
#
# SQLite itself can only wait by blocking, so its timeout is 0. A method that finds the file locked has written nothing,
# and is called again as a whole. All methods share one time limit: it starts when the first method finds the file
# locked, and is reset by a successful write. After it, each method is tried only once: an answer that needs the store a
# dozen times does not wait a dozen times.

PATIENCE = 5.0
"""Seconds from when the file was first found locked until methods no longer wait."""

_FIRST_PAUSE, _MAX_PAUSE = 0.002, 0.2  # seconds between two tries, doubled with each


def patient[T](method: Callable[..., Coroutine[Any, Any, T]]) -> Callable[..., Coroutine[Any, Any, T]]:
    """The method, retried on StoreBusy until the time limit is over."""

    @functools.wraps(method)
    async def retried(store: SqliteStore, *arguments: Any, **named: Any) -> T:
        since: float | None = None
        pause = _FIRST_PAUSE
        while True:
            try:
                return await method(store, *arguments, **named)
            except StoreBusy:
                now = asyncio.get_running_loop().time()
                if store.locked_since is None:
                    store.locked_since = now
                since = store.locked_since if since is None else since
                if now >= since + PATIENCE:
                    raise
            await asyncio.sleep(pause)
            pause = min(2 * pause, _MAX_PAUSE)

    return retried


PATIENT = frozenset(name for name in Store.__abstractmethods__ if inspect.iscoroutinefunction(getattr(Store, name))) - {
    "open",
    "close",
    "sync",
    "wait_call",
    "wait_claimable",
    "follow",
    "lock_conversation",
    "unlock_conversation",
} | {"_is_claimable"}
"""The methods that read or write the file. The waiting methods are built on them; locks are in memory."""

for _name in PATIENT:
    setattr(SqliteStore, _name, patient(getattr(SqliteStore, _name)))
