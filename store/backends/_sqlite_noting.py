"""Turns without calls in SQLite: noted at once, written to the database together a moment later, and expired.

A mixin of `SqliteStore`.
"""

import asyncio
import contextlib
import logging
from collections.abc import Collection, Sequence

from store.backends import _sqlite_notes as notes
from store.backends._note_log import PendingNote
from store.backends._sqlite_base import SqliteBase
from store.backends._sqlite_transaction import Transaction, batches
from store.base import BATCH, StoreUnavailable

logger = logging.getLogger(__name__)

MOMENT = 0.05
"""Seconds after which notes are written, unless another write has included them meanwhile."""

MANY = 64
"""The number of notes that are written at once: few enough not to stall the event loop."""

MAX_NOTES = 1024
"""The number of notes that may wait for a database that cannot be written."""

_MAX_PAUSE = 5.0
"""The longest pause between two tries, in seconds."""

_HOUR = 3600
"""Seconds. The resolution of the times of notes."""

_LOOKED_AT = 1024
"""The number of rows that one `expire` checks: if many are old, it is called again soon."""


class SqliteNoting(SqliteBase):
    _due: asyncio.TimerHandle | None = None
    _pause = MOMENT
    _looked_at: tuple[str, bytes] = ("", b"")  # the last row

    async def save_plain(self, session: str, keys: Sequence[bytes], chain: bytes = b"") -> None:
        self._check_writable()
        log = self._notes
        assert log is not None, "it is open"
        if log.notes and not len(log.notes) % MANY:
            try:
                self._write_notes_now()
            except StoreUnavailable:
                if len(log.notes) >= MAX_NOTES:
                    raise
        try:
            log.add(PendingNote(session, int(self.clock() // _HOUR), keys, chain))
        except OSError as error:
            raise StoreUnavailable(f"store {self.path}: {error}") from error
        self._note(session, (), keys)
        if self._due is None:
            self._write_later()

    async def close(self) -> None:
        if self._due is not None:
            self._due.cancel()
        self._due, self._pause = None, MOMENT
        await super().close()

    def _write_later(self) -> None:
        with contextlib.suppress(RuntimeError):  # without an event loop, the next write includes them
            self._due = asyncio.get_running_loop().call_later(self._pause, self._write_due)

    def _write_due(self) -> None:
        self._due = None
        try:
            if self.busy_timeout:
                self.set_busy_timeout(0)
            self._write_notes_now()
        except StoreUnavailable as error:
            if self._pause == MOMENT:
                logger.warning("notes of answers without calls are written later: %s", error)
            self._pause = min(2 * self._pause, _MAX_PAUSE)
            self._write_later()
        else:
            self._pause = MOMENT

    def _plain(self, session: str, keys: Collection[bytes]) -> dict[bytes, bytes]:
        """Those of the keys that turns without calls have, each with its chain."""
        rows: dict[bytes, bytes] = {}
        for _, asked in batches({*keys, *{key[: notes.HEAD] for key in keys}}):
            statement = (
                f"WITH asked (key) AS (VALUES {','.join(['(?)'] * len(asked))})"
                " SELECT key, chain FROM asked CROSS JOIN plain_key USING (key) WHERE session = ?"
            )
            rows.update(self._rows(statement, *asked, session))
        plain: dict[bytes, bytes] = {}
        for key in keys if rows else ():
            if (chain := notes.chain_of(key, rows.get(key), rows.get(key[: notes.HEAD]))) is not None:
                plain[key] = chain
        if self._notes and (chains := self._notes.chains(session)):  # those that are not in the database yet
            for key in keys:
                if (chain := chains.get(key)) is not None:
                    plain[key] = chain if plain.get(key, chain) == chain else b""
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
        """Delete old notes among the next rows: each call checks some rows, going round through the whole table."""
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
