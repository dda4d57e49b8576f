"""The store in one SQLite file, written by one process.

Runs in the thread of the event loop that opened it, and suspends only to wait for another program: each method is a few
indexed statements in one transaction.
"""

import inspect

import pydantic_core

from store.backends import _rules as rules
from store.backends._patience import all_patient
from store.backends._sqlite_ledger import SqliteLedger
from store.backends._sqlite_responses import SqliteResponses
from store.backends._sqlite_retries import SqliteRetries
from store.backends._sqlite_sessions import SqliteSessions
from store.backends._sqlite_transaction import Transaction, marks_for, note_lost_event, note_time
from store.base import BATCH, Store
from store.models import Document, Event

PATIENT = frozenset(name for name in Store.__abstractmethods__ if inspect.iscoroutinefunction(getattr(Store, name))) - {
    "open",
    "close",
    "sync",
    "wait_call",
    "wait_claimable",
    "follow",
} | {"_is_claimable"}
"""The methods that read or write. The waiting methods are built on them."""


LISTED = "(SELECT value FROM json_each(?))"

DATED = (("turn", "created_at"), ("cached_tools", "created_at"), ("thread", "used_at"), ("event", "created_at"))
"""Tables with rows that expire, and the column of their age."""


class SqliteStore(SqliteSessions, SqliteLedger, SqliteResponses, SqliteRetries):
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
        self._wake((), (), names)
        return deleted


def _data(text: str) -> Document:
    try:
        data: Document = pydantic_core.from_json(text)
    except ValueError:  # damaged: keeps its place, so that later events are found
        return {}
    return data


all_patient(SqliteStore, PATIENT)
