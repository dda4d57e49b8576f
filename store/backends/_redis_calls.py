"""Calls in Redis: read, answered, run. A mixin of `RedisStore`."""

import heapq
import itertools
from collections.abc import Collection, Iterable, Sequence

from store.backends import _records as records
from store.backends import _redis_values as values
from store.backends import _rules as rules
from store.backends import _states as states
from store.backends._redis_base import RedisBase, Transaction, body_of, transact
from store.backends._redis_client import Command
from store.backends._shared import Change
from store.base import AlreadyAnswered, UnknownCall
from store.models import Call, Page, Session, Status

_PAGE = 100
"""Records of one read, if they are filtered afterwards."""

_IDLE = 1.0
"""Seconds after which a session counts as idle if nobody runs its calls or waits for them."""

_CANDIDATES = 200
"""The number of a tool's calls that a claim considers. Only calls without an approval are skipped."""

_AT_ONCE = 8
"""The number of calls that a claim reads in one round trip."""


def _index_call(tx: Transaction, before: Call | None, call: Call) -> None:
    """Write the entries by which workers and waiters find the call."""
    name = call.call_id
    (was, was_waiting), (now, waiting) = states.indexed(before) if before else (None, None), states.indexed(call)
    if (was == 0) != (now == 0):
        tx.index("ready", "calls", name, values.prefix(call.name.encode()), remove=was == 0)
    if now:
        tx.do("ZADD", "lease", repr(now), name)
    elif was:
        tx.do("ZREM", "lease", name)
    if waiting is not None:
        tx.do("HSET", "waiting", name, waiting)
    elif was_waiting is not None:
        tx.do("HDEL", "waiting", name)
    if now or waiting is not None:
        tx.do("ZADD", tx.keys.active, repr(tx.now.wall), call.session)
    if before is not None or now is not None:  # only workers wait for new calls
        tx.calls.append((name, call.name if now is not None else None))


def put_call(tx: Transaction, before: Call | None, call: Call, *, offset: int = 0, quietly: bool = False) -> None:
    """Write the call with its entries in the indexes. `before` None: it is new, and has its place at this offset.
    `quietly`: without an event."""
    name, record = call.call_id, call.model_dump_json()
    tx.put("call", name, body_of(record))
    if (text := records.parts_text(call)) is not None:  # not compressed: images already are
        tx.do("HSET", "parts", name, text)
    if before is None:
        tx.do("PLACE", "calls", offset, name)
        tx.do("SET", tx.keys.of_call(name), call.session, "EX", tx.life)
        if not call.status.final:
            tx.do("PLACE", "open", offset, name)
    elif call.status.final and not before.status.final:
        tx.do("ZREM", "open", name)
    _index_call(tx, before, call)
    tx.touch([call.turn_id])
    if not quietly:
        tx.record("call.updated" if before else "call.created", record)


def scored(flat: Sequence[bytes]) -> list[tuple[bytes, float]]:
    """Pairs of members and scores, from a flat reply."""
    return [(member, float(score)) for member, score in itertools.batched(flat, 2, strict=True)]


def lease_of(text: bytes) -> tuple[float, float]:
    """The end of a proxy's lease, and when the proxy was last alive. A damaged lease counts as expired until its proxy
    renews it."""
    try:
        until, alive = text.split()
        return float(until), float(alive)
    except ValueError:
        return 0.0, 0.0


class RedisCalls(RedisBase):
    indexes_calls = False

    async def call(self, session: str, call_id: str) -> Call:
        (value,) = await self._fields(session, "call", [call_id])
        return (await self._with_parts([self._call_of(value, session, call_id)]))[0]

    async def _with_parts(self, calls: Sequence[Call]) -> list[Call]:
        """The calls with the parts of their results."""
        return [
            records.with_parts(call, (await self._fields(call.session, "parts", [call.call_id]))[0])
            if call.media
            else call
            for call in calls
        ]

    def _call_of(self, value: bytes | None, session: str, call_id: str) -> Call:
        if value is None:
            raise rules.unknown_call(call_id, session)
        if (call := self.record_of(Call, value)) is None:
            raise UnknownCall(f"call {call_id} cannot be read")
        return call

    async def find_call(self, call_id: str) -> Call:
        (session,) = await self.link.run(("GET", self.keys.of_call(call_id)))
        if session is None:
            raise rules.unknown_call(call_id)
        return await self.call(session.decode(), call_id)

    async def calls(
        self,
        *,
        session: str | None = None,
        status: Status | None = None,
        name: str | None = None,
        newest_first: bool = False,
        limit: int = 100,
        cursor: str | None = None,
    ) -> Page[Call]:
        rules.check_limit(limit)
        after = rules.place("call", cursor, rules.LAST_PLACE if newest_first else 0)
        index = "open" if status is not None and not status.final else "calls"
        sessions = [session] if session is not None else []
        if session is None:
            (names,) = await self.link.run(("ZRANGE", self.keys.due, 0, -1))
            sessions = [name.decode() for name in names]
        rows: list[tuple[int | str, Call | None]] = []
        while len(rows) <= limit:
            found = await self._next_calls(sessions, index, after, limit + 1, newest_first=newest_first)
            for place, call in found:
                after = place
                if call is None or (status in (None, call.status) and name in (None, call.name)):
                    rows.append((place, call))
                    if len(rows) > limit:
                        break
            if len(found) < limit + 1:
                break
        return rules.page_of(rows, "call", limit)

    async def _next_calls(
        self, sessions: list[str], index: str, after: int, count: int, *, newest_first: bool
    ) -> list[tuple[int, Call | None]]:
        """The next calls of these sessions after this place, or with `newest_first` before it, in order."""
        command, end = ("ZREVRANGEBYSCORE", "-inf") if newest_first else ("ZRANGEBYSCORE", "+inf")
        part = f"({after}", end, "WITHSCORES", "LIMIT", 0, count
        places: list[tuple[int, str, bytes]] = []
        for some in itertools.batched(sessions, _PAGE, strict=False):
            found = await self.link.run(*((command, self.keys.of(one, index), *part) for one in some))
            for one, flat in zip(some, found, strict=True):
                places += ((int(place), one, call_id) for call_id, place in scored(flat))
            places = heapq.nlargest(count, places) if newest_first else heapq.nsmallest(count, places)
        calls = await self.link.run(*(("HGET", self.keys.of(one, "call"), call_id) for _, one, call_id in places))
        return [(place, self.record_of(Call, value)) for (place, *_), value in zip(places, calls, strict=True)]

    async def _change(self, session: str, call_id: str, change: Change, *, quietly: bool = False) -> tuple[Call, bool]:
        def compute(tx: Transaction) -> tuple[Call, bool]:
            (value,) = tx.get("call", call_id)
            call = self._call_of(value, session, call_id)
            if (after := change(call, tx.now, lambda: self._proxies(tx))) is None:
                return call, False
            put_call(tx, call, after, quietly=quietly)
            return after, True

        try:
            call, changed = await transact(self, session, compute)
        except AlreadyAnswered as other:
            raise AlreadyAnswered((await self._with_parts([other.call]))[0]) from None
        return (call if changed else (await self._with_parts([call]))[0]), changed

    # --- running calls ----------------------------------------------------------------------------------------

    async def claim(self, session: str, names: Collection[str], *, lease: float, worker: str) -> Call | None:
        states.check_lease(lease)

        def compute(tx: Transaction) -> Call | None:
            for call in self._claimable(tx, names):
                tx.get("call", call.call_id)  # it must still be so
                lost = states.lost(call, proxies=self._proxies(tx), now=tx.now)
                after = lost or states.claimed(call, lease=lease, worker=worker, now=tx.now)
                put_call(tx, call, after)
                if lost is None:
                    return after
            return None

        return await transact(self, session, compute)

    def _claimable(self, tx: Transaction, names: Collection[str]) -> Iterable[Call]:
        """The calls that a claim may return or settle: those with an expired lease, then the oldest."""
        starts = [values.prefix(name.encode()) for name in dict.fromkeys(names)]
        ranges: list[Command] = [
            ("ZRANGEBYLEX", tx.of("ready"), *values.within(start), "LIMIT", 0, _CANDIDATES) for start in starts
        ]
        proxies: Command = ("HGETALL", tx.keys.proxies)  # read in the same round trip for the claim
        flat, record, _, *found = tx.need(self._leases(tx), tx.field("session", "record"), proxies, *ranges)
        late = [one for one, end in scored(flat) if end <= tx.now.steady]
        places = sorted(entry[len(start) :] for start, some in zip(starts, found, strict=True) for entry in some)
        guarded = states.approval_required(records.read(Session, values.text_of(record)) if record else None)
        for ids in itertools.batched([*late, *values.ids_of(places, b"")], _AT_ONCE, strict=False):
            for call in self.records_of(Call, tx.peek("call", *ids)):
                if call.name in names and states.is_claimable(call, approval_required=guarded, steady=tx.now.steady):
                    yield call

    async def _is_claimable(self, session: str, names: Collection[str]) -> bool:
        """Whether a claim of these tools would return a call, or settle one."""
        return await transact(
            self, session, lambda tx: next(iter(self._claimable(tx, names)), None) is not None, reads=True
        )

    async def next_lease(self, session: str, names: Collection[str]) -> float | None:
        def compute(tx: Transaction) -> float | None:
            (flat,) = tx.need(self._leases(tx))
            calls = [one for one in self.records_of(Call, tx.peek("call", *flat[::2])) if one.name in names]
            left = [states.lease_left(one, steady=tx.now.steady) for one in calls]
            return min((seconds for seconds in left if seconds is not None), default=None)

        return await transact(self, session, compute, reads=True)

    async def lease_left(self, session: str, call_id: str) -> float | None:
        return states.lease_left(await self.call(session, call_id), steady=self.times().steady)

    # --- the proxies ------------------------------------------------------------------------------------------

    def _proxies(self, tx: Transaction) -> set[str]:
        """The proxies that have a lease."""
        (leases,) = tx.need(("HGETALL", tx.keys.proxies))
        alive = {name.decode() for name, lease in leases.items() if lease_of(lease)[0] > tx.now.steady}
        return alive | {name for name, until in self._own_leases.items() if until > tx.now.steady}

    def _last_alive(self, tx: Transaction) -> dict[str, float]:
        (found,) = tx.need(("HGETALL", tx.keys.proxies))
        return {name.decode(): lease_of(lease)[1] for name, lease in found.items()}

    async def hold(self, proxy_id: str, lease: float) -> None:
        states.check_lease(lease)
        self.check_writable()
        now = self.times().steady
        self._own_leases[proxy_id] = now + lease
        await self.link.run(("HSET", self.keys.proxies, proxy_id, f"{now + lease!r} {now!r}"))

    async def drop(self, proxy_id: str) -> list[Call]:
        self.check_writable()
        self._own_leases.pop(proxy_id, None)
        (lease,) = await self.link.run(("HGET", self.keys.proxies, proxy_id))
        if lease is not None and lease_of(lease)[0] > 0:
            await self.link.run(("HSET", self.keys.proxies, proxy_id, f"0 {self.times().steady!r}"))
        return await self._settle_lost(proxy_id)

    async def settle_lost(self) -> list[Call]:
        self.check_writable()
        return await self._settle_lost()

    async def _settle_lost(self, proxy_id: str | None = None) -> list[Call]:
        """Settle lost calls, session by session. `proxy_id`: only those of this proxy."""
        (names,) = await self.link.run(("ZRANGE", self.keys.active, 0, -1))
        settled = []
        for name in names:
            settled += await transact(self, name.decode(), lambda tx: self._settle_in(tx, proxy_id))
        return settled

    def _leases(self, tx: Transaction) -> Command:
        return "ZRANGE", tx.of("lease"), 0, -1, "WITHSCORES"

    def _settle_in(self, tx: Transaction, proxy_id: str | None) -> list[Call]:
        score: Command = ("ZSCORE", tx.keys.active, tx.session.encode())
        waiting: Command = ("HGETALL", tx.of("waiting"))
        _, flat, waits, _ = tx.need(score, self._leases(tx), waiting, ("HGETALL", tx.keys.proxies))
        (active,) = tx.watch([score])
        proxies = self._proxies(tx)
        late = {one for one, end in scored(flat) if end <= tx.now.steady}
        ids = sorted(late | {one for one, proxy in waits.items() if proxy.decode() not in proxies})
        if not flat and not waits and active is not None and active < tx.now.wall - _IDLE:
            tx.do("ZREM", tx.keys.active, tx.session)
        if not ids:
            return []
        places, *found = tx.need(("ZMSCORE", tx.of("calls"), *ids), *(tx.field("call", one) for one in ids))
        settled = []
        for _, one, value in sorted(zip((float(place or 0) for place in places), ids, found, strict=True)):
            call = self.record_of(Call, value)
            if call is None or proxy_id not in (None, call.proxy_id):
                continue
            if (after := states.lost(call, proxies=proxies, now=tx.now)) is not None:
                tx.get("call", one)  # it must still be so
                put_call(tx, call, after)
                settled.append(after)
        return settled
