"""The store in Redis or Valkey: several proxies share it.

A write is computed here, by the rules that all backends share. One script applies it with its events, if what it was
computed from still holds (`_redis_transaction`). The server's clock dates records and ends leases.
"""

import logging

import pydantic_core

from store.backends import _records as records
from store.backends import _redis_values as values
from store.backends import _rules as rules
from store.backends._redis_expiry import RedisExpiry
from store.backends._redis_sessions import RedisSessions
from store.backends._redis_waits import RedisWaits
from store.models import Document, Event

logger = logging.getLogger(__name__)

_READ = 100
"""Notices that are read at once."""


class RedisStore(RedisSessions, RedisExpiry, RedisWaits):
    _damaged = 0
    """The number of the last damaged notice that was logged."""

    async def last_event_id(self) -> str:
        (number,) = await self.link.run(("HGET", self.keys.meta, "event"))
        return rules.event_id(self.epoch, int(number or 0))

    async def events(self, *, after: str | None, session: str | None = None, limit: int = 100) -> list[Event]:
        rules.check_limit(limit)
        if session is not None:
            return await self._events_of(session, after, limit)
        events: list[Event] = []
        cursor = after
        while len(events) < limit:
            start = rules.event_after(cursor, self.epoch, 10**18, 0)
            last, lost, notices = await self.link.run(
                ("HGET", self.keys.meta, "event"),
                ("HGET", self.keys.meta, "lost"),
                ("XRANGE", self.keys.notices, f"({start}", "+", "COUNT", _READ),
            )
            rules.event_after(cursor, self.epoch, int(last or 0), int(lost or 0))
            ranges = self._ranges(notices, start)
            sessions = list(dict.fromkeys(name for name, *_ in ranges)) if after is not None else []
            found = await self.link.run(
                *(("XRANGE", self.keys.events(name), first, number) for name, first, number in ranges),
                *(("HGET", self.keys.of(name, "ledger"), "lost") for name in sessions),
            )
            for lost in found[len(ranges) :]:
                rules.event_after(cursor, self.epoch, 10**18, int(lost or 0))
            for (name, *_), entries in zip(ranges, found, strict=False):
                events += self._readable(name, entries)
            if len(notices) < _READ:
                break
            cursor = rules.event_id(self.epoch, int(notices[-1][0].partition(b"-")[0]))
        return events[:limit]

    def _ranges(self, notices: list[tuple[bytes, dict[bytes, bytes]]], start: int) -> list[tuple[str, int, int]]:
        """The session of each notice, and the numbers of its first and last event after `start`."""
        ranges = []
        for entry_id, fields in notices:
            number = int(entry_id.partition(b"-")[0])
            try:
                ranges.append((fields[b"s"].decode(), max(number - int(fields[b"n"]) + 1, start + 1), number))
            except (LookupError, ValueError):
                if number > self._damaged:  # others who follow meet it, too
                    self._damaged = number
                    logger.warning("the store's notice %s is damaged: its events are left out", entry_id.decode())
        return ranges

    async def _events_of(self, session: str, after: str | None, limit: int) -> list[Event]:
        start = rules.event_after(after, self.epoch, 10**18, 0)
        while True:
            last, lost, entries = await self.link.run(
                ("HGET", self.keys.meta, "event"),
                ("HGET", self.keys.of(session, "ledger"), "lost"),
                ("XRANGE", self.keys.events(session), f"({start}", "+", "COUNT", limit),
            )
            rules.event_after(after, self.epoch, int(last or 0), int(lost or 0))
            events = self._readable(session, entries)
            if events or len(entries) < limit:
                return events
            start = int(entries[-1][0].partition(b"-")[0])  # all of them are damaged

    def _readable(self, session: str, entries: list[tuple[bytes, dict[bytes, bytes]]]) -> list[Event]:
        events = []
        for entry_id, fields in entries:
            try:
                events.append(self._event(session, entry_id, fields))
            except (LookupError, ValueError):  # and of pydantic's
                records.log_damaged("an event", f"{entry_id.decode()} of session {session}")
        return events

    def _event(self, session: str, entry_id: bytes, fields: dict[bytes, bytes]) -> Event:
        return Event(
            event_id=rules.event_id(self.epoch, int(entry_id.partition(b"-")[0])),
            session=session,
            type=fields[b"t"].decode(),
            data=_data(values.text_of(fields[b"d"])),
            created_at=float(fields[b"c"]),
        )


def _data(text: str) -> Document:
    try:
        data: Document = pydantic_core.from_json(text)
    except ValueError:  # damaged: its place is kept, so that later events are found
        return {}
    return data
