"""The ledger in SQLite: turns, and the keys they are found by. A mixin: `SqliteStore` is made of it."""

import itertools
import sqlite3
from collections.abc import Collection, Sequence

from store.backends import _rules as rules
from store.backends import _states as states
from store.backends._sqlite_base import Rows, SqliteBase, Transaction, batches
from store.base import MATCHES
from store.models import Call, Found, Page, Turn


class SqliteLedger(SqliteBase):
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


def _add_keys(db: sqlite3.Connection, turn: Turn, seq: int | None, keys: Sequence[bytes]) -> None:
    if keys:
        db.executemany(
            "INSERT OR IGNORE INTO turn_key VALUES (?, ?, ?, ?)",
            [(turn.session, key, turn.delivered, seq) for key in keys],
        )
