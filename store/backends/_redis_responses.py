"""Responses, conversations and undelivered answers in Redis. A mixin of `RedisStore`."""

import functools
from collections.abc import Collection
from contextlib import suppress
from typing import Any, NamedTuple, Self

import pydantic_core

from store.backends import _redis_values as values
from store.backends import _rules as rules
from store.backends._records import document_text
from store.backends._redis_base import Transaction, body_of, transact
from store.backends._redis_client import Command, Script
from store.backends._redis_ledger import MayTake, RedisLedger
from store.base import ConversationMoved, UnknownResponse
from store.models import Document, GivenCall, Response, UndeliveredAnswer

history = functools.cache(lambda: Script("_redis_history.lua"))


class Node(NamedTuple):
    """A response's place in its thread. `references`: the number of responses that follow it, and of conversations that
    have or had it as head. `calls`: ids of the calls that it contains."""

    previous: str | None
    thread: str
    references: int
    has_document: bool
    conversation: str | None
    calls: list[str]

    @classmethod
    def read(cls, value: bytes) -> Self:
        """Raises ValueError: it is damaged."""
        previous, thread, references, flags, name, *calls = (text.decode() for text in values.unpack(value)[0])
        return cls(previous or None, thread, int(references), "d" in flags, name if "c" in flags else None, calls)

    def put(self, tx: Transaction, response_id: str) -> None:
        flags = ("d" if self.has_document else "") + ("c" if self.conversation is not None else "")
        strings = (self.previous or "", self.thread, str(self.references), flags, self.conversation or "", *self.calls)
        tx.put("node", response_id, b"", *(text.encode() for text in strings))


class _Unsent(NamedTuple):
    """An answer that its client does not have yet. `body`: the value's body; `answer`: its contents."""

    key: bytes
    proxy_id: str
    broke_off: float | None
    body: bytes
    answer: Document | None


def _unsent(value: bytes | None) -> _Unsent | None:
    """None: missing or damaged."""
    strings, body = values.unpack(value or b"")
    try:
        key, proxy_id, at = strings
        answer = pydantic_core.from_json(values.text_of(body))
        return _Unsent(key, proxy_id.decode(), float(at) if at else None, body, answer)
    except ValueError:
        return None


class RedisResponses(RedisLedger):
    async def add_response(
        self, response: Response, *, head: str | None = None, undelivered: UndeliveredAnswer | None = None
    ) -> None:
        rules.check_head(response, head)
        response_id, name = response.response_id, response.conversation
        record = response.model_dump_json(exclude={"tools", "document"})
        columns = {"tools": response.tools, "document": response.document}
        columns = {column: value for column, value in columns.items() if value is not None}
        document = document_text(columns)
        answer = None if undelivered is None else document_text(undelivered.answer)
        parts = {call_id: document_text(part) for call_id, part in response.calls.items()}

        def compute(tx: Transaction) -> None:
            heads = [] if name is None else [tx.field("head", name)]
            tx.need(*heads, *(tx.field("node", one) for one in (response_id, response.previous) if one is not None))
            if name is not None and (current := _text(tx.get("head", name)[0])) != head:
                raise ConversationMoved(name, current, head)
            before = None
            if response.previous is not None:
                before = self._node(tx, response.previous)
                before._replace(references=before.references + 1).put(tx, response.previous)
            if tx.get("node", response_id)[0] is not None:
                raise rules.already_exists(response)
            thread = before.thread if before else response_id
            node = Node(
                response.previous, thread, int(name is not None), response.document is not None, name, list(parts)
            )
            node.put(tx, response_id)
            tx.put("response", response_id, body_of(record))
            if columns:
                tx.put("document", response_id, values.compress(document))
            tx.do("PLACE", "responses", 0, response_id)
            tx.index("member", "responses", response_id, values.prefix(thread.encode()))
            tx.do("ZADD", "thread", repr(tx.now.wall), thread)
            if name is not None:
                tx.do("HSET", "head", name, response_id)
            for call_id, part in parts.items():
                tx.put("given", call_id, values.compress(part), response_id.encode())
            tx.due(tx.now.wall + self.ttl)
            if undelivered is not None and answer is not None:
                strings = undelivered.key, undelivered.proxy_id.encode(), b""
                tx.put("unsent", response_id, values.compress(answer), *strings)
                tx.do("ZADD", "unsent_at", repr(tx.now.wall), response_id)
                tx.index("unsent_key", "responses", response_id, values.prefix(undelivered.key))
                tx.due(tx.now.wall + min(self.ttl, rules.ANSWERS_KEPT))

        await transact(self, response.session, compute)

    async def take_back(self, session: str, response_id: str, *, head: str | None = None) -> None:
        def compute(tx: Transaction) -> None:
            node = self._node(tx, response_id)
            name = node.conversation
            if name is not None and _text(tx.get("head", name)[0]) == response_id:
                node = node._replace(references=node.references - 1)
                if head is None:
                    tx.delete("head", name)
                else:
                    tx.do("HSET", "head", name, head)
            self._delete(tx, response_id, node)

        await transact(self, session, compute)

    def _node(self, tx: Transaction, response_id: str) -> Node:
        (value,) = tx.get("node", response_id)
        if value is None:
            raise rules.unknown_response(tx.session, response_id)
        try:
            return Node.read(value)
        except ValueError:
            raise UnknownResponse("a response cannot be read") from None

    async def response(self, session: str, response_id: str) -> Response:
        if (found := (await self.responses(session, [response_id])).get(response_id)) is None:
            raise rules.unknown_response(session, response_id)
        return found

    async def responses(self, session: str, response_ids: Collection[str]) -> dict[str, Response]:
        self.check_open()
        if not (ids := list(response_ids)):
            return {}
        of = self.keys.of
        commands: list[Command] = [("HMGET", of(session, name), *ids) for name in ("response", "document")]
        records, documents = await self.link.run(*commands)
        found = {}
        for response_id, record, document in zip(ids, records, documents, strict=True):
            if record is not None:
                with suppress(UnknownResponse):  # unreadable
                    found[response_id] = self._response_of(record, document)
        return found

    def _response_of(self, record: bytes, document: bytes | None) -> Response:
        if (response := self.record_of(Response, record)) is None:
            raise UnknownResponse("a response cannot be read")
        if document is None:
            return response
        if (columns := _columns(document)) is None:
            raise UnknownResponse("a response cannot be read")
        return response.model_copy(update=columns)

    async def conversation(self, session: str, name: str) -> str | None:
        return _text((await self._fields(session, "head", [name]))[0])

    async def lock_conversation(self, session: str, name: str, *, holder: str, proxy_id: str) -> bool:
        lock = f"{holder} {proxy_id}".encode()

        def compute(tx: Transaction) -> bool:
            (current,) = tx.get("lock", name)
            if current == lock:
                return True
            if current is not None and current.rpartition(b" ")[2].decode("utf-8", "replace") in self._proxies(tx):
                return False
            tx.do("HSET", "lock", name, lock)
            return True

        return await transact(self, session, compute)

    async def unlock_conversation(self, session: str, name: str, *, holder: str) -> None:
        def compute(tx: Transaction) -> None:
            if (tx.get("lock", name)[0] or b"").startswith(f"{holder} ".encode()):
                tx.do("HDEL", "lock", name)

        await transact(self, session, compute)

    async def history(self, session: str, response_id: str) -> list[Response]:
        keys = [self.keys.of(session, name) for name in ("node", "response", "document")]
        found, document = await self.link.script(history(), keys, [response_id])
        if not found:
            raise rules.unknown_response(session, response_id)
        last, *earlier = found
        return [self._response_of(record, None) for record in earlier[::-1]] + [self._response_of(last, document)]

    async def given_calls(self, session: str, call_ids: Collection[str]) -> dict[str, GivenCall]:
        self.check_open()
        ids = list(call_ids)
        given = {}
        for call_id, value in zip(ids, await self._fields(session, "given", ids), strict=True):
            if value is not None and (part := _columns(value)) is not None:
                given[call_id] = GivenCall(part, _first(value).decode("utf-8", "replace"))
        return given

    async def delete_response(self, session: str, response_id: str) -> None:
        def compute(tx: Transaction) -> None:
            node = self._node(tx, response_id)
            if not node.has_document:
                raise rules.unknown_response(session, response_id)
            self._delete(tx, response_id, node)

        await transact(self, session, compute)

    def _delete(self, tx: Transaction, response_id: str, node: Node) -> None:
        """Delete the document, and the whole response once nothing references it."""
        tx.once()
        if node.has_document:
            (value,) = tx.get("document", response_id)
            columns = (_columns(value) if value else None) or {}
            columns.pop("document", None)
            if columns:
                tx.put("document", response_id, values.compress(document_text(columns)))
            else:
                tx.delete("document", response_id)
            node = node._replace(has_document=False)
        self._forget_answer(tx, response_id)
        while not node.references and not node.has_document:
            self._drop(tx, response_id, node)
            if node.previous is None:
                return
            try:
                response_id, node = node.previous, self._node(tx, node.previous)
            except UnknownResponse:  # damaged: its thread expires
                return
            node = node._replace(references=node.references - 1)
        node.put(tx, response_id)

    def _drop(self, tx: Transaction, response_id: str, node: Node) -> None:
        """Delete a response with its calls, and the thread if this was its first response."""
        for call_id, value in zip(node.calls, tx.get("given", *node.calls), strict=True):
            if value is not None and (_first(value) == response_id.encode() or _columns(value) is None):
                tx.delete("given", call_id)
        for name in ("node", "response", "document"):
            tx.delete(name, response_id)
        tx.index("member", "responses", response_id, values.prefix(node.thread.encode()), remove=True)
        tx.do("ZREM", "responses", response_id)
        if node.previous is None:
            tx.do("ZREM", "thread", node.thread)

    def _forget_answer(self, tx: Transaction, response_id: str) -> bool:
        """False: no such answer."""
        (value,) = tx.get("unsent", response_id)
        if value is None:
            return False
        key = _first(value)
        tx.index("unsent_key", "responses", response_id, values.prefix(key), remove=True)
        tx.do("ZREM", "unsent_at", response_id)
        tx.delete("unsent", response_id)
        return True

    def _expire_responses(self, tx: Transaction, threads: list[bytes]) -> int:
        """Delete these threads. Returns the number of deleted responses."""
        starts = [values.prefix(thread) for thread in threads]
        key = tx.keys.of(tx.session, "member")
        found = tx.need(*(("ZRANGEBYLEX", key, *values.within(start)) for start in starts))
        ids = [one for start, entries in zip(starts, found, strict=True) for one in values.ids_of(entries, start)]
        nodes = {
            one.decode(): _node_or_bare(one, value)
            for one, value in zip(ids, tx.get("node", *ids), strict=True)
            if value is not None
        }
        names = list(dict.fromkeys(node.conversation for node in nodes.values() if node.conversation is not None))
        tx.need(
            *(tx.field("head", name) for name in names),
            *(tx.field("unsent", one) for one in ids),
            *(tx.field("given", call_id) for node in nodes.values() for call_id in node.calls),
        )
        for name, head in zip(names, tx.get("head", *names), strict=True):
            if _text(head) in nodes:
                tx.delete("head", name)
        for response_id, node in nodes.items():
            self._forget_answer(tx, response_id)
            self._drop(tx, response_id, node)
        if threads:
            tx.do("ZREM", "thread", *threads)
        return len(nodes)

    # --- undelivered answers ------------------------------------------------------------------------------------

    async def mark_handed_over(self, session: str, response_id: str) -> None:
        await transact(self, session, lambda tx: self._forget_answer(tx, response_id))

    async def mark_not_handed_over(self, session: str, response_id: str) -> None:
        def compute(tx: Transaction) -> None:
            unsent = _unsent(tx.get("unsent", response_id)[0])
            if unsent is not None and unsent.broke_off is None:
                strings = unsent.key, unsent.proxy_id.encode(), repr(tx.now.steady).encode()
                tx.put("unsent", response_id, unsent.body, *strings)

        await transact(self, session, compute)

    async def take_answer(
        self, session: str, key: bytes, *, window: float, proxy_id: str, waits: bool = True
    ) -> tuple[str, Document | None] | None:
        def take(tx: Transaction, response_id: str, value: bytes, may_take: MayTake) -> tuple[str, Any] | None:
            unsent = _unsent(value)
            if unsent is None or not may_take(unsent.broke_off, unsent.proxy_id):
                return None
            tx.put("unsent", response_id, unsent.body, key, proxy_id.encode(), b"")
            return response_id, unsent.answer

        return await self._take_from(session, "unsent_key", "unsent", key, window, proxy_id, take, waits=waits)


def _node_or_bare(response_id: bytes, value: bytes) -> Node:
    """The node; a damaged one counts as a response without a thread."""
    try:
        return Node.read(value)
    except ValueError:
        return Node(None, response_id.decode(), 0, has_document=False, conversation=None, calls=[])


def _first(value: bytes) -> bytes:
    """The first string in a value; empty if it is damaged."""
    return next(iter(values.unpack(value)[0]), b"")


def _columns(value: bytes) -> Document | None:
    """The JSON object in a value; None if it is damaged."""
    try:
        found = pydantic_core.from_json(values.text_of(values.unpack(value)[1]))
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.decode()
