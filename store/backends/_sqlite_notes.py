"""Notes of turns without calls in SQLite: one small row for a turn with new words, as nearly all have.

The keys of one turn have a common beginning (`HEAD`), and are packed into one row under it. If other keys with the same
beginning are noted, because another chat has the same words, each key gets a separate row, and the empty packed row
stays as a mark.

A mixin of `SqliteStore`.
"""

import hashlib
import sqlite3
from collections.abc import Collection, Iterator, Sequence

import msgspec

from store.backends._sqlite_base import SqliteBase
from store.backends._sqlite_transaction import Transaction, batches
from store.base import BATCH

HEAD = 6
"""The number of bytes that the keys of one turn have in common."""

OWN, OTHER = 16, 22
"""Bytes of a turn's first key, and of its other keys with the same beginning."""

_NOTE = "INSERT INTO plain_key VALUES (?, ?, ?, ?) ON CONFLICT DO UPDATE SET noted = excluded.noted"

_HOUR = 3600
"""Seconds. The resolution of the times of notes."""

_LOOKED_AT = 1024
"""The number of rows that one `expire` checks: if many are old, it is called again soon."""


class SqliteNotes(SqliteBase):
    _looked_at: tuple[str, bytes] = ("", b"")  # the last row

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
