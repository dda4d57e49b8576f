"""Transactions of the Redis backend: computed here, from what was read, and applied by the server if that still holds.

The rules of the store are Python, shared by all backends. A transaction is a function that reads through `Transaction`
and says what is to be written. What it has not read yet is fetched, and it is called again. Then one script compares
everything that was read with what is there, and writes; if something differs, the function is called again with that.
"""

import asyncio
import functools
import json
import random
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from store.backends import _redis_values as values
from store.backends._clocks import Now
from store.backends._redis_client import Command, Script
from store.backends._redis_values import STAMPED, Keys
from store.models import Call

if TYPE_CHECKING:
    from store.backends._redis_base import RedisBase

ATTEMPTS = 40
"""How often a write is tried that others have overtaken: each time, one of the others has succeeded."""

MAX_EVENTS = 10_000
"""The events that are kept of each session."""

_MARKED = 60
"""Seconds for which it is known that a transaction was applied: longer than a command is tried."""

MAX_NOTICES = 100_000

NEAR = 60
"""Seconds by which the date of a member differs from its place at most, unless it is noted: places are times, too."""

apply = functools.cache(lambda: Script("_redis_apply.lua"))


class Unread(Exception):
    def __init__(self, commands: Iterable[Command]) -> None:
        self.commands = [*commands]


class Stale(Exception):
    """What was read does not fit together: others have written meanwhile."""


class Transaction:
    """`known`: the answers to commands that were read before."""

    def __init__(self, store: "RedisBase", session: str, known: dict[Command, Any]) -> None:
        self.keys: Keys = store.keys
        self.session = session
        self.stamp = values.new_stamp()
        self.now: Now = store.times()
        self.operations: list[tuple[str, bytes, tuple[Any, ...]]] = []
        self.events: list[tuple[str, str]] = []
        self.calls: list[tuple[str, str | None]] = []  # written: id, and the tool if it can be claimed
        self.deleted = False
        self.touched: tuple[set[str], set[bytes]] | None = None  # turns and keys of the ledger
        self.unknown_changes = False
        self.conditions: dict[Command, Any] = {}
        self.written: dict[tuple[bytes, bytes], bytes | None] = {}
        self._store = store
        self._known = known

    # --- reading ----------------------------------------------------------------------------------------------

    def need(self, *commands: Command) -> list[Any]:
        """The answers to these commands, which are not compared when the transaction is applied."""
        if missing := [command for command in commands if command not in self._known]:
            raise Unread(missing)
        return [self._known[command] for command in commands]

    def get(self, name: str, *fields: str | bytes) -> list[bytes | None]:
        """The values of these fields of a hash of the session."""
        key = self.keys.of(self.session, name)
        return self._watched([("HGET", key, _bytes(field)) for field in fields])

    def get_string(self, *keys: bytes) -> list[bytes | None]:
        return self._watched([("GET", key) for key in keys])

    def get_scores(self, key: bytes, *members: bytes, before: Sequence[Command] = ()) -> list[Any]:
        """The scores of members of a zset, read before other commands."""
        scores: list[Command] = [("ZSCORE", key, member) for member in members]
        self.prefetch(*scores, *before)
        return self._watched(scores)

    def prefetch(self, *commands: Command) -> None:
        """Read all of these in one round trip, before they are asked for one after the other."""
        self.need(*commands)

    def _watched(self, commands: list[Command]) -> list[Any]:
        found = self.need(*commands)
        self.conditions.update(zip(commands, found, strict=True))
        return found

    # --- writing ----------------------------------------------------------------------------------------------

    def do(self, operation: str, name: str, *arguments: Any) -> None:
        """Run this command on a key of the session."""
        self.operations.append((operation, self.keys.of(self.session, name), arguments))

    def do_shared(self, operation: str, key: bytes, *arguments: Any) -> None:
        self.operations.append((operation, key, arguments))

    def put(self, name: str, field: str | bytes, strings: Sequence[bytes], body: bytes) -> None:
        """Write a stamped value."""
        key, field = self.keys.of(self.session, name), _bytes(field)
        value = values.pack(self.stamp, strings, body)
        self.operations.append(("HSET", key, (field, value)))
        self.written[key, field] = value

    def delete(self, name: str, *fields: str | bytes) -> None:
        key = self.keys.of(self.session, name)
        self.operations.append(("HDEL", key, fields))
        self.written |= {(key, _bytes(field)): None for field in fields}

    def once(self) -> None:
        """Note that the transaction was applied, for one that may leave no stamped value."""
        key = self._own_mark
        self.conditions["GET", key] = None
        self.do_shared("SET", key, "1", "EX", _MARKED)

    @property
    def _own_mark(self) -> bytes:
        return self.keys.shared(f"applied:{self.stamp.hex()}")

    def place(self, name: str, offset: int, member: str | bytes) -> None:
        """Add a member after all that are there, the one of the next offset after this one."""
        self.do("PLACE", name, offset, member)

    def date(self, name: str, source: str, member: str, date: float) -> None:
        """Note when a new member of the zset `source` was made, if its place there does not tell."""
        self.do("DATE", name, _Key(self.keys.of(self.session, source)), member, repr(date), NEAR)

    def index(self, name: str, source: str, member: str | bytes, *starts: bytes, remove: bool = False) -> None:
        """Add to (or remove from) an index the entries for a member, which has its place in the zset `source`."""
        for part in _batched(starts):
            operation = "UNINDEX" if remove else "INDEX"
            self.do(operation, name, _Key(self.keys.of(self.session, source)), member, *part)

    def record(self, kind: str, data: str) -> None:
        """An event of this transaction; `data` is JSON."""
        self.events.append((kind, data))

    def due(self, at: float) -> None:
        """Something of the session expires at this time."""
        self.do_shared("ZADD", self.keys.due, "LT", at, self.session)

    def wrote_call(self, call: Call, claimable: bool) -> None:
        self.calls.append((call.call_id, call.name if claimable else None))

    def touch(self, turn_ids: Collection[str], keys: Collection[bytes] = ()) -> None:
        """The transaction concerns these turns and keys of the session's ledger."""
        if self.touched is None:
            self.touched = set(), set()
        self.touched[0].update(turn_ids)
        self.touched[1].update(keys)

    def was_applied(self, conflicts: dict[Command, Any]) -> bool:
        """Whether it was applied before, and its answer was lost with a connection."""
        own = {("HGET", *place) for place, value in self.written.items() if value is not None}
        if conflicts.get(("GET", self._own_mark)):
            return True
        return any(command in own and (value or b"").startswith(self.stamp) for command, value in conflicts.items())

    @property
    def has_writes(self) -> bool:
        return bool(self.operations or self.events)

    def arguments(self, life: int, *, named: bool) -> tuple[list[bytes], list[Any]]:
        """The keys and the arguments of the script. `named`: it returns the replication id of its server."""
        keys: dict[bytes, int] = {self.keys.number: 1}
        of = self.keys.of

        def at(key: bytes) -> int:
            return keys.setdefault(key, len(keys) + 1)

        lasting = self.keys.of(self.session, "session")
        begin = of(self.session, "")
        operations = list(self.operations)
        if self.touched is not None or self.unknown_changes:
            names = [_Key(of(self.session, name)) for name in ("turns", "writes")]
            entry = b"" if self.unknown_changes or self.touched is None else values.pack_write(*self.touched)
            operations.append(
                ("REVISE", of(self.session, "ledger"), (*names, values.MOST_WRITES, values.WRITES_KEPT, entry))
            )
        if self.events:
            operations.append(("ZADD", self.keys.due, ("LT", self.now.wall + self._store.ttl, self.session)))
        own = dict.fromkeys(key for _, key, _ in operations if key.startswith(begin) and key != lasting)
        operations += (("EXPIRE", key, ()) for key in own)

        out: list[Any] = [life, int(named), len(self.conditions)]
        for command, value in self.conditions.items():
            kind, key, *field = command
            if kind == "HGET" and key.rpartition(b":")[2].decode() in STAMPED:
                kind, value = "STAMP", value and value[: values.STAMP]
            out += (kind, at(key), field[0] if field else b"", b"" if value is None else value)
        out.append(len(operations))
        for name, key, arguments in operations:
            out += (name, at(key), len(arguments))
            out += (at(one.key) if isinstance(one, _Key) else one for one in arguments)
        created = repr(round(self.now.wall, 3))
        out.append(len(self.events))
        stream, notes = self.keys.events(self.session), of(self.session, "ledger")
        for kind, data in self.events:
            out += (at(stream), at(notes), MAX_EVENTS, kind, values.compress(data), created)
        wakes = self._wakes()
        out.append(1 if wakes else 0)
        if wakes:
            out += (at(self.keys.notices), at(self.keys.meta), MAX_NOTICES, self.session, int(self.now.wall), wakes)
        return list(keys), out

    def _wakes(self) -> str:
        if not (self.events or self.calls or self.deleted):
            return ""
        return json.dumps({"calls": self.calls, "changed": self.deleted}, separators=(",", ":"))


class _Key:
    """A key among the arguments of an operation."""

    def __init__(self, key: bytes) -> None:
        self.key = key


def _bytes(value: str | bytes) -> bytes:
    return value.encode() if isinstance(value, str) else value


def _batched(values: Sequence[bytes]) -> Iterable[Sequence[bytes]]:
    return (values[at : at + 1000] for at in range(0, len(values), 1000))  # Lua's stack is small


async def transact[T](
    store: "RedisBase", session: str, compute: Callable[[Transaction], T], *, reads: bool = False
) -> T:
    """Apply what `compute` writes, as one step. Returns what it returns, or raises its error. `reads`: it only
    reads."""
    (store.check_open if reads else store.check_writable)()
    known: dict[Command, Any] = {}
    attempt = 0
    while True:
        tx = Transaction(store, session, known)
        try:
            result = compute(tx)
        except Unread as unread:
            known.update(zip(unread.commands, await store.link.run(*unread.commands), strict=True))
            continue
        except Stale:
            known = {}
            attempt = await _pause(store, attempt)
            continue
        if not tx.has_writes or not (conflicts := await store.apply(tx)):
            return result
        watched = {command: value for command, value in known.items() if command in tx.conditions}
        known = {**watched, **conflicts}
        attempt = await _pause(store, attempt)


async def _pause(store: "RedisBase", attempt: int) -> int:
    """Returns the number of attempts. Raises StoreUnavailable after too many."""
    if attempt == ATTEMPTS:
        store.link.fail("too many writes at the same time")
    if attempt:
        await asyncio.sleep(random.random() * min(0.05, 0.001 * 2**attempt))
    return attempt + 1
