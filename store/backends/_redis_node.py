"""Connections to the server that has the store's keys: commands are sent again if a connection is cut."""

import asyncio
import functools
import random
import ssl
import time
from collections.abc import Callable, Sequence
from typing import Any

import hiredis

from store.backends._redis_cluster import Owner
from store.backends._redis_timers import patiently
from store.backends._redis_url import Address
from store.backends._redis_wire import FULL, PATIENCE, Command, Cut, Wire

_TRIES = 3
"""How often commands are sent if connections are cut or the server says that it is not ready."""

_PAUSE = 0.02, 0.5
"""Seconds before the second try, at first and at most."""

_PATIENT_TRIES = 20
"""The same in a cluster, while keys are moved or another primary is elected: `PATIENCE` ends them."""

_LEAST = 0.2
"""The share of its patience that an operation has left after a cut: its own process may have been busy until then."""

_NOT_READY = ("LOADING", "MASTERDOWN", "TRYAGAIN", "CLUSTERDOWN", "ASK ", FULL)
"""How replies begin to commands that can be sent later."""

_REFUSED = ("OOM", "READONLY", "NOREPLICAS", "MISCONF", "NOSCRIPT", "BUSY", "NOAUTH", "MOVED", *_NOT_READY)
"""How replies begin to a script that has changed nothing."""


class Sending:
    """What is known of commands that write: whether they may have run although no reply says so."""

    def __init__(self) -> None:
        self._unanswered = 0

    def sent(self) -> None:
        self._unanswered += 1

    def answered(self, replies: Sequence[Any]) -> None:
        """An error that is no refusal ended a script somewhere: what it did before remains."""
        if all(not isinstance(reply, hiredis.ReplyError) or str(reply).startswith(_REFUSED) for reply in replies):
            self._unanswered -= 1

    @property
    def is_in_doubt(self) -> bool:
        return self._unanswered > 0


def is_not_ready(error: Exception) -> bool:
    """Whether the server says that it is not ready: it can be asked later."""
    return str(error).startswith(_NOT_READY)


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

    async def run(self, commands: Sequence[Command], sending: Sending | None = None) -> list[Any]:
        """The replies; one that the server refuses has a ReplyError as its reply. Raises OSError and ReplyError.
        `sending`: notes whether the commands may have run."""
        left = PATIENCE
        if self._wire is not None and self._wire.is_open:
            begun = time.monotonic()
            try:
                replies = await self._exchange(self._wire, commands, sending)
                if not self._must_repeat(replies):
                    return replies
            except Cut:
                pass
            left = max(PATIENCE - (time.monotonic() - begun), _LEAST * PATIENCE)
        async with patiently(left):
            return await self._repeat(lambda: self._run_once(commands, sending))

    async def _exchange(self, wire: Wire, commands: Sequence[Command], sending: Sending | None) -> list[Any]:
        if sending is None:
            return await wire.send(commands)
        sending.sent()
        replies = await wire.send(commands)
        sending.answered(replies)
        return replies

    async def run_apart(self, commands: Sequence[Command]) -> list[Any]:
        """Like `run`, on a connection that has no other commands meanwhile."""
        async with patiently(PATIENCE):
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
                refused = isinstance(error, hiredis.ReplyError) and not is_not_ready(error)
                if attempt == self._tries - 1 or refused or isinstance(error, TimeoutError):
                    raise
            await asyncio.sleep(random.random() * min(_PAUSE[1], _PAUSE[0] * 2**attempt))
        raise AssertionError("the last try returns or raises")

    async def _run_once(self, commands: Sequence[Command], sending: Sending | None) -> list[Any]:
        if self._wire is None or not self._wire.is_open:
            if self._opening is None:  # one for all who wait, whoever of them gives up
                self._opening = asyncio.ensure_future(self._open())
                self._opening.add_done_callback(self._opened)
            await asyncio.shield(self._opening)
        assert self._wire is not None
        replies = await self._exchange(self._wire, commands, sending)
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
                if is_not_ready(reply):
                    return True
        return False

    def _drop(self) -> None:
        for wire in (self._wire, *self._idle):
            if wire is not None:
                wire.close()
        self._idle.clear()


@functools.cache
def _context(ca: str | None) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=ca)
