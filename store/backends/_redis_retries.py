"""Answers that broke off, in Redis, for requests that are sent again. A mixin of `RedisStore`."""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple, Self

import pydantic_core

from store.backends import _redis_values as values
from store.backends import _rules as rules
from store.backends import _states as states
from store.backends._redis_call_records import put_call
from store.backends._redis_client import Command
from store.backends._redis_ledger import RedisLedger, put_turn, read_turn
from store.backends._redis_responses import RedisResponses
from store.backends._redis_transaction import Transaction, transact
from store.base import OutcomeUnknown, TakeOverUnknown
from store.models import Call, Document, Turn


class _Unsent(NamedTuple):
    """An answer that its client does not have yet. `answer`: the body of its value; `document`: what that contains."""

    key: bytes
    proxy_id: str
    broke_off: float | None
    answer: bytes
    document: Document

    @classmethod
    def read(cls, value: bytes) -> Self | None:
        """None: it is damaged."""
        strings, answer = values.unpack(value)
        try:
            key, proxy_id, broke_off = strings
            at = float(broke_off) if broke_off else None
            return cls(key, proxy_id.decode(), at, answer, pydantic_core.from_json(values.text_of(answer)))
        except ValueError:
            return None


class RedisRetries(RedisLedger, RedisResponses):
    async def mark_broken_off(self, session: str, turn_id: str, *, proxy_id: str | None = None) -> bool:
        return await self._mark(session, turn_id, lambda turn, steady: rules.broken_off(turn, proxy_id, steady=steady))

    async def mark_delivered(self, session: str, turn_id: str) -> bool:
        return await self._mark(session, turn_id, lambda turn, steady: rules.delivered(turn))

    async def _mark(self, session: str, turn_id: str, change: Callable[[Turn, float], Turn | None]) -> bool:
        def compute(tx: Transaction) -> bool:
            (value,) = tx.get("turn", turn_id)
            old = read_turn(self, value) if value else None
            if old is None or old.record is None or (turn := change(old.record, tx.now.steady)) is None:
                return False
            put_turn(tx, old, turn)
            tx.touch([turn_id])
            return True

        return await transact(self, session, compute)

    async def take_over(
        self, session: str, request_key: bytes, *, window: float, proxy_id: str
    ) -> tuple[Turn, list[Call]] | None:
        if not request_key or self._delivered.pop(session):
            self.check_open()
            return None
        start = values.prefix(request_key)
        low, high = values.within(start)
        taken = ""

        def compute(tx: Transaction) -> tuple[Turn, list[Call]] | None:
            nonlocal taken
            (entries,) = tx.need(("ZREVRANGEBYLEX", tx.keys.of(session, "request"), high, low))
            if not entries:
                return None
            ids = values.ids_of(entries, start)
            tx.prefetch(
                ("HGETALL", tx.keys.proxies), *(("HGET", tx.keys.of(session, "turn"), turn_id) for turn_id in ids)
            )
            proxies, now = self._proxies(tx), tx.now
            for turn_id, value in zip(ids, tx.get("turn", *ids), strict=True):
                old = read_turn(self, value) if value else None
                if old is None or old.record is None:
                    continue
                if rules.can_be_taken_over(
                    old.record, proxies=proxies, last_alive=self._last_alive(tx), window=window, steady=now.steady
                ):
                    taken = turn_id.decode()
                    turn = rules.taken_over(old.record, proxy_id)
                    put_turn(tx, old, turn)
                    tx.touch([taken])
                    return turn, self._take_over_calls(tx, old.calls, proxies | {proxy_id}, proxy_id)
            return None

        try:
            found = await transact(self, session, compute)
        except OutcomeUnknown as error:
            raise TakeOverUnknown(str(error), taken) from error
        return None if found is None else (found[0], await self._with_parts(found[1]))

    def _take_over_calls(self, tx: Transaction, ids: list[bytes], proxies: set[str], proxy_id: str) -> list[Call]:
        calls = []
        for call in self.records_of(Call, tx.get("call", *ids)):
            after = states.lost(call, proxies=proxies, now=tx.now)
            after = after or states.moved(call, proxy_id=proxy_id, now=tx.now)
            if after is not None:
                put_call(tx, call, after)
            calls.append(after or call)
        return calls

    async def mark_handed_over(self, session: str, response_id: str) -> None:
        await transact(self, session, lambda tx: self._forget_answer(tx, response_id))

    async def mark_not_handed_over(self, session: str, response_id: str) -> None:
        def compute(tx: Transaction) -> None:
            (value,) = tx.get("unsent", response_id)
            if value is not None and (unsent := _Unsent.read(value)) is not None and unsent.broke_off is None:
                strings = [unsent.key, unsent.proxy_id.encode(), repr(tx.now.steady).encode()]
                tx.put("unsent", response_id, strings, unsent.answer)

        await transact(self, session, compute)

    async def take_answer(
        self, session: str, key: bytes, *, window: float, proxy_id: str
    ) -> tuple[str, Document | None] | None:
        start = values.prefix(key)
        low, high = values.within(start)
        taken = ""

        def compute(tx: Transaction) -> tuple[str, Document | None] | None:
            nonlocal taken
            index: Command = ("ZREVRANGEBYLEX", tx.keys.of(session, "unsent_key"), high, low)
            (entries,) = tx.need(index)
            if not entries:
                return None
            ids = values.ids_of(entries, start)
            tx.prefetch(("HGETALL", tx.keys.proxies), *(("HGET", tx.keys.of(session, "unsent"), one) for one in ids))
            is_available = partial(
                rules.can_be_retaken,
                proxies=self._proxies(tx),
                last_alive=self._last_alive(tx),
                window=window,
                steady=tx.now.steady,
            )
            for one, value in zip(ids, tx.get("unsent", *ids), strict=True):
                unsent = None if value is None else _Unsent.read(value)
                if unsent is not None and is_available(unsent.broke_off, unsent.proxy_id):
                    taken = one.decode()
                    tx.put("unsent", one, [key, proxy_id.encode(), b""], unsent.answer)
                    return taken, unsent.document
            return None

        try:
            return await transact(self, session, compute)
        except OutcomeUnknown as error:
            raise TakeOverUnknown(str(error), taken) from error
