"""The ledger in Redis: turns and their keys, and answers that broke off. A mixin of `RedisStore`."""

import asyncio
import functools
from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple

from store.backends import _redis_values as values
from store.backends import _rules as rules
from store.backends import _states as states
from store.backends._redis_base import NEAR, Transaction, body_of, transact
from store.backends._redis_calls import RedisCalls, put_call, scored
from store.backends._redis_client import Script
from store.base import MATCHES, OutcomeUnknown, TakeOverUnknown
from store.models import Call, LedgerChanges, LedgerMatches, Page, Turn

look_up = functools.cache(lambda: Script("_redis_look_up.lua"))

_TIME = 12
"""Digits of the time with which a note begins."""

_LOOK = 0.1
"""Seconds between two looks at an answer of another proxy."""

type MayTake = Callable[[float | None, str | None], bool]
"""Whether a retry may take an answer, from the time it broke off and its proxy."""


class StoredTurn(NamedTuple):
    """A turn with its keys and the ids of its calls. `record` None: it is unreadable."""

    record: Turn | None
    calls: list[bytes]
    keys: list[bytes]


def read_turn(store: RedisCalls, value: bytes) -> StoredTurn:
    strings, _ = values.unpack(value)
    try:
        count = int(strings[0])
    except (ValueError, IndexError):
        return StoredTurn(None, [], [])
    return StoredTurn(store.record_of(Turn, value), strings[1 : count + 1], strings[count + 1 :])


def put_turn(
    tx: Transaction, old: StoredTurn | None, turn: Turn, *, calls: Sequence[bytes] = (), keys: Sequence[bytes] = ()
) -> None:
    """Write a turn with additional calls and keys, and its entries in the indexes."""
    all_calls = [*(old.calls if old else []), *calls]
    all_keys = list(dict.fromkeys([*(old.keys if old else []), *keys]))
    record = turn.model_dump_json()
    tx.put("turn", turn.turn_id, body_of(record), b"%d" % len(all_calls), *all_calls, *all_keys)
    was = turn_entries(old.record, old.keys) if old else {}
    index_turn(tx, turn.turn_id, was, turn_entries(turn, all_keys))
    tx.record("turn.updated" if old else "turn.created", record)


type Entries = dict[str, set[bytes]]
"""By index: the prefixes of a turn's entries."""


def turn_entries(turn: Turn | None, keys: Sequence[bytes]) -> Entries:
    """`turn` None: it is unreadable."""
    flags = [b"0", b"1"] if turn is None else [b"1" if turn.delivered else b"0"]
    entries = {"key": {values.prefix(key, flag) for key in keys for flag in flags}}
    if turn and turn.request_key and not turn.delivered:
        entries["request"] = {values.prefix(turn.request_key)}
    return entries


def index_turn(tx: Transaction, turn_id: str | bytes, was: Entries, now: Entries) -> None:
    for name in ("key", "request"):
        before, after = was.get(name, set()), now.get(name, set())
        tx.index(name, "turns", turn_id, *(before - after), remove=True)
        tx.index(name, "turns", turn_id, *(after - before))


class RedisLedger(RedisCalls):
    async def save_turn(self, turn: Turn, calls: Sequence[Call] = (), keys: Sequence[bytes] = ()) -> None:
        rules.check_calls(turn, calls)
        session = turn.session

        def compute(tx: Transaction) -> None:
            ids = [call.call_id for call in calls]
            tx.need(
                tx.field("turn", turn.turn_id),
                *(("GET", tx.keys.of_call(one)) for one in ids),
                *(tx.field("call", one) for one in ids),
            )
            (value,) = tx.get("turn", turn.turn_id)
            old = read_turn(self, value) if value else None
            fresh = self._new_calls(tx, list(calls))
            new = rules.replaced(old.record if old else None, turn)
            if old is None:
                tx.do("PLACE", "turns", 0, turn.turn_id)
                tx.do("DATE", "dated", tx.of("turns"), turn.turn_id, repr(turn.created_at), NEAR)
            elif old.record and old.record.created_at != new.created_at:
                tx.do("ZADD", "dated", new.created_at, turn.turn_id)
            tx.due(new.created_at + self.ttl)
            put_turn(tx, old, new, calls=[call.call_id.encode() for call in fresh], keys=keys)
            for offset, call in enumerate(fresh):
                put_call(tx, None, call, offset=offset)
            tx.touch([turn.turn_id], keys)

        await transact(self, session, compute)

    def _new_calls(self, tx: Transaction, calls: list[Call]) -> list[Call]:
        """The calls that no session has yet."""
        calls = list({call.call_id: call for call in calls}.values())
        owners = tx.watch([("GET", self.keys.of_call(call.call_id)) for call in calls])
        tx.get("call", *(call.call_id for call in calls))
        fresh = []
        for call, owner in zip(calls, owners, strict=True):
            if owner is not None:  # which may be left from a deleted call
                key = self.keys.of(owner.decode(), "call")
                if tx.need(("HEXISTS", key, call.call_id))[0]:
                    continue
            fresh.append(call)
        return fresh

    async def save_plain(self, session: str, keys: Sequence[bytes], chain: bytes = b"") -> None:
        def compute(tx: Transaction) -> None:
            for number, key in enumerate(dict.fromkeys(keys)):
                put_note(tx, key, b"" if number else chain)
            tx.due(tx.now.wall + 2 * self.ttl)
            tx.touch((), keys)

        self.check_writable()
        if keys:
            await transact(self, session, compute)

    async def look_up(
        self,
        session: str,
        *,
        turn_ids: Collection[str] = (),
        keys: Collection[bytes] = (),
        known: Collection[bytes] = (),
        matches: int = MATCHES,
    ) -> LedgerMatches:
        if not keys and not turn_ids and not known:
            self.check_open()
            return LedgerMatches()
        asked, may_know = list(keys), list(known)
        arguments = [matches, *(one for some in ({*turn_ids}, asked, may_know) for one in (len(some), *some))]
        parts = [self.keys.of(session, name) for name in ("key", "turn", "call", "plain")]
        now, turns, calls, by_key, plain, are_known = await self.link.script(look_up(), parts, arguments)
        self.link.note_time(int(now))
        found = LedgerMatches(known={may_know[at] for at in are_known})
        found.plain = {asked[at]: value[_TIME:] for at, value in plain}
        for turn_id, value in turns:
            if (turn := self.record_of(Turn, value)) is not None:
                found.turns[turn_id.decode()] = turn
        found.calls = {call.call_id: call for call in await self._with_parts(self.records_of(Call, calls))}
        for at, ids in by_key:
            if len(ids) > matches:
                found.crowded.add(asked[at])
            if best := [one for turn_id in ids[:matches] if (one := turn_id.decode()) in found.turns]:
                found.by_key[asked[at]] = best
        return found

    def revision(self, session: str) -> int | None:
        self.check_open()
        return None

    def changes(self, session: str, since: int) -> LedgerChanges | None:
        changes = self._writes.get(session)
        return None if changes is None else changes.since(since, changes.revision)

    async def turns(self, session: str, *, limit: int = 100, cursor: str | None = None) -> Page[Turn]:
        rules.check_limit(limit)
        after = rules.place("turn", cursor)
        key = self.keys.of(session, "turns")
        (found,) = await self.link.run(("ZRANGEBYSCORE", key, f"({after}", "+inf", "WITHSCORES", "LIMIT", 0, limit + 1))
        records = await self._fields(session, "turn", found[::2])
        rows = [(int(p), self.record_of(Turn, value)) for (_, p), value in zip(scored(found), records, strict=True)]
        return rules.page_of(rows, "turn", limit)

    # --- answers that broke off, for requests that are sent again -----------------------------------------------

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

        def take(tx: Transaction, turn_id: str, value: bytes, may_take: MayTake) -> tuple[Turn, list[Call]] | None:
            old = read_turn(self, value)
            if (before := old.record) is None or before.delivered or not may_take(before.broke_off, before.proxy_id):
                return None
            turn = rules.taken_over(before, proxy_id)
            put_turn(tx, old, turn)
            tx.touch([turn_id])
            return turn, self._take_over_calls(tx, old.calls, self._proxies(tx) | {proxy_id}, proxy_id)

        found = await self._take_from(session, "request", "turn", request_key, window, proxy_id, take)
        return None if found is None else (found[0], await self._with_parts(found[1]))

    async def _take_from[T](
        self,
        session: str,
        index: str,
        name: str,
        key: bytes,
        window: float,
        proxy_id: str,
        take: Callable[[Transaction, str, bytes, MayTake], T | None],
        *,
        waits: bool = True,
    ) -> T | None:
        """Offer `take` the values of the hash `name` that the index has under this key, newest first. Returns its first
        result that is not None. `waits`: an answer that another proxy seems to go on with may have broken off without a
        note, as long as that proxy has not renewed its lease since the first look."""
        start = values.prefix(key)
        low, high = values.within(start)
        taken, goes_on, began = "", False, self.times().steady

        def compute(tx: Transaction) -> T | None:
            nonlocal taken, goes_on
            goes_on = False
            (entries,) = tx.need(("ZREVRANGEBYLEX", tx.keys.of(session, index), high, low))
            ids = values.ids_of(entries, start)
            if not ids:
                return None
            tx.need(("HGETALL", tx.keys.proxies), *(tx.field(name, one) for one in ids))
            proxies, last_alive = self._proxies(tx), self._last_alive(tx)

            def may_take(broke_off: float | None, proxy: str | None) -> bool:
                nonlocal goes_on
                if broke_off is None and proxy in proxies and proxy not in (None, proxy_id):
                    goes_on = goes_on or last_alive.get(proxy, began) < began
                return rules.can_be_retaken(
                    broke_off, proxy, proxies=proxies, last_alive=last_alive, window=window, steady=began
                )

            for one, value in zip(ids, tx.get(name, *ids), strict=True):
                taken = one.decode()
                if value is not None and (found := take(tx, taken, value, may_take)) is not None:
                    return found
            return None

        while True:
            try:
                found = await transact(self, session, compute)
            except OutcomeUnknown as error:
                raise TakeOverUnknown(str(error), taken) from error
            if found is not None or not (waits and goes_on):
                return found
            await asyncio.sleep(_LOOK)

    def _take_over_calls(self, tx: Transaction, ids: list[bytes], proxies: set[str], proxy_id: str) -> list[Call]:
        calls = []
        for call in self.records_of(Call, tx.get("call", *ids)):
            after = states.lost(call, proxies=proxies, now=tx.now)
            after = after or states.moved(call, proxy_id=proxy_id, now=tx.now)
            if after is not None:
                put_call(tx, call, after)
            calls.append(after or call)
        return calls


def put_note(tx: Transaction, key: bytes, chain: bytes = b"") -> None:
    """Note the key of a turn without calls."""
    tx.do("NOTE", "plain", key, f"{int(tx.now.wall):0{_TIME}d}", chain)
    tx.do("ZADD", "noted", tx.now.wall, key)
