"""Calls in SQLite: read, answered, run, and taken over by requests that are sent again. A mixin of `SqliteStore`."""

import sqlite3
from collections.abc import Callable, Collection
from functools import partial

import pydantic_core

from store.backends import _records as records
from store.backends import _rules as rules
from store.backends import _states as states
from store.backends._shared import Change
from store.backends._sqlite_base import SqliteBase, Transaction, marks_for
from store.base import UnknownCall
from store.models import Call, Document, Page, Status, Turn

OF_PROXY = "SELECT record FROM call WHERE proxy_id = ? ORDER BY seq"
MAY_BE_LOST = """
    SELECT record FROM call WHERE seq IN (
        SELECT seq FROM call WHERE proxy_id IS NOT NULL AND proxy_id NOT IN ({marks})
        UNION ALL
        SELECT seq FROM call WHERE claimable_at > 0 AND claimable_at <= ?
    ) ORDER BY seq
"""
"""Calls of proxies without a lease (`marks`: the proxies with one), and calls with an expired lease."""

BY_KEY = """
    SELECT seq, record FROM turn WHERE session = ? AND request_key = ? ORDER BY seq DESC
"""


class SqliteCalls(SqliteBase):
    async def call(self, session: str, call_id: str) -> Call:
        return self._call(call_id, session)

    async def find_call(self, call_id: str) -> Call:
        return self._call(call_id, None)

    def _call(self, call_id: str, session: str | None) -> Call:
        self._connection  # noqa: B018 - raises StoreUnavailable if it is closed
        if (call := self._calls.get(call_id)) is None:
            call = self._stored_call(call_id)
        if session not in (None, call.session):
            raise rules.unknown_call(call_id, session)
        return call

    def _stored_call(self, call_id: str) -> Call:
        rows = self._rows("SELECT record FROM call WHERE call_id = ?", call_id)
        if not rows:
            raise rules.unknown_call(call_id)
        if (call := records.read(Call, rows[0][0])) is None:
            raise UnknownCall(f"call {call_id} cannot be read")
        (call,) = self._with_parts([call])
        if not self.read_only:
            self._calls.put(call_id, call, records.memory_of(len(rows[0][0])) + records.size_of([call]))
        return call

    async def calls(
        self,
        *,
        session: str | None = None,
        status: Status | None = None,
        name: str | None = None,
        newest_first: bool = False,
        limit: int = 100,
        cursor: str | None = None,
    ) -> Page[Call]:
        rules.check_limit(limit)
        filters = {"session": session, "status": status, "name": name}
        filters = {column: value for column, value in filters.items() if value is not None}
        order = "DESC" if newest_first else "ASC"
        terms = ["seq < ?" if newest_first else "seq > ?", *(f"{column} = ?" for column in filters)]
        if status is not None and not status.final:
            terms.append("status IN ('pending', 'running')")  # so that the index of open calls can be used
        elif status not in (None, Status.DONE):
            terms.append("status IN ('failed', 'denied', 'expired')")  # likewise
        rows = self._rows(
            f"SELECT seq, record FROM call WHERE {' AND '.join(terms)} ORDER BY seq {order} LIMIT ?",
            rules.place("call", cursor, rules.LAST_PLACE if newest_first else 0),
            *filters.values(),
            limit + 1,
        )
        return rules.page_of([(seq, records.read(Call, record)) for seq, record in rows], "call", limit)

    async def _change(self, session: str, call_id: str, change: Change, *, quietly: bool = False) -> tuple[Call, bool]:
        with Transaction(self) as tx:
            call = self._call(call_id, session)
            after = change(call, tx.times, lambda: self._proxies(tx.times.steady))
            if after is not None:
                put_call(tx, after, quietly=quietly)
        return after or call, after is not None

    # --- running calls ----------------------------------------------------------------------------------------

    async def claim(self, session: str, names: Collection[str], *, lease: float, worker: str) -> Call | None:
        states.check_lease(lease)
        with Transaction(self) as tx:
            now = tx.times
            while (call := self._claimable(session, names, now.steady)) is not None:
                lost = states.lost(call, proxies=self._proxies(now.steady), now=now)
                after = lost or states.claimed(call, lease=lease, worker=worker, now=now)
                put_call(tx, after)
                if lost is None:
                    break
        return after if call is not None else None

    def _claimable(self, session: str, names: Collection[str], steady: float) -> Call | None:
        """The oldest call that a claim may return or settle."""
        guarded = states.approval_required(self._known_session(session).record)
        rows = self._each_row(
            f"SELECT record FROM call WHERE session = ? AND claimable_at <= ? AND name IN ({marks_for(names)})"
            f" AND (status = 'running' OR name NOT IN ({marks_for(guarded)})"
            " OR json_extract(record, '$.approval') = 'approved') ORDER BY seq",
            session,
            steady,
            *names,
            *guarded,
        )
        return next(records.read_all(Call, (record for (record,) in rows)), None)

    async def _is_claimable(self, session: str, names: Collection[str]) -> bool:
        return self._claimable(session, names, self._clocks.steady()) is not None

    async def next_lease(self, session: str, names: Collection[str]) -> float | None:
        ((end,),) = self._rows(
            "SELECT min(claimable_at) FROM call"
            f" WHERE session = ? AND claimable_at > 0 AND name IN ({marks_for(names)})",
            session,
            *names,
        )
        return None if end is None else max(0.0, float(end) - self._clocks.steady())

    async def lease_left(self, session: str, call_id: str) -> float | None:
        return states.lease_left(self._call(call_id, session), steady=self._clocks.steady())

    # --- the proxies ------------------------------------------------------------------------------------------

    def _proxies(self, steady: float) -> set[str]:
        """The proxies that have a lease."""
        return {proxy_id for proxy_id, until in self._leases.items() if until > steady}

    async def hold(self, proxy_id: str, lease: float) -> None:
        states.check_lease(lease)
        self._check_files()
        self._leases[proxy_id] = self._clocks.steady() + lease
        with Transaction(self) as tx:
            _saw_proxy(tx, proxy_id)

    async def drop(self, proxy_id: str) -> list[Call]:
        self._check_writable()

        def find(tx: Transaction, _: set[str]) -> sqlite3.Cursor:
            if proxy_id in self._leases:
                _saw_proxy(tx, proxy_id)
            return tx.db.execute(OF_PROXY, (proxy_id,))

        settled = self._settle(find, without=proxy_id)
        self._leases.pop(proxy_id, None)
        return settled

    async def settle_lost(self) -> list[Call]:
        def find(tx: Transaction, proxies: set[str]) -> sqlite3.Cursor:
            return tx.db.execute(MAY_BE_LOST.format(marks=marks_for(proxies)), (*proxies, tx.times.steady))

        return self._settle(find)

    def _settle(
        self, find: Callable[[Transaction, set[str]], sqlite3.Cursor], *, without: str | None = None
    ) -> list[Call]:
        """Settle the lost calls among the records that `find` returns for the proxies with a lease. `without`: a proxy
        that ends its lease now."""
        settled = []
        with Transaction(self) as tx:
            now = tx.times
            proxies = self._proxies(now.steady) - {without}
            for known in records.read_all(Call, [record for (record,) in find(tx, proxies)]):
                if (call := states.lost(known, proxies=proxies, now=now)) is not None:
                    put_call(tx, call)
                    settled.append(call)
        return settled

    # --- answers that broke off, for requests that are sent again -----------------------------------------------

    async def _mark(self, session: str, turn_id: str, change: Callable[[Turn, float], Turn | None]) -> bool:
        with Transaction(self) as tx:
            row = tx.db.execute(
                "SELECT seq, record FROM turn WHERE session = ? AND turn_id = ?", (session, turn_id)
            ).fetchone()
            turn = records.read(Turn, row[1]) if row else None
            if turn is None or (turn := change(turn, tx.times.steady)) is None:
                return False
            _put_turn(tx, row[0], turn)
            if turn.delivered:
                tx.db.execute("UPDATE turn SET request_key = NULL WHERE seq = ?", row[:1])
                tx.db.execute("UPDATE turn_key SET delivered = 1 WHERE turn = ?", row[:1])
        return True

    def _may_take(self, tx: Transaction, window: float) -> Callable[[float | None, str | None], bool]:
        """Returns whether a retry may take an answer, from the time it broke off and its proxy."""
        now = tx.times.steady
        last_alive = dict(tx.db.execute("SELECT proxy_id, seen_at FROM proxy"))
        return partial(
            rules.can_be_retaken, proxies=self._proxies(now), last_alive=last_alive, window=window, steady=now
        )

    async def take_over(
        self, session: str, request_key: bytes, *, window: float, proxy_id: str
    ) -> tuple[Turn, list[Call]] | None:
        # most requests are sent once: nothing is written for them
        if not request_key or not self._rows(
            "SELECT 1 FROM turn WHERE session = ? AND request_key = ?", session, request_key
        ):
            return None
        with Transaction(self) as tx:
            now, may_take = tx.times, self._may_take(tx, window)
            proxies = self._proxies(now.steady)
            rows = tx.db.execute(BY_KEY, (session, request_key))
            turns = ((seq, turn) for seq, data in rows if (turn := records.read(Turn, data)) is not None)
            seq, turn = next((one for one in turns if may_take(one[1].broke_off, one[1].proxy_id)), (0, None))
            if turn is None:
                return None
            turn = rules.taken_over(turn, proxy_id)
            _put_turn(tx, seq, turn)
            calls = []
            found = tx.db.execute("SELECT record FROM call WHERE turn = ? ORDER BY seq", (seq,)).fetchall()
            for call in self._with_parts([*records.read_all(Call, (data for (data,) in found))]):
                after = states.lost(call, proxies=proxies | {proxy_id}, now=now)
                after = after or states.moved(call, proxy_id=proxy_id, now=now)
                if after is not None:
                    put_call(tx, after)
                calls.append(after or call)
        return turn, calls

    async def mark_handed_over(self, session: str, response_id: str) -> None:
        with Transaction(self) as tx:
            forget_answer(tx, session, response_id)

    async def mark_not_handed_over(self, session: str, response_id: str) -> None:
        with Transaction(self) as tx:
            tx.db.execute(
                "UPDATE unsent SET broke_off = ? WHERE session = ? AND response_id = ? AND broke_off IS NULL",
                (tx.times.steady, session, response_id),
            )

    async def take_answer(
        self, session: str, key: bytes, *, window: float, proxy_id: str, waits: bool = True
    ) -> tuple[str, Document | None] | None:
        if not self._rows("SELECT 1 FROM unsent WHERE session = ? AND key = ?", session, key):
            return None  # as for nearly every request: nothing is written for them
        with Transaction(self) as tx:
            may_take = self._may_take(tx, window)
            rows = tx.db.execute(
                "SELECT seq, broke_off, proxy_id FROM unsent WHERE session = ? AND key = ? ORDER BY seq DESC",
                (session, key),
            )
            seq = next((seq for seq, broke_off, proxy in rows.fetchall() if may_take(broke_off, proxy)), None)
            if seq is None:
                return None
            ((response_id, answer),) = tx.db.execute(
                "UPDATE unsent SET broke_off = NULL, proxy_id = ? WHERE seq = ? RETURNING response_id, answer",
                (proxy_id, seq),
            )
        return response_id, pydantic_core.from_json(answer)


def _saw_proxy(tx: Transaction, proxy_id: str) -> None:
    """Store that the proxy was alive until now. Unlike its lease, this is needed after the process has ended."""
    tx.db.execute("INSERT OR REPLACE INTO proxy VALUES (?, ?)", (proxy_id, tx.times.steady))


def put_call(tx: Transaction, call: Call, *, quietly: bool = False) -> None:
    """Replace the call of the same id; `quietly`: without an event."""
    record = call.model_dump_json()
    stored = records.versioned(record)
    tx.db.execute(
        "UPDATE call SET status = ?, claimable_at = ?, proxy_id = ?, record = ? WHERE call_id = ?",
        (call.status, *states.indexed(call), stored, call.call_id),
    )
    if call.parts:
        tx.db.execute("UPDATE call SET parts = ? WHERE call_id = ?", (records.parts_text(call), call.call_id))
    # read again by the call's next change, and by the chat's next request
    records.remember(call.model_copy(update={"parts": []}) if call.parts else call, stored)
    tx.calls.append(call)
    tx.touch(call.session, [call.turn_id])
    if not quietly:
        tx.record(call.session, "call.updated", record)


def forget_answer(tx: Transaction, session: str, response_id: str) -> None:
    tx.db.execute("DELETE FROM unsent WHERE session = ? AND response_id = ?", (session, response_id))


def _put_turn(tx: Transaction, seq: int, turn: Turn) -> None:
    record = turn.model_dump_json()
    tx.db.execute("UPDATE turn SET record = ? WHERE seq = ?", (records.versioned(record), seq))
    tx.touch(turn.session, [turn.turn_id])
    tx.record(turn.session, "turn.updated", record)
