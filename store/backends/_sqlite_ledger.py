"""The ledger in SQLite: turns and their keys. A mixin of `SqliteStore`."""

import itertools
import sqlite3
from collections.abc import Collection, Iterator, Sequence

from store.backends import _media as media
from store.backends import _records as records
from store.backends import _rules as rules
from store.backends import _states as states
from store.backends._changes import Changes
from store.backends._sqlite_base import Rows
from store.backends._sqlite_notes import SqliteNotes
from store.backends._sqlite_transaction import Transaction, batches
from store.base import MATCHES
from store.models import Call, LedgerChanges, LedgerMatches, Page, Turn

_BEST = (
    "SELECT key, delivered, turn FROM turn_key WHERE session = ? AND key = ? ORDER BY delivered DESC, turn DESC LIMIT ?"
)


class SqliteLedger(SqliteNotes):
    async def save_turn(self, turn: Turn, calls: Sequence[Call] = (), keys: Sequence[bytes] = ()) -> None:
        rules.check_calls(turn, calls)
        with Transaction(self) as tx:
            row = tx.db.execute(
                "SELECT seq, record, request_key FROM turn WHERE session = ? AND turn_id = ?",
                (turn.session, turn.turn_id),
            ).fetchone()
            old = records.state_of(row[1]) if row else None
            turn = rules.replaced(old, turn)
            retry_key = rules.retry_key(turn)
            record = turn.model_dump_json()
            stored = records.versioned(record)
            if row is None:
                seq = tx.db.execute(
                    "INSERT INTO turn (session, turn_id, user_key, bound, created_at, record, request_key)"
                    " VALUES (?, ?, ?, ?, ?, ?, ?)",
                    (turn.session, turn.turn_id, turn.user_key, turn.bound, turn.created_at, stored, retry_key),
                ).lastrowid
                tx.record(turn.session, "turn.created", record)
            else:
                seq = row[0]
                tx.db.execute("UPDATE turn SET user_key = ?, record = ? WHERE seq = ?", (turn.user_key, stored, seq))
                if row[2] != retry_key:  # most writes do not touch its index
                    tx.db.execute("UPDATE turn SET request_key = ? WHERE seq = ?", (retry_key, seq))
                if old and old.delivered != turn.delivered:
                    tx.db.execute("UPDATE turn_key SET delivered = ? WHERE turn = ?", (turn.delivered, seq))
                tx.record(turn.session, "turn.updated", record)
            self._add_keys(tx.db, turn, seq, keys)
            for call in calls:
                data = call.model_dump_json()
                if tx.db.execute(
                    "INSERT INTO call (call_id, session, turn, name, status, claimable_at, proxy_id, record, parts)"
                    " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (call_id) DO NOTHING",
                    (
                        call.call_id,
                        call.session,
                        seq,
                        call.name,
                        call.status,
                        *states.indexed(call),
                        records.versioned(data),
                        media.parts_text(call),
                    ),
                ).rowcount:
                    tx.calls.append(call)
                    tx.record(call.session, "call.created", data)
            tx.touch(turn.session, [turn.turn_id], [*keys, turn.user_key])

    async def look_up(
        self,
        session: str,
        *,
        turn_ids: Collection[str] = (),
        keys: Collection[bytes] = (),
        known: Collection[bytes] = (),
        matches: int = MATCHES,
    ) -> LedgerMatches:
        found = LedgerMatches(known=self._known(session, known))
        if not keys and not turn_ids:
            return found  # as for nearly every request
        turns_by_key: dict[bytes, list[int]] = {}
        if keys:
            found.plain = self._plain(session, keys)
            turns_by_key = self._turns_by_key(session, keys, matches + 1)
        for key, best in turns_by_key.items():
            if len(best) > matches:
                best.pop()
                found.crowded.add(key)
        turns: dict[int, Turn] = {}
        for marks, seqs in batches(set(itertools.chain(*turns_by_key.values()))):
            turns.update(_readable(self._rows(f"SELECT seq, record FROM turn WHERE seq IN ({marks})", *seqs)))
        missing = set(turn_ids).difference([turn.turn_id for turn in turns.values()])
        for marks, ids in batches(missing):
            statement = f"SELECT seq, record FROM turn WHERE session = ? AND turn_id IN ({marks})"
            turns.update(_readable(self._rows(statement, session, *ids)))
        for key, best in turns_by_key.items():
            if ids := [turns[seq].turn_id for seq in best if seq in turns]:
                found.by_key[key] = ids
        found.turns = {turn.turn_id: turn for turn in turns.values()}
        for marks, seqs in batches(turns):
            rows = self._rows(f"SELECT record FROM call WHERE turn IN ({marks}) ORDER BY seq", *seqs)
            calls = self._with_parts([*records.read_all(Call, (text for (text,) in rows))])
            found.calls.update((call.call_id, call) for call in calls)
        return found

    def _known(self, session: str, keys: Collection[bytes]) -> set[bytes]:
        """The keys that any turn with calls has."""
        found: set[bytes] = set()
        for marks, asked in batches(keys):
            statement = f"SELECT DISTINCT key FROM turn_key WHERE session = ? AND key IN ({marks})"
            found.update(key for (key,) in self._rows(statement, session, *asked))
        return found

    def _turns_by_key(self, session: str, keys: Collection[bytes], most: int) -> dict[bytes, list[int]]:
        """The `seq` of the turns with these keys: at most `most` for each key, the best first."""
        turns: dict[bytes, list[int]] = {}
        for marks, asked in batches(keys):
            limit = most * len(asked)
            statement = f"SELECT key, delivered, turn FROM turn_key WHERE session = ? AND key IN ({marks}) LIMIT ?"
            rows = self._rows(statement, session, *asked, limit)
            if len(rows) == limit:  # some keys may have thousands
                rows = list(itertools.chain(*(self._rows(_BEST, session, key, most) for key in set(asked))))
            for key, _, turn in sorted(rows, reverse=True):
                of_key = turns.setdefault(key, [])
                if len(of_key) < most:
                    of_key.append(turn)
        return turns

    def _add_keys(self, db: sqlite3.Connection, turn: Turn, seq: int | None, keys: Sequence[bytes]) -> None:
        db.executemany(
            "INSERT OR IGNORE INTO turn_key VALUES (?, ?, ?, ?)",
            [(turn.session, key, turn.delivered, seq) for key in keys],
        )

    async def bind(
        self, session: str, user_key: bytes, keys: Sequence[bytes], *, exclude: Collection[str] = ()
    ) -> str | None:
        if not user_key:
            return None
        with Transaction(self) as tx:
            row = tx.db.execute(
                "SELECT seq, record FROM turn WHERE session = ? AND user_key = ? AND bound = 0 AND user_key <> x''"
                " AND turn_id NOT IN (SELECT value FROM json_each(?)) ORDER BY seq DESC LIMIT 1",
                (session, user_key, rules.json_text(list(exclude))),
            ).fetchone()
            if row is None:
                return None
            if (turn := records.read(Turn, row[1])) is None:
                return None
            turn = turn.model_copy(update={"bound": True})
            record = turn.model_dump_json()
            tx.db.execute("UPDATE turn SET bound = 1, record = ? WHERE seq = ?", (records.versioned(record), row[0]))
            self._add_keys(tx.db, turn, row[0], keys)
            tx.record(session, "turn.updated", record)
            tx.touch(session, [turn.turn_id], keys)
        return turn.turn_id

    def revision(self, session: str) -> int | None:
        if self.read_only:
            return None
        if (known := self._writes.get(session)) is not None:
            return known.revision
        rows = self._rows("SELECT 1 FROM turn WHERE session = ? LIMIT 1", session)
        known = Changes(next(self._next_revision) if rows else 0)
        self._writes.put(session, known, known.size)
        return known.revision

    def changes(self, session: str, since: int) -> LedgerChanges | None:
        if (changes := self._writes.get(session)) is None:
            return None
        return LedgerChanges() if since == changes.revision else changes.since(since, changes.revision)

    async def turns(self, session: str, *, limit: int = 100, cursor: str | None = None) -> Page[Turn]:
        rules.check_limit(limit)
        rows = self._rows(
            "SELECT seq, record FROM turn WHERE session = ? AND seq > ? ORDER BY seq LIMIT ?",
            session,
            rules.place("turn", cursor),
            limit + 1,
        )
        return rules.page_of([(seq, records.read(Turn, record)) for seq, record in rows], "turn", limit)


def _readable(rows: Rows) -> Iterator[tuple[int, Turn]]:
    return ((seq, turn) for seq, record in rows if (turn := records.read(Turn, record)) is not None)
