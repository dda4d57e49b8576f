"""Giving and taking all records, in Redis. A mixin of `RedisStore`."""

import bisect
import json
from collections.abc import Sequence
from typing import Any

import pydantic_core

from store.backends import _records as records
from store.backends import _redis_values as values
from store.backends import _rules as rules
from store.backends._redis_base import body_of
from store.backends._redis_expiry import RedisExpiry
from store.backends._redis_ledger import chain_of, noted_at, read_turn
from store.backends._redis_link import Command
from store.backends._redis_responses import Node
from store.backends._redis_transaction import Transaction, transact
from store.base import StoreError
from store.exports import HOUR, PAGE, Exported, Kind, Moved, MovedNote, MovedResponse, MovedTurn
from store.models import CachedTools, Call, Session, Turn, UndeliveredAnswer

type _Found = tuple[list[Moved], list[str]]

_LISTS = {"turns": "turns", "cached tools": "cached_at", "responses": "responses"}
"""The zset with the names of a session's records of a kind."""


class RedisExports(RedisExpiry):
    _names: Sequence[str] = ()

    async def export(self, kind: Kind, *, since: float, after: str | None = None) -> Exported:
        session, start = json.loads(after) if after else ("", 0)
        if after is None or not self._names:
            listed, due = await self.link.run(("ZRANGE", self.keys.names, 0, -1), ("ZRANGE", self.keys.due, 0, -1))
            self._names = sorted({name.decode() for name in (*listed, *due)})
        items: list[Moved] = []
        bad: list[str] = []
        for name in self._names[bisect.bisect_left(self._names, session) :]:
            if len(items) >= PAGE:
                return Exported(items, bad, json.dumps((name, 0)))
            (found, unreadable), is_last = await self._part(kind, name, start if name == session else 0, since)
            items += found
            bad += unreadable
            if not is_last:
                return Exported(items, bad, json.dumps((name, (start if name == session else 0) + PAGE)))
        return Exported(items, bad, None)

    async def _part(self, kind: Kind, session: str, start: int, since: float) -> tuple[_Found, bool]:
        """The records of a session from the one of this number on, and whether these are its last."""
        match kind:
            case "sessions":
                return await self._session_of(session), True
            case "notes":
                return await self._notes_of(session, since - self.ttl), True
            case _:
                key = self.keys.of(session, _LISTS[kind])
                (names,) = await self.link.run(("ZRANGE", key, start, start + PAGE - 1))
                read: Any = {"turns": self._turns_of, "cached tools": self._cached_of, "responses": self._given_of}
                found: _Found = await read[kind](session, names, since) if names else ([], [])
                return found, len(names) < PAGE

    async def _session_of(self, name: str) -> _Found:
        (text,) = await self.link.run(("HGET", self.keys.of(name, "session"), "record"))
        if text is None:
            return [], []
        session = records.read(Session, values.text_of(text), log=False)
        return ([], [name]) if session is None else ([session], [])

    async def _notes_of(self, session: str, since: float) -> _Found:
        (found,) = await self.link.run(("HGETALL", self.keys.of(session, "plain")))
        items: list[Moved] = []
        bad: list[str] = []
        for key, value in found.items():
            try:
                hour = noted_at(value) // HOUR * HOUR
            except ValueError:
                bad.append(key.hex())
                continue
            if hour + HOUR > since:
                items.append(MovedNote(session, key, hour, chain_of(value)))
        return items, bad

    async def _cached_of(self, session: str, names: list[bytes], since: float) -> _Found:
        items: list[Moved] = []
        bad = []
        for name, value in zip(names, await self._fields(session, "cached", names), strict=True):
            if (cached := self.record_of(CachedTools, value)) is None:
                bad.append(name.decode())
            elif cached.created_at >= since:
                items.append(cached)
        return items, bad

    async def _turns_of(self, session: str, ids: list[bytes], since: float) -> _Found:
        items: list[Moved] = []
        bad = []
        stored = []
        for turn_id, value in zip(ids, await self._fields(session, "turn", ids), strict=True):
            turn = None if value is None else read_turn(self, value)
            if turn is None or turn.record is None:
                bad.append(turn_id.decode())
            elif turn.record.created_at >= since:
                stored.append(turn)
        call_ids = [call_id for turn in stored for call_id in turn.calls]
        texts = dict(zip(call_ids, await self._fields(session, "call", call_ids), strict=True))
        for turn in stored:
            calls = [(call_id, self.record_of(Call, texts[call_id])) for call_id in turn.calls]
            bad += [call_id.decode() for call_id, call in calls if call is None]
            assert isinstance(turn.record, Turn)
            with_parts = await self._with_parts([call for _, call in calls if call is not None])
            items.append(MovedTurn(turn.record, with_parts, turn.keys))
        return items, bad

    async def _given_of(self, session: str, ids: list[bytes], since: float) -> _Found:
        of = self.keys.of
        commands: list[Command] = [
            ("HMGET", of(session, name), *ids) for name in ("response", "node", "document", "unsent")
        ]
        heads, threads, *found = await self.link.run(
            ("HGETALL", of(session, "head")), ("ZRANGE", of(session, "thread"), 0, -1, "WITHSCORES"), *commands
        )
        used = dict(zip(threads[::2], map(float, threads[1::2]), strict=True))
        items: list[Moved] = []
        bad = []
        for response_id, record, node, document, unsent in zip(ids, *found, strict=True):
            try:
                response = self._response_of(record, document)
                answer = None
                if unsent is not None:
                    (key, proxy_id, _), text = values.unpack(unsent)
                    answer = UndeliveredAnswer(key, proxy_id.decode(), pydantic_core.from_json(values.text_of(text)))
                used_at = used[Node.read(node).thread.encode()]
            except (StoreError, ValueError, LookupError, TypeError):
                bad.append(response_id.decode())
                continue
            if used_at >= since:
                head = heads.get(response.conversation.encode()) if response.conversation is not None else None
                items.append(MovedResponse(response, head and head.decode(), used_at, answer))
        return items, bad

    async def restore_session(self, session: Session) -> None:
        record = session.model_dump_json()

        def compute(tx: Transaction) -> None:
            tx.get("session", "version", "record")
            tx.do("HSET", "session", "version", session.version, "record", body_of(record))
            tx.do("PERSIST", "session")
            tx.once()
            tx.do_shared("ZADD", self.keys.names, 0, session.name)
            tx.record("session.updated", session.masked().model_dump_json())
            tx.deleted = True

        await transact(self, session.name, compute)
        self._sessions.pop(session.name)

    async def restore_head(self, session: str, name: str, response_id: str | None) -> None:
        def compute(tx: Transaction) -> None:
            tx.get("head", name)
            if response_id is None:
                tx.delete("head", name)
                return
            if tx.get("node", response_id)[0] is None:
                raise rules.unknown_response(session, response_id)
            tx.do("HSET", "head", name, response_id)

        await transact(self, session, compute)

    async def begin_move(self, secret: bytes) -> None:
        self.check_writable()
        await self.link.run(("HSET", self.keys.meta, "secret", secret))

    async def note_move(self, note: str) -> None:
        self.check_writable()
        await self.link.run(("HSET", self.keys.meta, "move", note) if note else ("HDEL", self.keys.meta, "move"))

    async def move_note(self) -> str:
        (note,) = await self.link.run(("HGET", self.keys.meta, "move"))
        return note.decode() if note else ""

    async def users(self) -> set[str]:
        (leases,) = await self.link.run(("HGETALL", self.keys.proxies))
        return self._with_leases(leases, self.times().steady)

    def steady(self) -> float:
        return self.times().steady
