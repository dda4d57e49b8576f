"""Transactions of the Redis backend: computed from values that were read, and applied if these have not changed.

The rules of the store are Python, shared by all backends. A transaction is a function that reads through `Transaction`
and collects writes. If a value has not been read yet, it is fetched and the function is called again. Then one script
compares all read values with the current ones, and writes; if any differ, the function is called again with those.
"""

import asyncio
import functools
import itertools
import json
import random
import secrets
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from store.backends import _redis_values as values
from store.backends._clocks import Now
from store.backends._redis_client import Command, Script
from store.backends._redis_values import STAMPED, Key, Keys

if TYPE_CHECKING:
    from store.backends._redis_base import RedisBase

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
