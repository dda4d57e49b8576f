"""The ledger in SQLite: turns and their keys, and notes of turns without calls. A mixin of `SqliteStore`."""

import hashlib
import itertools
import sqlite3
from collections.abc import Collection, Iterator, Sequence

import msgspec

from store.backends import _records as records
from store.backends import _rules as rules
from store.backends import _states as states
from store.backends._changes import Changes
from store.backends._sqlite_base import Rows, SqliteBase, Transaction, batches
from store.base import BATCH, MATCHES
from store.models import Call, LedgerChanges, LedgerMatches, Page, Turn

HEAD = 6
"""The number of bytes that the keys of one turn have in common."""

OWN, OTHER = 16, 22
"""Bytes of a turn's first key, and of its other keys with the same beginning."""

_NOTE = "INSERT INTO plain_key VALUES (?, ?, ?, ?) ON CONFLICT DO UPDATE SET noted = excluded.noted"

_HOUR = 3600
"""Seconds. The resolution of the times of notes."""

_LOOKED_AT = 1024
"""The number of rows that one `expire` checks: if many are old, it is called again soon."""

_BEST = (
    "SELECT key, delivered, turn FROM turn_key WHERE session = ? AND key = ? ORDER BY delivered DESC, turn DESC LIMIT ?"
)


class SqliteLedger(SqliteBase):
    _looked_at: tuple[str, bytes] = ("", b"")  # the last row that `_expire_notes` checked

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
                    "INSERT INTO turn (session, turn_id, created_at, record, request_key) VALUES (?, ?, ?, ?, ?)",
                    (turn.session, turn.turn_id, turn.created_at, stored, retry_key),
                ).lastrowid
                tx.record(turn.session, "turn.created", record)
            else:
                seq = row[0]
                tx.db.execute("UPDATE turn SET record = ? WHERE seq = ?", (stored, seq))
                if row[2] != retry_key:  # most writes do not touch its index
                    tx.db.execute("UPDATE turn SET request_key = ? WHERE seq = ?", (retry_key, seq))
                if old and old.delivered != turn.delivered:
                    tx.db.execute("UPDATE turn_key SET delivered = ? WHERE turn = ?", (turn.delivered, seq))
                tx.record(turn.session, "turn.updated", record)
            _add_keys(tx.db, turn, seq, keys)
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
                        records.parts_text(call),
                    ),
                ).rowcount:
                    tx.calls.append(call)
                    tx.record(call.session, "call.created", data)
            tx.touch(turn.session, [turn.turn_id], keys)

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

    # --- notes of turns without calls -------------------------------------------------------------------------
    #
    # One small row for a turn with new words, as nearly all have. The keys of one turn have a common beginning
    # (`HEAD`), and are packed into one row under it. If other keys with the same beginning are noted, because another
    # chat has the same words, each key gets a separate row, and the empty packed row stays as a mark.

    async def save_plain(self, session: str, keys: Sequence[bytes], chain: bytes = b"") -> None:
        with Transaction(self) as tx:
            _save(tx.db, session, int(tx.now // _HOUR), keys, chain)
            tx.touch(session, (), keys)

    def _take_over_notes(self) -> None:
        """Write the notes that an earlier version kept in a file beside the database: a lost note may cause a wrong
        hit."""
        path = self.path.with_name(self.path.name + "-notes")
        if path.exists():
            with Transaction(self) as tx:
                for note in _old_notes(path.read_bytes(), self.secret):
                    _save(tx.db, *note)
            path.unlink()

    def _plain(self, session: str, keys: Collection[bytes]) -> dict[bytes, bytes]:
        """The keys that turns without calls have, each with its chain."""
        rows: dict[bytes, bytes] = {}
        for _, asked in batches({*keys, *{key[:HEAD] for key in keys}}):
            statement = (
                f"WITH asked (key) AS (VALUES {','.join(['(?)'] * len(asked))})"
                " SELECT key, chain FROM asked CROSS JOIN plain_key USING (key) WHERE session = ?"
            )
            rows.update(self._rows(statement, *asked, session))
        plain: dict[bytes, bytes] = {}
        for key in keys if rows else ():
            if (chain := _chain_of(key, rows.get(key), rows.get(key[:HEAD]))) is not None:
                plain[key] = chain
        return plain

    def _expire_keys(self, tx: Transaction, turns: tuple[str]) -> int:
        """Keep the keys of expiring turns (JSON: their `seq`) as notes: a later chat with the same words must not be
        taken for another one. Returns the number of deleted notes."""
        tx.db.execute(
            "INSERT INTO plain_key SELECT session, key, ?, x'' FROM turn_key"
            " WHERE turn IN (SELECT value FROM json_each(?))"
            " ON CONFLICT DO UPDATE SET noted = excluded.noted, chain = x''",
            (int(tx.now // _HOUR), *turns),
        )
        return self._expire_notes(tx, int((tx.now - 2 * self.ttl) // _HOUR))

    def _expire_notes(self, tx: Transaction, horizon: int) -> int:
        """Delete old notes among the next rows: successive calls go through the whole table, and start again. An index
        by age would cost each note a second page."""
        statement = (
            "SELECT session, key, noted FROM plain_key WHERE (session, key) > (?, ?) ORDER BY session, key LIMIT ?"
        )
        rows = tx.db.execute(statement, (*self._looked_at, _LOOKED_AT)).fetchall()
        old = [(session, key) for session, key, noted in rows if noted < horizon][: 2 * BATCH]
        if len(old) == 2 * BATCH:
            self._looked_at = old[-1]
        else:
            self._looked_at = rows[-1][:2] if len(rows) == _LOOKED_AT else ("", b"")
        tx.db.executemany("DELETE FROM plain_key WHERE session = ? AND key = ?", old)
        return len(old)


def _add_keys(db: sqlite3.Connection, turn: Turn, seq: int | None, keys: Sequence[bytes]) -> None:
    db.executemany(
        "INSERT OR IGNORE INTO turn_key VALUES (?, ?, ?, ?)",
        [(turn.session, key, turn.delivered, seq) for key in keys],
    )


def _readable(rows: Rows) -> Iterator[tuple[int, Turn]]:
    return ((seq, turn) for seq, record in rows if (turn := records.read(Turn, record)) is not None)


def _save(db: sqlite3.Connection, session: str, noted: int, keys: Sequence[bytes], chain: bytes) -> None:
    head = keys[0][:HEAD]
    mine = [(keys[0], chain)]
    rows: list[tuple[bytes, bytes]] = []
    for key in keys[1:]:
        (mine if len(key) == OTHER and key.startswith(head) else rows).append((key, b""))
    if len(keys[0]) == OWN:
        packed = _packed(mine)
        there = db.execute(f"{_NOTE} RETURNING chain", (session, head, noted, packed)).fetchone()[0]
        if there == packed:
            mine = []
        elif there:
            rows += _unpacked(head, there)
            db.execute("UPDATE plain_key SET chain = x'' WHERE session = ? AND key = ?", (session, head))
    if rows or mine:
        db.executemany(
            f"{_NOTE}, chain = iif(chain = excluded.chain, chain, x'')",
            [(session, key, noted, own) for key, own in (*rows, *mine)],
        )


def _chain_of(key: bytes, own: bytes | None, packed: bytes | None) -> bytes | None:
    """The chain noted with a key; None if the key is not noted. `own`: the chain of the key's own row; `packed`: the
    row of its beginning. Both are None if the row does not exist."""
    if packed and len(key) in (OWN, OTHER):
        for packed_key, chain in _unpacked(key[:HEAD], packed):
            if packed_key == key:
                return chain if own is None or own == chain else b""
    return own


def _packed(notes: Sequence[tuple[bytes, bytes]]) -> bytes:
    chain = notes[0][1]
    return b"%c%b%b" % (len(chain), chain, b"".join([key[HEAD:] for key, _ in notes]))


def _unpacked(head: bytes, packed: bytes) -> Iterator[tuple[bytes, bytes]]:
    """The packed keys, each with its chain."""
    start = 1 + packed[0]
    end = start + OWN - HEAD
    yield head + packed[start:end], packed[1:start]
    for at in range(end, len(packed), OTHER - HEAD):
        yield head + packed[at : at + OTHER - HEAD], b""


def _old_notes(data: bytes, secret: bytes) -> Iterator[tuple[str, int, list[bytes], bytes]]:
    """The notes in a file of an earlier version. A length and a keyed digest precede each note, so that neither an
    incomplete note nor a note of another store is read."""
    decode = msgspec.msgpack.Decoder(tuple[str, int, list[bytes], bytes]).decode
    start = 0
    while (body := start + 12) < (end := body + int.from_bytes(data[start : start + 4])) <= len(data):
        if data[start + 4 : body] != hashlib.blake2b(data[body:end], key=secret, digest_size=8).digest():
            return
        yield decode(data[body:end])
        start = end
