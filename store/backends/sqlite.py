"""The store in one SQLite file: it outlives the process, and one process writes it.

Runs in the thread that opened it (the event loop's) and never suspends: each method is a few indexed statements in
one transaction. What can take longer, moving the log into the file, is `_checkpoints`' job.
"""

import pydantic_core

from store.backends import _rules as rules
from store.backends._sqlite_base import Rows, Transaction
from store.backends._sqlite_calls import SqliteCalls
from store.backends._sqlite_ledger import SqliteLedger
from store.backends._sqlite_responses import SqliteResponses
from store.backends._sqlite_sessions import SqliteSessions
from store.base import StoreUnavailable
from store.models import Event


class SqliteStore(SqliteSessions, SqliteLedger, SqliteCalls, SqliteResponses):
    # --- events -----------------------------------------------------------------------------------------------

    async def last_event_id(self) -> int:
        if not self.read_only and self._db is not None:
            return self._last_event
        return self._stored_last_event()

    def _events_after(self, after: int, session: str | None, limit: int) -> Rows:
        of_session, values = ("", ()) if session is None else ("AND session = ?", (session,))
        return self._rows(
            "SELECT event_id, session, type, data, created_at FROM event"
            f" WHERE event_id > ? {of_session} ORDER BY event_id LIMIT ?",
            after,
            *values,
            limit,
        )

    async def events(self, *, after: int, session: str | None = None, limit: int = 100) -> list[Event]:
        rules.check_limit(limit)
        return [
            Event(
                event_id=event_id,
                session=name,
                type=kind,
                data=pydantic_core.from_json(data),
                created_at=created_at,
            )
            for event_id, name, kind, data, created_at in self._events_after(after, session, limit)
        ]

    async def wait(self, *, after: int, timeout: float, session: str | None = None) -> bool:
        if self._db is None:
            return False
        if self._events_after(after, session, 1):
            return True
        if self.read_only:
            raise StoreUnavailable(f"store {self.path}: opened read-only, where nothing tells of new events")
        return await self._waiters.wait(after=after, session=session, timeout=timeout)

    # --- upkeep -----------------------------------------------------------------------------------------------

    async def expire(self) -> int:
        with Transaction(self) as tx:
            horizon = (tx.now - self.ttl,)
            old = "SELECT seq FROM turn WHERE created_at < ?"
            names = tx.db.execute("SELECT DISTINCT session FROM turn WHERE created_at < ?", horizon).fetchall()
            tx.db.execute(f"DELETE FROM turn_key WHERE turn IN ({old})", horizon)
            gone = tx.db.execute(f"DELETE FROM call WHERE turn IN ({old})", horizon).rowcount
            gone += tx.db.execute("DELETE FROM turn WHERE created_at < ?", horizon).rowcount
            gone += tx.db.execute("DELETE FROM cached_tools WHERE created_at < ?", horizon).rowcount
            # Events come in the order of time: the first young one ends the search, without an index.
            gone += tx.db.execute(
                "DELETE FROM event WHERE event_id < coalesce("
                "(SELECT event_id FROM event WHERE created_at >= ? ORDER BY event_id LIMIT 1), ?)",
                (*horizon, self._last_event + 1),
            ).rowcount
            gone += self._expire_responses(tx)
        for (name,) in names:
            self._revisions.pop(name, None)
        return gone
