"""Giving and taking all records, in SQLite. A mixin of `SqliteStore`."""

import json
from typing import Any

import pydantic_core

from store.backends import _records as records
from store.backends import _rules as rules
from store.backends import _sqlite_notes as notes
from store.backends._sqlite_base import KnownSession, Rows
from store.backends._sqlite_ledger import SqliteLedger
from store.backends._sqlite_responses import SqliteResponses
from store.backends._sqlite_transaction import Transaction
from store.exports import HOUR, PAGE, Exported, Kind, Moved, MovedNote, MovedResponse, MovedTurn
from store.models import CachedTools, Call, Record, Response, Session, Turn, UndeliveredAnswer

_NOTES = f"""
    SELECT session, key, noted, chain, (
        SELECT chain FROM plain_key AS packed WHERE packed.session = own.session
        AND length(own.key) > {notes.HEAD} AND packed.key = substr(own.key, 1, {notes.HEAD})
    ) FROM plain_key AS own WHERE (session, key) > (?, ?) ORDER BY session, key LIMIT ?
"""

_RESPONSES = """
    SELECT response.seq, response.session, response_id, record, tools, document, used_at
    FROM response JOIN thread ON thread.seq = thread WHERE response.seq > ? AND used_at >= ?
    ORDER BY response.seq LIMIT ?
"""


class SqliteExports(SqliteLedger, SqliteResponses):
    async def export(self, kind: Kind, *, since: float, after: str | None = None) -> Exported:
        items: list[Moved]
        match kind:
            case "sessions":
                rows = self._rows(
                    "SELECT name, record, name FROM session WHERE name > ? ORDER BY name LIMIT ?", after or "", PAGE
                )
                items, bad = _read(Session, rows)
            case "cached tools":
                rows = self._rows(
                    "SELECT json_array(session, cached_content), record, cached_content FROM cached_tools"
                    " WHERE (session, cached_content) > (?, ?) AND created_at >= ?"
                    " ORDER BY session, cached_content LIMIT ?",
                    *(json.loads(after) if after else ("", "")),
                    since,
                    PAGE,
                )
                items, bad = _read(CachedTools, rows)
            case "turns":
                rows = self._rows(
                    "SELECT seq, record, turn_id FROM turn WHERE seq > ? AND created_at >= ? ORDER BY seq LIMIT ?",
                    int(after or 0),
                    since,
                    PAGE,
                )
                items, bad = self._turns_of(rows)
            case "notes":
                await self._write_notes()
                start = json.loads(after) if after else ("", "")
                rows = self._rows(_NOTES, start[0], bytes.fromhex(start[1]), PAGE)
                items, bad = self._notes_of(rows, since - self.ttl), []
                rows = [(json.dumps((session, key.hex())),) for session, key, *_ in rows]
            case "responses":
                rows = self._rows(_RESPONSES, int(after or 0), since, PAGE)
                items, bad = self._responses_of(rows)
        return Exported(items, bad, str(rows[-1][0]) if len(rows) == PAGE else None)

    def _turns_of(self, rows: Rows) -> tuple[list[Moved], list[str]]:
        items: list[Moved] = []
        bad: list[str] = []
        for seq, text, turn_id in rows:
            if (turn := records.read(Turn, text, log=False)) is None:
                bad.append(turn_id)
                continue
            found = self._rows("SELECT seq, record, call_id FROM call WHERE turn = ? ORDER BY seq", seq)
            calls = [(one[2], records.read(Call, one[1], log=False)) for one in found]
            bad += [call_id for call_id, call in calls if call is None]
            keys = [key for (key,) in self._rows("SELECT DISTINCT key FROM turn_key WHERE turn = ?", seq)]
            items.append(MovedTurn(turn, self._with_parts([call for _, call in calls if call is not None]), keys))
        return items, bad

    def _notes_of(self, rows: Rows, since: float) -> list[Moved]:
        items: list[Moved] = []
        for session, key, hours, chain, packed in rows:
            noted = hours * HOUR
            if noted + HOUR <= since:
                continue
            if len(key) != notes.HEAD:
                is_packed = packed and notes.chain_of(key, None, packed) is not None
                if not is_packed:  # otherwise it comes with its packed row
                    items.append(MovedNote(session, key, noted, chain))
            elif chain:
                for one, its_chain in notes.unpacked(key, chain):
                    own = self._rows("SELECT chain FROM plain_key WHERE session = ? AND key = ?", session, one)
                    is_same = not own or own[0][0] == its_chain
                    items.append(MovedNote(session, one, noted, its_chain if is_same else b""))
        return items

    def _responses_of(self, rows: Rows) -> tuple[list[Moved], list[str]]:
        items: list[Moved] = []
        bad: list[str] = []
        for _, session, response_id, record, tools, document, used_at in rows:
            try:
                columns = {"tools": tools, "document": document}
                update = {name: pydantic_core.from_json(text) for name, text in columns.items() if text is not None}
            except ValueError:
                update = None
            response = records.read(Response, record, log=False)
            if response is None or update is None:
                bad.append(response_id)
                continue
            unsent = self._rows(
                "SELECT key, proxy_id, answer FROM unsent WHERE session = ? AND response_id = ?", session, response_id
            )
            answer = None
            if unsent and (session, response_id) not in self._handed_over.answers:
                answer = UndeliveredAnswer(unsent[0][0], unsent[0][1], pydantic_core.from_json(unsent[0][2]))
            head = None if response.conversation is None else self._head(session, response.conversation)
            items.append(MovedResponse(response.model_copy(update=update), head, used_at, answer))
        return items, bad

    async def restore_session(self, session: Session) -> None:
        stored = records.versioned(session.model_dump_json())
        last = self._last_event
        try:
            with Transaction(self) as tx:
                self._last_event = max(last, session.version)  # versions are numbers of events
                tx.db.execute("INSERT OR REPLACE INTO session VALUES (?, ?)", (session.name, stored))
                tx.record(session.name, "session.updated", session.masked().model_dump_json())
                tx.changed.append(session.name)
        except BaseException:
            self._last_event = last
            raise
        self._remember_session(session.name, KnownSession(session), len(stored))

    async def restore_head(self, session: str, name: str, response_id: str | None) -> None:
        with Transaction(self) as tx:
            if response_id is None:
                tx.db.execute("DELETE FROM conversation WHERE session = ? AND name = ?", (session, name))
                return
            rows = self._rows("SELECT seq FROM response WHERE session = ? AND response_id = ?", session, response_id)
            if not rows:
                raise rules.unknown_response(session, response_id)
            tx.db.execute("INSERT OR REPLACE INTO conversation VALUES (?, ?, ?)", (session, name, rows[0][0]))

    async def begin_move(self, secret: bytes) -> None:
        await self._write_notes()
        with Transaction(self) as tx:
            tx.db.execute("INSERT OR REPLACE INTO meta VALUES ('secret', ?)", (secret,))

    async def note_move(self, note: str) -> None:
        with Transaction(self) as tx:
            if note:
                tx.db.execute("INSERT OR REPLACE INTO meta VALUES ('move', ?)", (note,))
            else:
                tx.db.execute("DELETE FROM meta WHERE name = 'move'")

    async def move_note(self) -> str:
        rows = self._rows("SELECT value FROM meta WHERE name = 'move'")
        return str(rows[0][0]) if rows else ""

    async def users(self) -> set[str]:
        return set()

    def steady(self) -> float:
        return self._clocks.steady()


def _read[R: Record](model: type[R], rows: Rows) -> tuple[list[Any], list[str]]:
    """The readable records of rows with a place, a record and a name, and the names of the others."""
    found = [(name, records.read(model, text, log=False)) for _, text, name in rows]
    return [record for _, record in found if record is not None], [name for name, record in found if record is None]
