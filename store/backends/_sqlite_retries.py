"""Answers that broke off, in SQLite, for requests that are sent again. A mixin of `SqliteStore`."""

from collections.abc import Callable
from functools import partial

import pydantic_core

from store.backends import _records as records
from store.backends import _rules as rules
from store.backends import _states as states
from store.backends._sqlite_calls import SqliteCalls, put_call
from store.backends._sqlite_transaction import Transaction
from store.models import Call, Document, Turn

BY_KEY = """
    SELECT seq, record FROM turn WHERE session = ? AND request_key = ? ORDER BY seq DESC
"""


class SqliteRetries(SqliteCalls):
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
        self, session: str, key: bytes, *, window: float, proxy_id: str
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


def forget_answer(tx: Transaction, session: str, response_id: str) -> None:
    tx.db.execute("DELETE FROM unsent WHERE session = ? AND response_id = ?", (session, response_id))


def _put_turn(tx: Transaction, seq: int, turn: Turn) -> None:
    record = turn.model_dump_json()
    tx.db.execute("UPDATE turn SET record = ? WHERE seq = ?", (records.versioned(record), seq))
    tx.touch(turn.session, [turn.turn_id])
    tx.record(turn.session, "turn.updated", record)
