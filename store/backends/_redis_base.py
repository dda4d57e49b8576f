"""The base of the Redis backend: opening, closing, times, confirmation by replicas, transactions and records."""

import asyncio
import itertools
import os
import secrets
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, Self

from store.backends import _records as records
from store.backends import _redis_values as values
from store.backends._changes import Changes
from store.backends._clocks import Clocks, Now
from store.backends._redis_client import Address, Command, Link
from store.backends._redis_transaction import Transaction, apply
from store.backends._redis_values import Keys
from store.backends._shared import SharedMethods
from store.backends._waits import Waiters
from store.base import NotDurable, StoreUnavailable, StoreUnusable
from store.budget import Budget, Share
from store.models import Record, Session

SMALL = 128
"""The memory use of a session's name and a number in bytes."""

_SYNC = 2000
"""Milliseconds to wait for a replica."""

_LATE = 15.0
"""Seconds after a write within which its caller requests the confirmation."""


class RedisBase(SharedMethods):
    def __init__(
        self,
        address: Address,
        *,
        ttl: float = 7 * 24 * 3600,
        clock: Callable[[], float] = time.time,
        read_only: bool = False,
    ) -> None:
        super().__init__(ttl=ttl, clock=clock)
        self.read_only = read_only
        self.secret, self.epoch = b"", ""
        self.link = Link(address)
        self.traffic = self.link.traffic
        self.keys = Keys(address.prefix, one_slot=address.kind == "cluster")
        self.link.probe = ("HGET", self.keys.meta, "epoch")
        if clock is time.time:
            self.clock = self.link.time
        self._clocks = self._new_clocks()
        self._highest = 0
        """The highest revision of any ledger that was read or written."""
        self._own_leases: dict[str, float] = {}  # leases of this process's proxies
        self._waiters = Waiters()
        self._has_replicas = False
        self._primary = ""
        """The replication id of the primary, which changes with each promotion and restart."""
        self._written = self._doubt_until = float("-inf")  # the last write's time; writes to an earlier primary
        self._asking = asyncio.Lock()
        self._confirmed = 0.0, ""
        """The time of the last request to replicas, and why they did not confirm the writes before it."""

    def remember_within(self, budget: Budget) -> None:
        records.remember_within(budget)
        self._sessions: Share[str, tuple[int, Session]] = budget.share("sessions", 1 / 16)
        self._writes: Share[str, Changes] = budget.share("ledger writes", 1 / 32)
        self._delivered: Share[str, bool] = budget.share("delivered answers", 1 / 192)
        """Sessions without undelivered turns at a request's last read: its `take_over` need not ask the server."""

    @classmethod
    def from_url(cls, url: str, *, ttl: float, clock: Callable[[], float], read_only: bool = False) -> Self:
        return cls(Address.read(url, os.environ), ttl=ttl, clock=clock, read_only=read_only)

    async def open(self) -> None:
        self.link.connect()
        try:
            info = await self._greet()
            version = str(info.get("redis_version", "0"))
            if "valkey" not in str(info.get("server_name", "")) and int(version.partition(".")[0]) < 7:
                raise StoreUnusable(f"store {self.link.address.name}: version {version} is older than 7.0")
            if not self.read_only:
                await self.link.run(
                    ("HSETNX", self.keys.meta, "secret", secrets.token_bytes(32)),
                    ("HSETNX", self.keys.meta, "epoch", secrets.token_hex(4)),
                )
            ((secret, epoch),) = await self.link.run(("HMGET", self.keys.meta, "secret", "epoch"))
            if secret is None or epoch is None:
                raise StoreUnusable(f"store {self.link.address.name}: there is no store here yet")
            self.secret, self.epoch = bytes(secret), epoch.decode()
            self._clocks = self._new_clocks()
            await self._begin_reading()
        except BaseException as error:
            await self.close()
            if isinstance(error, StoreUnavailable):
                raise StoreUnusable(str(error)) from error
            raise

    async def _begin_reading(self) -> None:
        """Start reading the notices of other processes."""

    async def _greet(self) -> dict[str, Any]:
        """Returns the server's INFO, and notes whether it has replicas."""
        info, (seconds, rest) = await self.link.run(("INFO",), ("TIME",))
        self.link.note_time(int(seconds) * 1_000_000 + int(rest))
        # Never reset: a primary that has been cut off from its replicas reports none.
        self._has_replicas = self._has_replicas or int(info.get("connected_slaves", 0)) > 0
        return dict(info)

    async def close(self) -> None:
        self._waiters.close()
        await self.link.close()
        self.forget()
        self._own_leases.clear()

    def forget(self) -> None:
        """Clear the caches of the server's data."""
        for share in (self._sessions, self._writes, self._delivered):
            share.clear()

    async def ping(self) -> None:
        if not self.read_only:
            await self.link.run(("SET", self.keys.ping, repr(self.times().wall)))
        await self._greet()

    async def sync(self) -> None:
        await self.confirm()

    async def confirm(self) -> None:
        self.check_open()
        if self.read_only or self.durability != "power" or not self._has_replicas:
            return
        written = time.monotonic()
        async with self._asking:  # one WAIT confirms all earlier writes
            asked, doubt = self._confirmed
            if asked < written:
                asked, doubt = time.monotonic(), ""
                try:
                    await self._ask_replica()
                except StoreUnavailable as error:  # after the write was applied
                    doubt = str(error)
                self._confirmed = asked, doubt
        if doubt:
            raise NotDurable(doubt)

    async def _ask_replica(self) -> None:
        # a replica that has this write has all earlier ones
        _, info, replicas = await self.link.run(
            ("SET", self.keys.ping, repr(self.times().wall)), ("INFO", "replication"), ("WAIT", 1, _SYNC)
        )
        if int(replicas) < 1:
            raise NotDurable(f"store {self.link.address.name}: no replica has confirmed the write")
        self._note_primary(str(info["master_replid"]))
        if time.monotonic() < self._doubt_until:
            raise NotDurable(f"store {self.link.address.name}: another primary, which may lack the write")

    def _note_primary(self, name: str) -> None:
        """Another primary may lack the latest writes, but its replicas would still confirm them. So nothing is
        confirmed until all callers that wrote to the earlier primary have requested a confirmation."""
        if name != self._primary:
            self._primary, self._doubt_until = name, self._written + _LATE

    @property
    def outage(self) -> str:
        return self.link.breaker.outage

    async def recovered(self, timeout: float) -> None:
        await self.link.breaker.recovered(timeout)

    def check_writable(self) -> None:
        if self.read_only:
            self.link.fail("opened read-only")
        self.check_open()

    def check_open(self) -> None:
        if not self.link.is_open:
            self.link.fail("not open")

    _check_waiting = check_open

    # --- times ------------------------------------------------------------------------------------------------

    def _new_clocks(self) -> Clocks:
        return Clocks(lambda: self.times().wall, lambda: self.uptime())  # both may be replaced

    def times(self) -> Now:
        """The server's time, which all proxies share, for dates and leases."""
        now = self.clock()
        return Now(now, now)

    # --- transactions -----------------------------------------------------------------------------------------

    @property
    def life(self) -> int:
        """The seconds after which Redis deletes a key that was not written again, which only matters if no proxy runs:
        proxies expire records one by one (`expire`), and not after a jump of the server's clock."""
        return int(4 * self.ttl + 7 * 24 * 3600)

    async def apply(self, tx: Transaction) -> dict[Command, Any]:
        """Apply a transaction. Returns the current values of conditions that no longer hold; empty: it was applied."""
        keys, arguments = tx.arguments()
        self._delivered.pop(tx.session)
        try:
            done, primary, *rest = await self.link.write(apply(), keys, [int(self._has_replicas), *arguments])
        finally:
            if tx.deleted and self.on_change is not None:  # even if the outcome is unknown
                self.on_change(tx.session)
        conflicts = {}
        if not done:
            commands = list(tx.conditions)
            conflicts = {commands[at - 1]: value for at, value in itertools.batched(rest, 2, strict=True)}
            if not tx.was_applied(conflicts):
                return conflicts
        if primary:
            self._note_primary(primary.decode())
            self._written = time.monotonic()
        if conflicts:
            return {}
        number, before, after = map(int, rest)
        self._last_number = max(self._last_number, number)
        if tx.unknown_changes:
            self._writes.pop(tx.session)
        elif tx.touched is not None:
            self._note_own_write(tx.session, before, after, *tx.touched)
        return {}

    def _note_own_write(
        self, session: str, before: int, after: int, turn_ids: Collection[str], keys: Collection[bytes]
    ) -> None:
        """Note the turns and keys that this process wrote between these revisions of the session's ledger. If other
        writes are missing before it, the next snapshot reads all of them."""
        changes = self._writes.get(session)
        if changes is not None and changes.revision == before and after:
            changes.note(before, after, turn_ids, keys)
            self._keep_changes(session, changes)

    def _note_snapshot(self, session: str, revision: int | None, entries: Sequence[bytes]) -> None:
        """Note the revision of the session's ledger, and the writes after the last known one."""
        changes = self._writes.get(session)
        if revision is None:
            self._writes.pop(session)
            return
        if changes is not None:
            values.follow_writes(changes, entries, revision)
        if changes is None or changes.revision != revision:  # a write is missing
            changes = Changes(revision, self._highest)
        self._keep_changes(session, changes)

    def _keep_changes(self, session: str, changes: Changes) -> None:
        self._highest = max(self._highest, changes.revision)
        changes.shrink(self._writes.limit // 2)
        self._writes.put(session, changes, changes.size)

    # --- records ----------------------------------------------------------------------------------------------

    def record_of[R: Record](self, model: type[R], value: bytes | None) -> R | None:
        """The record in a stamped value; None if missing or unreadable."""
        return None if value is None else records.read(model, values.text_of(values.unpack(value)[1]))

    def records_of[R: Record](self, model: type[R], found: Iterable[bytes | None]) -> list[R]:
        return [one for value in found if (one := self.record_of(model, value)) is not None]

    async def _fields(self, session: str, name: str, fields: Sequence[Any]) -> list[bytes | None]:
        if not fields:
            return []
        (found,) = await self.link.run(("HMGET", self.keys.of(session, name), *fields))
        return list(found)


def body_of(text: str) -> bytes:
    """The body of a value with this record."""
    return values.compress(records.versioned(text))
