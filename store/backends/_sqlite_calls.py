"""Calls in SQLite: read, answered, run. A mixin: `SqliteStore` is made of it."""

from collections.abc import Callable, Collection
from typing import Any

from store.backends import _rules as rules
from store.backends import _states as states
from store.backends._sqlite_base import SqliteBase, Transaction, marks_for
from store.base import UnknownCall
from store.models import Call, Page, Status


class SqliteCalls(SqliteBase):
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


def _put_call(tx: Transaction, call: Call, *, quietly: bool = False) -> None:
    """Replace the call of the same id; `quietly`: without an event."""
    record = call.model_dump_json()
    tx.db.execute(
        "UPDATE call SET status = ?, free_at = ?, record = ? WHERE call_id = ?",
        (call.status, states.free_at(call), record, call.call_id),
    )
    if not quietly:
        tx.record(call.session, "call.updated", record)
