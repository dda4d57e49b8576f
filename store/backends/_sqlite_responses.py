"""Responses and conversations in SQLite. A mixin of `SqliteStore`."""

from collections.abc import Collection
from contextlib import suppress
from typing import Any

import pydantic_core

from store.backends import _records as records
from store.backends import _rules as rules
from store.backends._records import document_text
from store.backends._sqlite_base import SqliteBase, Transaction, batches
from store.backends._sqlite_calls import forget_answer
from store.base import BATCH, ConversationMoved, UnknownResponse
from store.models import Document, GivenCall, Response, UndeliveredAnswer

HISTORY = """
    WITH RECURSIVE chain (seq, previous, is_last) AS (
        SELECT seq, previous, 1 FROM response WHERE session = ? AND response_id = ?
        UNION ALL
        SELECT response.seq, response.previous, 0 FROM chain JOIN response ON response.seq = chain.previous
    )
    SELECT record, iif(is_last, tools, NULL), iif(is_last, document, NULL)
    FROM chain JOIN response USING (seq) ORDER BY seq
"""
"""A response is saved after the one that it follows, so `seq` gives the order of a thread."""

DELETE_UNREFERENCED = """
    DELETE FROM response WHERE seq = ? AND document IS NULL
    AND NOT EXISTS (SELECT 1 FROM response AS next WHERE next.previous = response.seq)
    AND NOT EXISTS (SELECT 1 FROM conversation WHERE head = response.seq)
    RETURNING previous
"""


class SqliteResponses(SqliteBase):
    async def add_response(
        self, response: Response, *, head: str | None = None, undelivered: UndeliveredAnswer | None = None
    ) -> None:
        rules.check_head(response, head)
        session, name = response.session, response.conversation
        record = response.model_dump_json(exclude={"tools", "document"})
        tools, document = _text(response.tools), _text(response.document)
        answer = None if undelivered is None else document_text(undelivered.answer)
        calls = [(call_id, _text(part)) for call_id, part in response.calls.items()]
        with Transaction(self) as tx:
            if name is not None and (current := self._head(session, name)) != head:
                raise ConversationMoved(name, current, head)
            ((seq,),) = tx.db.execute("SELECT coalesce(max(seq), 0) + 1 FROM response")
            previous, thread = None, seq
            if response.previous is not None:
                previous, thread = self._response(session, response.previous, "seq, thread")
            if not tx.db.execute(
                "INSERT INTO response (seq, session, response_id, previous, thread, record, tools, document)"
                " VALUES (?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (session, response_id) DO NOTHING",
                (seq, session, response.response_id, previous, thread, records.versioned(record), tools, document),
            ).rowcount:
                raise rules.already_exists(response)
            tx.db.execute("INSERT OR REPLACE INTO thread VALUES (?, ?, ?)", (thread, session, tx.now))
            if calls:
                tx.db.executemany(
                    "INSERT OR REPLACE INTO given_call VALUES (?, ?, ?, ?)",
                    [(session, call_id, seq, part) for call_id, part in calls],
                )
            if name is not None:
                tx.db.execute("INSERT OR REPLACE INTO conversation VALUES (?, ?, ?)", (session, name, seq))
            if undelivered is not None:
                tx.db.execute(
                    "INSERT INTO unsent (session, response_id, key, proxy_id, kept_at, answer)"
                    " VALUES (?, ?, ?, ?, ?, ?)",
                    (session, response.response_id, undelivered.key, undelivered.proxy_id, tx.now, answer),
                )

    async def take_back(self, session: str, response_id: str, *, head: str | None = None) -> None:
        with Transaction(self) as tx:
            (seq,) = self._response(session, response_id, "seq")
            if head is None:
                tx.db.execute("DELETE FROM conversation WHERE head = ?", (seq,))
            else:
                (before,) = self._response(session, head, "seq")
                tx.db.execute("UPDATE conversation SET head = ? WHERE head = ?", (before, seq))
            _delete(tx, session, response_id, seq)

    async def response(self, session: str, response_id: str) -> Response:
        return _response_of(*self._response(session, response_id, "record, tools, document"))

    async def responses(self, session: str, response_ids: Collection[str]) -> dict[str, Response]:
        found = {}
        for marks, ids in batches(response_ids):
            rows = self._rows(
                "SELECT response_id, record, tools, document FROM response"
                f" WHERE session = ? AND response_id IN ({marks})",
                session,
                *ids,
            )
            for response_id, *columns in rows:
                with suppress(UnknownResponse):  # unreadable
                    found[response_id] = _response_of(*columns)
        return found

    def _response(self, session: str, response_id: str, columns: str) -> tuple[Any, ...]:
        rows = self._rows(f"SELECT {columns} FROM response WHERE session = ? AND response_id = ?", session, response_id)
        if not rows:
            raise rules.unknown_response(session, response_id)
        return rows[0]

    async def conversation(self, session: str, name: str) -> str | None:
        return self._head(session, name)

    async def lock_conversation(self, session: str, name: str, *, holder: str, proxy_id: str) -> bool:
        # in memory, as the leases of proxies are: no other process writes
        self._check_writable()
        held_by, proxy = self._conversation_locks.get((session, name), (holder, proxy_id))
        if held_by != holder and self._leases.get(proxy, 0.0) > self._clocks.steady():
            return False
        self._conversation_locks[session, name] = holder, proxy_id
        return True

    async def unlock_conversation(self, session: str, name: str, *, holder: str) -> None:
        if self._conversation_locks.get((session, name), ("", ""))[0] == holder:
            del self._conversation_locks[session, name]

    def _head(self, session: str, name: str) -> str | None:
        rows = self._rows(
            "SELECT response_id FROM conversation JOIN response ON seq = head"
            " WHERE conversation.session = ? AND name = ?",
            session,
            name,
        )
        return rows[0][0] if rows else None

    async def history(self, session: str, response_id: str) -> list[Response]:
        rows = self._rows(HISTORY, session, response_id)
        if not rows:
            raise rules.unknown_response(session, response_id)
        return [_response_of(*row) for row in rows]

    async def given_calls(self, session: str, call_ids: Collection[str]) -> dict[str, GivenCall]:
        given = {}
        for marks, ids in batches(call_ids):
            for call_id, part, response_id in self._rows(
                "SELECT call_id, part, response_id FROM given_call JOIN response ON seq = response"
                f" WHERE given_call.session = ? AND call_id IN ({marks})",
                session,
                *ids,
            ):
                given[call_id] = GivenCall(pydantic_core.from_json(part), response_id)
        return given

    async def delete_response(self, session: str, response_id: str) -> None:
        with Transaction(self) as tx:
            seq, is_deleted = self._response(session, response_id, "seq, document IS NULL")
            if is_deleted:
                raise rules.unknown_response(session, response_id)
            _delete(tx, session, response_id, seq)

    def _expire_responses(self, tx: Transaction) -> int:
        """Returns the number of deleted responses."""
        rows = tx.db.execute("SELECT seq FROM thread WHERE used_at < ? LIMIT ?", (tx.now - self.ttl, BATCH // 8))
        threads = (rules.json_text([seq for (seq,) in rows]),)
        listed = "(SELECT value FROM json_each(?))"
        old = f"(SELECT seq FROM response WHERE thread IN {listed})"
        tx.db.execute(f"DELETE FROM given_call WHERE response IN {old}", threads)
        tx.db.execute(f"DELETE FROM conversation WHERE head IN {old}", threads)
        deleted = tx.db.execute(f"DELETE FROM response WHERE thread IN {listed}", threads).rowcount
        tx.db.execute(f"DELETE FROM thread WHERE seq IN {listed}", threads)
        tx.db.execute("DELETE FROM unsent WHERE kept_at < ?", (tx.now - min(self.ttl, rules.ANSWERS_KEPT),))
        return deleted


def _delete(tx: Transaction, session: str, response_id: str, seq: int) -> None:
    """Delete the document of a response, and the whole response once nothing references it."""
    tx.db.execute("UPDATE response SET document = NULL WHERE seq = ?", (seq,))
    forget_answer(tx, session, response_id)
    while rows := tx.db.execute(DELETE_UNREFERENCED, (seq,)).fetchall():
        tx.db.execute("DELETE FROM given_call WHERE response = ?", (seq,))
        ((previous,),) = rows
        if previous is None:
            tx.db.execute("DELETE FROM thread WHERE seq = ?", (seq,))
        seq = previous


def _text(document: Document | None) -> str | None:
    return None if document is None else document_text(document)


def _response_of(record: str, tools: str | None, document: str | None) -> Response:
    if (response := records.read(Response, record)) is None:
        raise UnknownResponse("a response cannot be read")
    if tools is None and document is None:
        return response
    columns = {"tools": tools, "document": document}
    return response.model_copy(
        update={name: pydantic_core.from_json(text) for name, text in columns.items() if text is not None}
    )
