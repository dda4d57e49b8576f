"""Notes of turns without calls in SQLite: one small row for a turn whose words are new, as nearly all are.

The keys of one turn have a common beginning (`HEAD`), and are packed into one row under it. If other keys with the same
beginning are noted, since the same words were said elsewhere, each key gets a row of its own, and the packed row stays,
empty, as a mark of that.
"""

import sqlite3
from collections.abc import Iterator, Sequence

from store.backends._note_log import PendingNote

HEAD = 6
"""The number of bytes that the keys of one turn have in common."""

OWN, OTHER = 16, 22
"""Bytes of a turn's first key, and of its other keys with the same beginning."""

_NOTE = "INSERT INTO plain_key VALUES (?, ?, ?, ?) ON CONFLICT DO UPDATE SET noted = excluded.noted"


def save(db: sqlite3.Connection, note: PendingNote) -> None:
    session, noted, keys, chain = note
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
            rows += unpacked(head, there)
            db.execute("UPDATE plain_key SET chain = x'' WHERE session = ? AND key = ?", (session, head))
    if rows or mine:
        db.executemany(
            f"{_NOTE}, chain = iif(chain = excluded.chain, chain, x'')",
            [(session, key, noted, own) for key, own in (*rows, *mine)],
        )


def chain_of(key: bytes, own: bytes | None, packed: bytes | None) -> bytes | None:
    """The chain noted with a key; None if the key is not noted. `own`: the chain of the key's own row; `packed`: the
    row of its beginning. Both are None if there is no such row."""
    if packed and len(key) in (OWN, OTHER):
        for packed_key, chain in unpacked(key[:HEAD], packed):
            if packed_key == key:
                return chain if own is None or own == chain else b""
    return own


def _packed(notes: Sequence[tuple[bytes, bytes]]) -> bytes:
    chain = notes[0][1]
    return b"%c%b%b" % (len(chain), chain, b"".join([key[HEAD:] for key, _ in notes]))


def unpacked(head: bytes, packed: bytes) -> Iterator[tuple[bytes, bytes]]:
    """The packed keys, each with its chain."""
    start = 1 + packed[0]
    end = start + OWN - HEAD
    yield head + packed[start:end], packed[1:start]
    for at in range(end, len(packed), OTHER - HEAD):
        yield head + packed[at : at + OTHER - HEAD], b""
