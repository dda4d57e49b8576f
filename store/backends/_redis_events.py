"""Events in Redis, and waiting for them: one task per process reads the notices of writes and wakes waiters. A wait
that has begun continues through an outage. A mixin of `RedisStore`.
"""

import asyncio
import contextlib
import logging
import math
import secrets
from collections.abc import Awaitable, Callable, Collection

import pydantic_core

from store.backends import _records as records
from store.backends import _redis_values as values
from store.backends import _rules as rules
from store.backends._redis_responses import RedisResponses
from store.backends._waits import Key
from store.base import StoreUnavailable
from store.models import Event

logger = logging.getLogger(__name__)

_BLOCK = 2.0
"""Seconds that one read waits for a notice."""

_REST = 0.05
"""Seconds between two reads of notices while nobody waits."""

_AT_ONCE = 1000
"""The most notices in one read of the reader."""

_PAUSE = 0.05, 2.0
"""The first and the longest pause before the reader tries again, in seconds."""


_READ = 100
"""The most notices in one read of `events`."""

type _Entries = list[tuple[bytes, dict[bytes, bytes]]]


class RedisEvents(RedisResponses):
    _reader: asyncio.Task[None] | None = None
    _position = "0"

    async def _begin_reading(self) -> None:
        await self._begin_at_end()
        self._reader = asyncio.ensure_future(self._read_notices())

    async def _begin_at_end(self) -> None:
        (entries,) = await self.link.run(("XREVRANGE", self.keys.notices, "+", "-", "COUNT", 1))
        self._position = entries[0][0].decode() if entries else "0"

    async def close(self) -> None:
        if self._reader is not None:
            self._reader.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._reader
            self._reader = None
        await super().close()

    async def _read_notices(self) -> None:
        pause, lost = _PAUSE[0], False
        while True:
            try:
                read = "XREAD", "COUNT", _AT_ONCE, "BLOCK", int(_BLOCK * 1000), "STREAMS"
                found = await self.link.block(*read, self.keys.notices, self._position, seconds=_BLOCK)
                if lost:
                    await self._check_history()
                    self._waiters.wake_all()
                    if self.on_reconnected is not None:
                        self.on_reconnected()
                pause, lost = _PAUSE[0], False
            except StoreUnavailable as error:
                if not lost:
                    logger.warning("the store's notices cannot be read now: %s", error)
                lost = True
                await asyncio.sleep(pause)
                await self.recovered(math.inf)
                pause = min(2 * pause, _PAUSE[1])
                continue
            for _, entries in found or ():
                for entry_id, fields in entries:
                    self._position = entry_id.decode()
                    try:
                        self._wake_by(int(entry_id.partition(b"-")[0]), fields)
                    except (LookupError, TypeError, ValueError):  # damaged: it may concern any waiter
                        self._waiters.wake_all()
                if len(entries) == _AT_ONCE:  # earlier ones may have been dropped
                    self._waiters.wake_all()
            if found:
                await self._waiters.wanted(_REST)

    def _wake_by(self, number: int, fields: dict[bytes, bytes]) -> None:
        session, wakes = fields[b"s"].decode(), pydantic_core.from_json(fields[b"w"])
        changed = [session] if wakes["changed"] else []
        if changed and self.on_change is not None:
            self.on_change(session)
        if self._waiters:
            calls = [(session, call_id, tool) for call_id, tool in wakes["calls"]]
            self._wake([session] if int(fields[b"n"]) else [], calls, changed, number)

    async def _check_history(self) -> None:
        """Give the store another epoch if its server has lost writes: the last notice that was read is missing without
        having been dropped. All processes that notice this agree on the epoch."""
        position = int(self._position.partition("-")[0])
        found, dropped, epoch = await self.link.run(
            ("XRANGE", self.keys.notices, position, position, "COUNT", 1),
            ("HGET", self.keys.meta, "lost"),
            ("HGET", self.keys.meta, "epoch"),
        )
        if epoch == self.epoch.encode() and (found or position <= int(dropped or 0)):
            return
        if epoch in (None, self.epoch.encode()):
            after = f"epoch after {self.epoch}"
            _, _, epoch = await self.link.run(
                ("HSETNX", self.keys.meta, "secret", self.secret),
                ("HSETNX", self.keys.meta, after, secrets.token_hex(4)),
                ("HGET", self.keys.meta, after),
            )
            await self.link.run(("HSET", self.keys.meta, "epoch", epoch))
            logger.warning("the store has lost writes: its server was restarted, or another took its place")
        self.epoch = epoch.decode()
        self.forget()
        self._last_number = 0  # numbers of the new epoch may be smaller
        await self._begin_at_end()

    async def _wait[T](
        self, keys: Collection[Key], timeout: float, look: Callable[[], Awaitable[T | None]]
    ) -> T | None:
        clock = asyncio.get_running_loop().time
        deadline = clock() + timeout
        has_looked = False

        async def look_through_outages() -> T | None:
            nonlocal has_looked
            while True:
                try:
                    found = await look()
                except StoreUnavailable:
                    if not self.link.is_open or not has_looked:
                        raise
                    await asyncio.sleep(min(max(deadline - clock(), 0), _PAUSE[0]))  # `recovered` may not wait
                    await self.recovered(max(deadline - clock(), 0))
                    if deadline <= clock():
                        return None
                else:
                    has_looked = True
                    return found

        try:
            return await super()._wait(keys, timeout, look_through_outages)
        except StoreUnavailable:
            if self.link.is_open:
                raise
            return None

    # --- events -----------------------------------------------------------------------------------------------

    async def last_event_id(self) -> str:
        (number,) = await self.link.run(("HGET", self.keys.meta, "event"))
        return rules.event_id(self.epoch, int(number or 0))

    async def events(self, *, after: str | None, session: str | None = None, limit: int = 100) -> list[Event]:
        rules.check_limit(limit)
        start, cursor = rules.event_after(after, self.epoch, 10**18, 0), after
        stream, notes, count = self.keys.notices, self.keys.meta, _READ
        if session is not None:
            stream, notes, count = self.keys.of(session, "events"), self.keys.of(session, "ledger"), limit
        events: list[Event] = []
        while len(events) < limit:
            last, lost, entries = await self.link.run(
                ("HGET", self.keys.meta, "event"),
                ("HGET", notes, "lost"),
                ("XRANGE", stream, f"({start}", "+", "COUNT", count),
            )
            rules.event_after(cursor, self.epoch, int(last or 0), int(lost or 0))
            if session is not None:
                events += self._readable(session, entries)
            else:
                events += await self._noticed(entries, start, cursor)
            if len(entries) < count:
                break
            start = int(entries[-1][0].partition(b"-")[0])
            cursor = rules.event_id(self.epoch, start)
        return events[:limit]

    async def _noticed(self, notices: _Entries, start: int, cursor: str | None) -> list[Event]:
        """The events of these notices after the number `start`. Raises CursorLost."""
        ranges = []  # the session of each notice, and the numbers of its first and last event
        for entry_id, fields in notices:
            number = int(entry_id.partition(b"-")[0])
            try:
                ranges.append((fields[b"s"].decode(), max(number - int(fields[b"n"]) + 1, start + 1), number))
            except (LookupError, ValueError):
                records.log_damaged("a notice", entry_id.decode())
        sessions = list(dict.fromkeys(name for name, *_ in ranges)) if cursor is not None else []
        found = await self.link.run(
            *(("XRANGE", self.keys.of(name, "events"), first, number) for name, first, number in ranges),
            *(("HGET", self.keys.of(name, "ledger"), "lost") for name in sessions),
        )
        for lost in found[len(ranges) :]:
            rules.event_after(cursor, self.epoch, 10**18, int(lost or 0))
        return [event for (name, *_), some in zip(ranges, found, strict=False) for event in self._readable(name, some)]

    def _readable(self, session: str, entries: _Entries) -> list[Event]:
        events = []
        for entry_id, fields in entries:
            try:
                event_id = rules.event_id(self.epoch, int(entry_id.partition(b"-")[0]))
                kind, created_at = fields[b"t"].decode(), float(fields[b"c"])
                data = pydantic_core.from_json(values.text_of(fields[b"d"]))
                events.append(Event(event_id=event_id, session=session, type=kind, data=data, created_at=created_at))
            except (LookupError, ValueError):  # includes pydantic's ValidationError
                records.log_damaged("an event", f"{entry_id.decode()} of session {session}")
        return events
