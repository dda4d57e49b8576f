"""Sessions and cached tools in SQLite. A mixin of `SqliteStore`."""

from typing import Any

from store.backends import _records as records
from store.backends import _rules as rules
from store.backends._sqlite_base import KnownSession, SqliteBase
from store.backends._sqlite_transaction import Transaction
from store.models import CachedTools, Page, Session, Snapshot

TABLES = (
    *("turn_key", "plain_key", "call", "turn", "cached_tools"),
    *("given_call", "conversation", "response", "thread", "unsent"),
)
"""The tables with a session's data, except its own record and its events."""


class SqliteSessions(SqliteBase):
    async def snapshot(self, session: str) -> Snapshot:
        record = self._session(session)
        return Snapshot(record, record.version if record else -self._deleted.of(session), self.revision(session))

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
        self._deleted.note(name, self._last_event)
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
