"""The store in one SQLite file: it outlives the process, and one process writes it.

Runs in the thread that opened it (the event loop's) and never suspends: each method is a few indexed statements in
one transaction. What can take longer, moving the log into the file, is `_checkpoints`' job.
"""

import itertools
import sqlite3
from collections.abc import Callable, Collection, Sequence
from typing import Any

import pydantic_core

from store.backends import _rules as rules
from store.backends import _states as states
from store.backends._sqlite_base import Rows, Transaction, batches, marks_for
from store.backends._sqlite_responses import SqliteResponses
from store.base import MATCHES, StoreUnavailable, UnknownCall
from store.models import CachedTools, Call, Event, Found, Page, Policy, Session, Status, Toolset, Turn

TABLES = "turn_key", "call", "turn", "cached_tools", "given_call", "conversation", "response", "thread"
"""What a session has, beside its own record and its events."""


class SqliteStore(SqliteResponses):
    # --- sessions ---------------------------------------------------------------------------------------------

    async def session(self, name: str) -> Session | None:
        if not self.read_only and self._db is not None:
            return self._sessions.get(name)
        rows = self._rows("SELECT record FROM session WHERE name = ?", name)
        return Session.model_validate_json(rows[0][0]) if rows else None

    async def sessions(self, *, limit: int = 100, cursor: str | None = None) -> Page[Session]:
        rules.check_limit(limit)
        rows = self._rows(
            "SELECT name, record FROM session WHERE name > ? ORDER BY name LIMIT ?",
            rules.name_after(cursor),
            limit + 1,
        )
        records = [(name, Session.model_validate_json(record)) for name, record in rows]
        return rules.page_of(records, "session.", limit)

    async def put_policy(self, name: str, policy: Policy) -> Session:
        return self._put_session(name, "session.updated", {"policy": policy})

    async def put_toolset(self, name: str, toolset: Toolset | None) -> Session:
        return self._put_session(name, "tools.updated", {"toolset": toolset})

    def _put_session(self, name: str, kind: str, changes: dict[str, Any]) -> Session:
        with Transaction(self) as tx:
            session = rules.changed(self._sessions.get(name), name, changes, now=tx.now)
            record = session.model_dump_json()
            tx.db.execute("INSERT OR REPLACE INTO session VALUES (?, ?)", (name, record))
            tx.record(name, kind, session.masked().model_dump_json())
        self._sessions[name] = kept = Session.model_validate_json(record)
        return kept

    async def delete_session(self, name: str) -> bool:
        with Transaction(self) as tx:
            gone = tx.db.execute("DELETE FROM session WHERE name = ?", (name,)).rowcount
            for table in TABLES:
                gone += tx.db.execute(f"DELETE FROM {table} WHERE session = ?", (name,)).rowcount
            if not gone:
                return False
            tx.db.execute("DELETE FROM event WHERE session = ?", (name,))
            tx.record(name, "session.deleted", rules.json_text({"name": name}))
        self._sessions.pop(name, None)
        self._revisions.pop(name, None)
        return True

    async def put_cached_tools(self, cached: CachedTools) -> None:
        record = cached.model_dump_json()
        with Transaction(self) as tx:
            tx.db.execute(
                "INSERT OR REPLACE INTO cached_tools VALUES (?, ?, ?, ?)",
                (cached.session, cached.cached_content, cached.created_at, record),
            )

    async def cached_tools(self, session: str, cached_content: str) -> CachedTools | None:
        rows = self._rows(
            "SELECT record FROM cached_tools WHERE session = ? AND cached_content = ?", session, cached_content
        )
        return CachedTools.model_validate_json(rows[0][0]) if rows else None

    # --- the ledger -------------------------------------------------------------------------------------------

    async def save_turn(self, turn: Turn, calls: Sequence[Call] = (), keys: Sequence[bytes] = ()) -> None:
        rules.check_calls(turn, calls)
        with Transaction(self) as tx:
            row = tx.db.execute(
                "SELECT seq, record FROM turn WHERE session = ? AND turn_id = ?", (turn.session, turn.turn_id)
            ).fetchone()
            old = Turn.model_validate_json(row[1]) if row else None
            turn = rules.replaced(old, turn)
            record = turn.model_dump_json()
            if row is None:
                seq = tx.db.execute(
                    "INSERT INTO turn (session, turn_id, user_key, bound, created_at, record)"
                    " VALUES (?, ?, ?, ?, ?, ?)",
                    (turn.session, turn.turn_id, turn.user_key, turn.bound, turn.created_at, record),
                ).lastrowid
                tx.record(turn.session, "turn.created", record)
            else:
                seq = row[0]
                tx.db.execute("UPDATE turn SET user_key = ?, record = ? WHERE seq = ?", (turn.user_key, record, seq))
                if old and old.delivered != turn.delivered:
                    tx.db.execute("UPDATE turn_key SET delivered = ? WHERE turn = ?", (turn.delivered, seq))
                tx.record(turn.session, "turn.updated", record)
            _add_keys(tx.db, turn, seq, keys)
            for call in calls:
                data = call.model_dump_json()
                if tx.db.execute(
                    "INSERT INTO call (call_id, session, turn, name, status, free_at, record)"
                    " VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT (call_id) DO NOTHING",
                    (call.call_id, call.session, seq, call.name, call.status, states.free_at(call), data),
                ).rowcount:
                    tx.record(call.session, "call.created", data)
        self._revisions[turn.session] = next(self._next_revision)

    async def look_up(self, session: str, *, turn_ids: Collection[str] = (), keys: Collection[bytes] = ()) -> Found:
        meant: dict[bytes, list[int]] = {}
        for _, asked in batches(keys):
            for key, best in self._rows(
                f"WITH asked (key) AS (VALUES {','.join(['(?)'] * len(asked))}), found (key, best) AS ("
                "SELECT key, (SELECT group_concat(turn) FROM (SELECT turn FROM turn_key"
                " WHERE session = ? AND key = asked.key ORDER BY delivered DESC, turn DESC LIMIT ?)) FROM asked)"
                " SELECT key, best FROM found WHERE best IS NOT NULL",
                *asked,
                session,
                MATCHES,
            ):
                meant[key] = [int(seq) for seq in str(best).split(",")]
        rows: Rows = []
        for marks, some in batches(set(itertools.chain(*meant.values()))):
            rows += self._rows(f"SELECT seq, record FROM turn WHERE seq IN ({marks})", *some)
        for marks, ids in batches(turn_ids):
            rows += self._rows(
                f"SELECT seq, record FROM turn WHERE session = ? AND turn_id IN ({marks})", session, *ids
            )
        turns = {seq: Turn.model_validate_json(record) for seq, record in rows}
        found = Found(
            by_key={key: [turns[seq].turn_id for seq in best] for key, best in meant.items()},
            turns={turn.turn_id: turn for turn in turns.values()},
        )
        for marks, some in batches(turns):
            for call_id, record in self._rows(
                f"SELECT call_id, record FROM call WHERE turn IN ({marks}) ORDER BY seq", *some
            ):
                found.calls[call_id] = Call.model_validate_json(record)
        return found

    async def bind(
        self, session: str, user_key: bytes, keys: Sequence[bytes], *, exclude: Collection[str] = ()
    ) -> str | None:
        with Transaction(self) as tx:
            row = tx.db.execute(
                "SELECT seq, record FROM turn WHERE session = ? AND user_key = ? AND bound = 0"
                " AND turn_id NOT IN (SELECT value FROM json_each(?)) ORDER BY seq DESC LIMIT 1",
                (session, user_key, rules.json_text(list(exclude))),
            ).fetchone()
            if row is None:
                return None
            turn = Turn.model_validate_json(row[1]).model_copy(update={"bound": True})
            record = turn.model_dump_json()
            tx.db.execute("UPDATE turn SET bound = 1, record = ? WHERE seq = ?", (record, row[0]))
            _add_keys(tx.db, turn, row[0], keys)
            tx.record(session, "turn.updated", record)
        self._revisions[session] = next(self._next_revision)
        return turn.turn_id

    def revision(self, session: str) -> int | None:
        if self.read_only:
            return None
        if (known := self._revisions.get(session)) is not None:
            return known
        rows = self._rows("SELECT 1 FROM turn WHERE session = ? LIMIT 1", session)
        revision = next(self._next_revision) if rows else 0
        if rows or session in self._sessions:  # names that clients make up are not remembered
            self._revisions[session] = revision
        return revision

    async def turns(self, session: str, *, limit: int = 100, cursor: str | None = None) -> Page[Turn]:
        rules.check_limit(limit)
        rows = self._rows(
            "SELECT seq, record FROM turn WHERE session = ? AND seq > ? ORDER BY seq LIMIT ?",
            session,
            rules.place("turn", cursor),
            limit + 1,
        )
        return rules.page_of([(seq, Turn.model_validate_json(record)) for seq, record in rows], "turn", limit)

    # --- calls ------------------------------------------------------------------------------------------------

    async def call(self, call_id: str) -> Call:
        rows = self._rows("SELECT record FROM call WHERE call_id = ?", call_id)
        if not rows:
            raise UnknownCall(f"there is no call {call_id}")
        return Call.model_validate_json(rows[0][0])

    async def calls(
        self,
        *,
        session: str | None = None,
        status: Status | None = None,
        name: str | None = None,
        limit: int = 100,
        cursor: str | None = None,
    ) -> Page[Call]:
        rules.check_limit(limit)
        wanted = {"session": session, "status": status, "name": name}
        wanted = {column: value for column, value in wanted.items() if value is not None}
        terms = ["seq > ?", *(f"{column} = ?" for column in wanted)]
        if status is not None and not status.final:
            terms.append("status IN ('pending', 'running')")  # so that the index of open calls can be used
        rows = self._rows(
            f"SELECT seq, record FROM call WHERE {' AND '.join(terms)} ORDER BY seq LIMIT ?",
            rules.place("call", cursor),
            *wanted.values(),
            limit + 1,
        )
        return rules.page_of([(seq, Call.model_validate_json(record)) for seq, record in rows], "call", limit)

    async def answer(
        self, call_id: str, *, result: Any = None, error: str | None = None, session: str | None = None
    ) -> tuple[Call, bool]:
        with Transaction(self) as tx:
            call = await self.call(call_id)
            if session not in (None, call.session):
                raise UnknownCall(f"there is no call {call_id} in session {session}")
            if (answer := states.answered(call, result=result, error=error, now=tx.now)) is None:
                return call, False
            _put_call(tx, answer)
        self._revisions[call.session] = next(self._next_revision)
        return answer, True

    async def _change(self, call_id: str, change: Callable[[Call, float], Call | None]) -> Call:
        """The call as `change` (which is given the call and the time) makes it; None leaves it as it is."""
        with Transaction(self) as tx:
            call = await self.call(call_id)
            if (after := change(call, tx.now)) is None:
                return call
            _put_call(tx, after)
        self._revisions[call.session] = next(self._next_revision)
        return after

    # --- running calls ----------------------------------------------------------------------------------------

    async def claim(self, session: str, names: Collection[str], *, lease: float, worker: str) -> Call | None:
        states.check_lease(lease)
        held = states.held(self._sessions.get(session))
        with Transaction(self) as tx:
            row = tx.db.execute(
                f"SELECT record FROM call WHERE session = ? AND free_at <= ? AND name IN ({marks_for(names)})"
                f" AND (status = 'running' OR name NOT IN ({marks_for(held)})"
                " OR json_extract(record, '$.approval') = 'approved') ORDER BY seq LIMIT 1",
                (session, tx.now, *names, *held),
            ).fetchone()
            if row is None:
                return None
            call = states.claimed(Call.model_validate_json(row[0]), lease=lease, worker=worker, now=tx.now)
            _put_call(tx, call)
        self._revisions[session] = next(self._next_revision)
        return call

    async def next_lease(self, session: str, names: Collection[str]) -> float | None:
        ((end,),) = self._rows(
            f"SELECT min(free_at) FROM call WHERE session = ? AND free_at > 0 AND name IN ({marks_for(names)})",
            session,
            *names,
        )
        return None if end is None else float(end)

    async def renew(self, call_id: str, worker: str, lease: float) -> Call:
        with Transaction(self) as tx:
            call = states.renewed(await self.call(call_id), worker=worker, lease=lease, now=tx.now)
            _put_call(tx, call, quietly=lease > 0)
        self._revisions[call.session] = next(self._next_revision)
        return call

    async def start(self, call_id: str, *, loop_id: str) -> Call:
        return await self._change(call_id, lambda call, now: states.started(call, loop_id=loop_id, now=now))

    async def ask_approval(self, call_id: str, loop_id: str) -> Call:
        return await self._change(call_id, lambda call, now: states.asked(call, loop_id=loop_id, now=now))

    async def decide(self, call_id: str, approved: bool, *, reason: str = "") -> Call:
        return await self._change(
            call_id, lambda call, now: states.decided(call, approved=approved, reason=reason, now=now)
        )

    async def settle(self, call_id: str, status: Status, *, error: str) -> Call:
        return await self._change(call_id, lambda call, now: states.settled(call, status=status, error=error, now=now))

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


def _add_keys(db: sqlite3.Connection, turn: Turn, seq: int | None, keys: Sequence[bytes]) -> None:
    if keys:
        db.executemany(
            "INSERT OR IGNORE INTO turn_key VALUES (?, ?, ?, ?)",
            [(turn.session, key, turn.delivered, seq) for key in keys],
        )


def _put_call(tx: Transaction, call: Call, *, quietly: bool = False) -> None:
    """Replace the call of the same id; `quietly`: without an event."""
    record = call.model_dump_json()
    tx.db.execute(
        "UPDATE call SET status = ?, free_at = ?, record = ? WHERE call_id = ?",
        (call.status, states.free_at(call), record, call.call_id),
    )
    if not quietly:
        tx.record(call.session, "call.updated", record)
