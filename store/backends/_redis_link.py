"""The Redis backend's way to its server: commands in one round trip, scripts, and errors as the store's own."""

import asyncio
import contextlib
import functools
import hashlib
import importlib.resources
import random
import ssl
import time
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, NoReturn

import hiredis

from store.backends._breaker import Breaker
from store.backends._redis_cluster import Owner
from store.backends._redis_replies import shaped
from store.backends._redis_url import Address
from store.backends._redis_wire import PATIENCE, Command, Cut, Wire
from store.base import StoreUnavailable
from store.traffic import Failure, Traffic

__all__ = ["PATIENCE", "Command", "Link", "Node", "Script"]

_TRIES = 3
"""How often commands are sent if connections are cut or the server says that it is not ready."""

_PAUSE = 0.02, 0.5
"""Seconds before the second try, at first and at most."""

_PATIENT_TRIES = 20
"""The same in a cluster, while keys are moved or another primary is elected: `PATIENCE` ends them."""

_COMPANY = 0.02
"""Seconds that what nobody waits for waits for other commands, whose write it shares."""

_NOT_READY = ("LOADING", "MASTERDOWN", "TRYAGAIN", "CLUSTERDOWN", "ASK ")
"""How replies begin to commands that can be sent later."""


class Script:
    def __init__(self, name: str) -> None:
        self.text = importlib.resources.files("store.backends").joinpath(name).read_text("utf-8")
        self.digest = hashlib.sha1(self.text.encode(), usedforsecurity=False).hexdigest()


class Node:
    """A server, and its connections: a list of commands is run as a whole on one of them.

    `find` returns host and port when a connection is opened: after a failover they are another server's. In a cluster
    it is the node with the store's slot. Commands share one connection, which is kept: what is issued in one turn of
    the event loop goes out in one write. What makes later commands of its connection wait (`WAIT`, `XREAD` with
    `BLOCK`) has to run apart, on a connection of its own.

    Commands are sent again if their connection is cut: each of them must be one that may run twice.
    """

    def __init__(self, address: Address, find: Callable[[], Any], *, moves: bool, on_write: Callable[[], None]) -> None:
        self._address = address
        self._owner = Owner(address, self._connect) if address.kind == "cluster" else None
        self._find = self._owner.find if self._owner else find
        self._moves = moves
        self._tries = _PATIENT_TRIES if self._owner else _TRIES
        self._on_write = on_write
        self._wire: Wire | None = None
        self._opening: asyncio.Task[Wire] | None = None
        self._idle: list[Wire] = []
        self._reader: Wire | None = None

    async def run(self, commands: Sequence[Command]) -> list[Any]:
        """The replies; one that the server refuses has a ReplyError as its reply. Raises OSError and ReplyError."""
        if self._wire is not None and self._wire.is_open:
            begun = time.monotonic()
            try:
                replies = await self._wire.send(commands)
                if not self._must_repeat(replies):
                    return replies
            except Cut:
                pass
            left = PATIENCE - (time.monotonic() - begun)
        else:
            left = PATIENCE
        async with asyncio.timeout(left):
            return await self._repeat(lambda: self._run_once(commands))

    async def run_apart(self, commands: Sequence[Command]) -> list[Any]:
        """Like `run`, on a connection that has no other commands meanwhile."""
        async with asyncio.timeout(PATIENCE):
            return await self._repeat(lambda: self._run_apart_once(commands))

    async def block(self, command: Command, seconds: float) -> Any:
        """The reply to a command that waits for up to `seconds`, on a connection for these alone. Raises Cut if this
        connection was cut since the last one: it is opened by the next."""
        if self._reader is not None and not self._reader.is_open:
            self._reader = None
            raise Cut("the connection was closed")
        if self._reader is None:
            self._reader = await self._open(patience=seconds + PATIENCE)
        (reply,) = await self._reader.exchange([command])
        if isinstance(reply, hiredis.ReplyError):
            self._must_repeat([reply])  # the next call may have to go to another server
            self._reader.close()
            raise reply
        return reply

    @property
    def connections(self) -> int:
        """The number of open connections."""
        return sum(wire is not None and wire.is_open for wire in (self._wire, self._reader, *self._idle))

    def close(self) -> None:
        """Close all connections: the next commands open others."""
        if self._opening is not None:
            self._opening.cancel()
            self._opening = None
        if self._reader is not None:
            self._reader.close()
        self._drop()

    async def _repeat(self, run: Callable[[], Any]) -> list[Any]:
        for attempt in range(self._tries):
            try:
                replies: list[Any] = await run()
                if attempt == self._tries - 1 or not self._must_repeat(replies):
                    return replies
            except (OSError, hiredis.ReplyError) as error:
                refused = isinstance(error, hiredis.ReplyError) and not str(error).startswith(_NOT_READY)
                if attempt == self._tries - 1 or refused or isinstance(error, TimeoutError):
                    raise
            await asyncio.sleep(random.random() * min(_PAUSE[1], _PAUSE[0] * 2**attempt))
        raise AssertionError("the last try returns or raises")

    async def _run_once(self, commands: Sequence[Command]) -> list[Any]:
        if self._wire is None or not self._wire.is_open:
            if self._opening is None:  # one for all who wait, whoever of them gives up
                self._opening = asyncio.ensure_future(self._open())
                self._opening.add_done_callback(self._opened)
            await asyncio.shield(self._opening)
        assert self._wire is not None
        replies = await self._wire.send(commands)
        if self._owner is not None:
            await self._owner.follow(commands, replies)
        return replies

    def _opened(self, opening: asyncio.Task[Wire]) -> None:
        is_needed = self._opening is opening
        if is_needed:
            self._opening = None
        if opening.cancelled() or opening.exception() is not None:
            return
        if is_needed:
            self._wire = opening.result()
            self._wire.on_write = self._on_write
        else:
            opening.result().close()

    async def _run_apart_once(self, commands: Sequence[Command]) -> list[Any]:
        self._idle = [wire for wire in self._idle if wire.is_open]
        wire = self._idle.pop() if self._idle else await self._open()
        wire.on_write = self._on_write
        try:
            replies = await wire.exchange(commands)
        except BaseException:
            wire.close()
            raise
        self._idle.append(wire)
        return replies

    async def _open(self, patience: float = PATIENCE) -> Wire:
        host, port = await self._find()
        return await self._connect(host, port, patience)

    async def _connect(self, host: str, port: int, patience: float = PATIENCE) -> Wire:
        address = self._address
        greeting: list[Command] = []
        if address.password:
            greeting.append(("AUTH", address.user, address.password) if address.user else ("AUTH", address.password))
        greeting.append(("CLIENT", "SETNAME", "toolgraft"))
        if address.database:
            greeting.append(("SELECT", address.database))
        tls = _context(address.ca) if address.tls else None
        return await Wire.open(host, port, *greeting, tls=tls, patience=patience)

    def _must_repeat(self, replies: list[Any]) -> bool:
        """Whether the server is not ready, or no longer the primary: another connection may lead to the next one."""
        for reply in replies:
            if isinstance(reply, hiredis.ReplyError):
                is_elsewhere = self._owner is not None and self._owner.is_elsewhere(reply)
                if is_elsewhere or (self._moves and str(reply).startswith("READONLY")):
                    self._drop()
                    return True
                if str(reply).startswith(_NOT_READY):
                    return True
        return False

    def _drop(self) -> None:
        for wire in (self._wire, *self._idle):
            if wire is not None:
                wire.close()
        self._idle.clear()


class Link:
    """What the store calls: it runs lists of commands on the store's server.

    `round_trips`: the writes to the server so far, those of the reader of notices and greetings of new connections
    apart. Commands that are issued together share a write.
    """

    def __init__(self, address: Address) -> None:
        self.address = address
        self.round_trips = 0
        self.probe: Command = ("PING",)
        """What shows whether the server is ready: a read of one of the store's keys."""
        self.traffic = Traffic()
        self.breaker = Breaker(address.name, self._probe, self.traffic)
        self._node: Node | None = None
        self._unused = asyncio.Event()
        self._departure: tuple[asyncio.Event, asyncio.TimerHandle] | None = None  # of those who wait for company
        self._time: tuple[float, float] | None = None  # of the server, and of the monotonic clock at that moment

    def connect(self) -> None:
        """Connections are opened as they are needed."""
        is_sentinel = self.address.kind == "sentinel"
        find = self._find_primary if is_sentinel else self._only_host
        self._node = node = Node(self.address, find, moves=is_sentinel, on_write=self._note_write)
        self.traffic.connections = lambda: node.connections

    def _note_write(self) -> None:
        self.round_trips += 1

    async def _only_host(self) -> tuple[str, int]:
        return self.address.hosts[0]

    async def _find_primary(self) -> tuple[str, int]:
        """The primary, as the first Sentinel says that knows one. Raises OSError."""
        for host, port in self.address.hosts:
            try:
                wire = await Wire.open(host, port)
                try:
                    ((*flat,),) = await wire.exchange([("SENTINEL", "MASTER", self.address.service)])
                finally:
                    wire.close()
            except (OSError, TypeError, hiredis.ReplyError):
                continue  # it cannot be reached, or does not know the service
            state = dict(zip(flat[::2], flat[1::2], strict=False))
            if not {b"s_down", b"o_down", b"disconnected"} & set(state.get(b"flags", b"").split(b",")):
                return state[b"ip"].decode(), int(state[b"port"])
        raise Cut(f"no Sentinel knows a primary of {self.address.service!r}")

    @property
    def is_open(self) -> bool:
        return self._node is not None

    async def close(self) -> None:
        """Let running commands end, and close all connections."""
        await self._take_along()
        node, self._node = self._node, None
        await self.breaker.close()
        self._unused.clear()
        if self.traffic.running:
            await self._unused.wait()  # each has a time limit
            await self.breaker.close()  # which the last of them may have opened
        if node is not None:
            node.close()

    def fail(self, error: BaseException | str) -> NoReturn:
        """Raise StoreUnavailable, without secrets."""
        raise StoreUnavailable(f"store {self.address.name}: {self._words(error)}") from (
            error if isinstance(error, BaseException) else None
        )

    def _words(self, error: BaseException | str) -> str:
        words = str(error) or ("no answer in time" if isinstance(error, TimeoutError) else type(error).__name__)
        return words.replace(self.address.password, "***") if self.address.password else words

    async def run(self, *commands: Command) -> list[Any]:
        """The answers to these commands, in one round trip. Raises StoreUnavailable. Commands with WAIT among them run
        on a connection of their own."""
        if not commands:
            return []
        await self._take_along()
        async with self._using() as node:
            run = node.run_apart if any(one[0] == "WAIT" for one in commands) else node.run
            return [shaped(*one) for one in zip(commands, await run(commands), strict=True)]

    async def script(self, script: Script, keys: Sequence[bytes], arguments: Sequence[Any]) -> Any:
        """Run a script. Raises StoreUnavailable."""
        rest = len(keys), *keys, *arguments
        await self._take_along()
        async with self._using() as node:
            (reply,) = await node.run([("EVALSHA", script.digest, *rest)])
            if isinstance(reply, hiredis.ReplyError) and str(reply).startswith("NOSCRIPT"):
                (reply,) = await node.run([("EVAL", script.text, *rest)])  # a new or restarted server
            if isinstance(reply, hiredis.ReplyError):
                raise reply
            return reply

    async def run_with(
        self, script: Script, keys: Sequence[bytes], arguments: Sequence[Any], *commands: Command
    ) -> tuple[list[Any], Any]:
        """The answers to these commands, and that of a script after them, in one round trip; None in its place: the
        server does not know the script yet. Raises StoreUnavailable."""
        await self._take_along()
        async with self._using() as node:
            *replies, last = await node.run([*commands, ("EVALSHA", script.digest, len(keys), *keys, *arguments)])
            if isinstance(last, hiredis.ReplyError):
                if not str(last).startswith("NOSCRIPT"):
                    raise last
                last = None
            return [shaped(*one) for one in zip(commands, replies, strict=True)], last

    async def next_trip(self) -> None:
        """Returns right before other commands are sent, or soon. What its caller runs then goes out before these, in
        the same write."""
        if self._departure is None:
            event = asyncio.Event()
            self._departure = event, asyncio.get_running_loop().call_later(_COMPANY, self._depart)
        await self._departure[0].wait()

    def _depart(self) -> None:
        if self._departure is not None:
            (event, timer), self._departure = self._departure, None
            timer.cancel()
            event.set()

    async def _take_along(self) -> None:
        """Let those go first who have waited for company."""
        if self._departure is not None:
            self._depart()
            await asyncio.sleep(0)

    async def block(self, *command: Any, seconds: float) -> Any:
        """The answer to a command that waits for up to `seconds`. Raises StoreUnavailable, also if the connection was
        cut and can be opened again."""
        async with self._using(waits=True) as node:
            return shaped(command, await node.block(command, seconds))

    @contextlib.asynccontextmanager
    async def _using(self, *, waits: bool = False) -> AsyncIterator[Node]:
        """`waits`: the command itself waits, so that its time says nothing. A cut of its connection says nothing
        either, as it is not sent again."""
        if self._node is None:
            self.fail("not open")
        breaker, traffic = self.breaker, self.traffic
        if breaker.is_open:
            traffic.failures["skipped"] += 1
            self.fail(breaker.outage)
        traffic.running += 1
        began = time.monotonic()
        try:
            async with asyncio.timeout(None) as limit:
                breaker.enter(limit)
                try:
                    yield self._node
                finally:
                    breaker.leave(limit)
            now = breaker.answered()
            if not waits:
                traffic.answered(now - began)
        except (hiredis.HiredisError, OSError) as error:
            if breaker.is_open:  # since another operation has waited in vain
                traffic.failures["skipped"] += 1
                self.fail(breaker.outage)
            kind = _kind(error)
            traffic.failures[kind] += 1
            if kind == "refused":
                breaker.answered()
            elif kind == "timeout" or not waits:
                breaker.fail(self._words(error), began)
            self.fail(error)
        finally:
            traffic.running -= 1
            if not traffic.running:
                self._unused.set()

    async def _probe(self) -> bool:
        """Whether the server answers over a new connection, and may be asked for the store's keys."""
        if self._node is None:
            return False
        self._node.close()
        try:
            (seconds, rest), reply = await self._node.run([("TIME",), self.probe])
        except (hiredis.HiredisError, OSError, TypeError, ValueError):
            return False
        if isinstance(reply, hiredis.ReplyError) and _kind(reply) == "connection":
            return False
        self.note_time(int(seconds) * 1_000_000 + int(rest))
        self.breaker.answered()
        return True

    # --- the server's clock -----------------------------------------------------------------------------------

    def note_time(self, microseconds: int) -> None:
        """The server has just said what time it is."""
        self._time = microseconds / 1e6, time.monotonic()

    def time(self) -> float:
        """The server's time, in seconds since the epoch; the machine's own before the server has said it."""
        at, then = self._time or (time.time(), time.monotonic())
        return at + time.monotonic() - then


@functools.cache
def _context(ca: str | None) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=ca)


def _kind(error: Exception) -> Failure:
    if isinstance(error, TimeoutError):
        return "timeout"
    if isinstance(error, OSError) or str(error).startswith(_NOT_READY):
        return "connection"
    return "refused"
