"""The base of the Redis backend: opening, closing, times, confirmation by replicas, transactions and records."""

import asyncio
import functools
import itertools
import json
import os
import random
import secrets
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, Self

from store.backends import _records as records
from store.backends import _redis_values as values
from store.backends._changes import Changes
from store.backends._clocks import Clocks, Now
from store.backends._notifier import Notifier
from store.backends._redis_client import Address, Command, Link, Script
from store.backends._redis_values import STAMPED, Key, Keys
from store.backends._shared import SharedMethods
from store.base import NotDurable, StoreUnavailable, StoreUnusable
from store.budget import Budget, Share
from store.models import Record, Session

ATTEMPTS = 40
"""How often a transaction is tried. Each conflict means that another write has succeeded."""

MAX_EVENTS = 10_000
"""The most events that are kept for each session."""

_MARKED = 60
"""Seconds for which the mark of an applied transaction is kept: longer than a command is tried."""

MAX_NOTICES = 100_000

NEAR = 60
"""Seconds: a date is only stored if it differs by more from the member's place, which is a time as well."""

apply = functools.cache(lambda: Script("_redis_apply.lua"))


class Unread(Exception):
    def __init__(self, commands: Iterable[Command]) -> None:
        self.commands = [*commands]


class Stale(Exception):
    """The read values are inconsistent, because of other writes between the reads."""


class Transaction:
    """`known`: earlier commands and their answers. A key can be given by its name within the session."""

    def __init__(self, store: "RedisBase", session: str, known: dict[Command, Any]) -> None:
        self.keys: Keys = store.keys
        self.session = session
        self.stamp = secrets.token_bytes(values.STAMP)
        self._own_mark = self.keys.shared(f"applied:{self.stamp.hex()}")
        self.now: Now = store.times()
        self.operations: list[tuple[Any, ...]] = []
        self.calls: list[tuple[str, str | None]] = []  # written calls: id, and the tool if it can be claimed
        self.deleted = False
        self.touched: tuple[set[str], set[bytes]] | None = None  # turns and keys of the ledger
        self.unknown_changes = False
        self.conditions: dict[Command, Any] = {}
        self.life = store.life
        self._written: set[Command] = set()
        self._has_events = False
        self._store = store
        self._known = known

    # --- reading ----------------------------------------------------------------------------------------------

    def need(self, *commands: Command) -> list[Any]:
        """The answers to these commands, read in one round trip and not compared when the transaction is applied. Also
        prefetches what is later read one by one."""
        if missing := [command for command in commands if command not in self._known]:
            raise Unread(missing)
        return [self._known[command] for command in commands]

    def get(self, name: str, *fields: str | bytes) -> list[Any]:
        """Fields of a hash of the session, compared when the transaction is applied."""
        return self.watch([self.field(name, field) for field in fields])

    def peek(self, name: str, *fields: str | bytes) -> list[Any]:
        """As `get`, but not compared."""
        return self.need(*(self.field(name, field) for field in fields))

    def watch(self, commands: list[Command]) -> list[Any]:
        """The answers to GET, HGET and ZSCORE, compared when the transaction is applied."""
        found = self.need(*commands)
        self.conditions.update(zip(commands, found, strict=True))
        return found

    def of(self, name: str) -> Key:
        return self.keys.of(self.session, name)

    def field(self, name: str, field: str | bytes) -> Command:
        return "HGET", self.of(name), field.encode() if isinstance(field, str) else field

    # --- writing ----------------------------------------------------------------------------------------------

    def do(self, operation: str, key: str | Key, *arguments: Any) -> None:
        """Add a write: a command, or an operation of the script."""
        self.operations.append((operation, key if isinstance(key, Key) else self.of(key), *arguments))

    def put(self, name: str, field: str | bytes, body: bytes, *strings: bytes) -> None:
        """Write a stamped value."""
        self.do("HSET", name, field, values.pack(self.stamp, strings, body))
        self._written.add(self.field(name, field))

    def delete(self, name: str, *fields: str | bytes) -> None:
        self.do("HDEL", name, *fields)
        self._written.difference_update(self.field(name, field) for field in fields)

    def once(self) -> None:
        """Leave a mark that the transaction was applied, if it may leave no stamped value."""
        self.conditions["GET", self._own_mark] = None
        self.do("SET", self._own_mark, "1", "EX", _MARKED)

    def index(self, name: str, source: str, member: str | bytes, *starts: bytes, remove: bool = False) -> None:
        """Add (or remove) a member's entries in an index. The member's place is in the zset `source`."""
        for part in itertools.batched(starts, 1000, strict=False):  # Lua's stack is small
            self.do("INDEX", name, "ZREM" if remove else "ZADD", self.of(source), member, *part)

    def record(self, kind: str, data: str) -> None:
        """An event of this transaction; `data` is JSON."""
        fields = "t", kind, "d", values.compress(data), "c", repr(round(self.now.wall, 3))
        self.do("EVENT", "events", MAX_EVENTS, self.of("ledger"), *fields)
        self._has_events = True

    def due(self, at: float) -> None:
        """Note that a record of the session expires at this time."""
        self.do("ZADD", self.keys.due, "LT", at, self.session)

    def touch(self, turn_ids: Collection[str], keys: Collection[bytes] = ()) -> None:
        """Note that the transaction changes these turns and keys of the session's ledger."""
        if self.touched is None:
            self.touched = set(), set()
        self.touched[0].update(turn_ids)
        self.touched[1].update(keys)

    def was_applied(self, conflicts: dict[Command, Any]) -> bool:
        """Whether an earlier try was applied, and its answer was lost with the connection."""
        return bool(conflicts.get(("GET", self._own_mark))) or any(
            command in self._written and (value or b"").startswith(self.stamp) for command, value in conflicts.items()
        )

    def arguments(self) -> tuple[list[bytes], list[Any]]:
        """The script's keys, and its lists of conditions and operations."""
        if self.touched is not None or self.unknown_changes:
            entry = b"" if self.unknown_changes or self.touched is None else values.pack_write(*self.touched)
            self.do(
                "REVISE", "ledger", self.of("turns"), self.of("writes"), values.MOST_WRITES, values.WRITES_KEPT, entry
            )
        if self._has_events:
            self.due(self.now.wall + self._store.ttl)
        own, lasting = self.of(""), self.of("session")
        for key in dict.fromkeys(key for _, key, *_ in self.operations if key.startswith(own) and key != lasting):
            self.do("EXPIRE", key, self.life)
        if self._has_events or self.calls or self.deleted:
            wakes = json.dumps({"calls": self.calls, "changed": self.deleted}, separators=(",", ":"))
            fields = "s", self.session, "c", int(self.now.wall), "w", wakes
            self.do("NOTICE", self.keys.notices, MAX_NOTICES, self.keys.meta, *fields)
        conditions = []
        for (kind, key, *field), value in self.conditions.items():
            if kind == "HGET" and key.rpartition(b":")[2].decode() in STAMPED:
                kind, value = "STAMP", value and value[: values.STAMP]
            conditions.append((kind, key, field[0] if field else b"", b"" if value is None else value))
        keys = {self.keys.number: 1}

        def flat(rows: Sequence[Sequence[Any]]) -> list[Any]:
            found: list[Any] = [len(rows)]
            for row in rows:
                found.append(len(row))
                found += [keys.setdefault(one, len(keys) + 1) if type(one) is Key else one for one in row]
            return found

        arguments = flat(conditions) + flat(self.operations)
        return list(keys), arguments


async def transact[T](
    store: "RedisBase", session: str, compute: Callable[[Transaction], T], *, reads: bool = False
) -> T:
    """Apply the writes of `compute` atomically. Returns its result, or raises its error. `reads`: it only reads."""
    (store.check_open if reads else store.check_writable)()
    known: dict[Command, Any] = {}
    attempt = 0
    while True:
        tx = Transaction(store, session, known)
        try:
            result = compute(tx)
            if not tx.operations or not (conflicts := await store.apply(tx)):
                return result
            known = {command: value for command, value in known.items() if command in tx.conditions} | conflicts
        except Unread as unread:
            known.update(zip(unread.commands, await store.link.run(*unread.commands), strict=True))
            continue
        except Stale:
            known = {}
        if attempt == ATTEMPTS:
            store.link.fail("too many writes at the same time")
        if attempt:
            await asyncio.sleep(random.random() * min(0.05, 0.001 * 2**attempt))
        attempt += 1


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
        self.notifier = Notifier(self.check_open, self.recovered)
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
        self.notifier.close()
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
        self.notifier.last_number = max(self.notifier.last_number, number)
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
