"""One connection to one Redis server. All commands of one turn of the event loop go out in one write."""

import asyncio
import ssl
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Self

import hiredis

from store.backends._redis_timers import patiently, time_back

PATIENCE = 5.0
"""Seconds after which a server that does not answer is considered unavailable."""

type Command = tuple[Any, ...]

FULL = "ERR max number of clients"
"""How the only reply of a server begins that has no room for a connection."""

_CODES = ("WRONGPASS", "NOPERM", "DENIED", "LOADING", "MASTERDOWN")
"""How replies to AUTH begin that say more than `ERR`."""

_MORE = object()
"""There is no further whole reply."""


class Cut(OSError):
    """The connection ended before the reply: whether the server has run the command is unknown."""


class _Exchange:
    """Commands whose replies one caller waits for."""

    __slots__ = ("count", "replies", "sent", "waiter")

    def __init__(self, waiter: asyncio.Future[list[Any]], count: int, sent: float) -> None:
        self.waiter = waiter
        self.count = count
        self.sent = sent
        self.replies: list[Any] = []


class Wire(asyncio.Protocol):
    """`patience`: seconds after which a connection without a reply is given up. `on_write`, if any, is called for each
    write.

    A cancelled caller does not shift replies: its own are read and dropped.
    """

    on_write: Callable[[], None] | None = None

    def __init__(self, patience: float = PATIENCE) -> None:
        self._loop = asyncio.get_running_loop()
        self._patience = patience
        self._reader: Any = hiredis.Reader(notEnoughData=_MORE)
        self._transport: asyncio.Transport | None = None
        self._unsent: list[bytes] = []
        self._exchanges: deque[_Exchange] = deque()
        self._watch: asyncio.TimerHandle | None = None

    @classmethod
    async def open(
        cls,
        host: str,
        port: int,
        *greeting: Command,
        tls: ssl.SSLContext | None = None,
        patience: float = PATIENCE,
    ) -> Self:
        """Connect, and run the commands of the greeting. Raises OSError and ReplyError."""
        async with patiently(PATIENCE):
            loop = asyncio.get_running_loop()
            _, wire = await loop.create_connection(lambda: cls(patience), host, port, ssl=tls)
            try:
                for (name, *_), reply in zip(greeting, await wire.exchange(greeting), strict=True):
                    if isinstance(reply, hiredis.ReplyError):
                        raise _without_secrets(reply) if name == "AUTH" else reply
            except BaseException:
                wire.close()
                raise
        return wire

    @property
    def is_open(self) -> bool:
        return self._transport is not None

    async def exchange(self, commands: Sequence[Command]) -> list[Any]:
        """The replies to these commands; one that the server refuses has a ReplyError as its reply. Raises Cut, and
        TimeoutError."""
        return await self.send(commands)

    def send(self, commands: Sequence[Command]) -> asyncio.Future[list[Any]]:
        """Like `exchange`, for a caller that waits later: the commands are sent in any case."""
        waiter = self._loop.create_future()
        if self._transport is None:
            waiter.set_exception(Cut("the connection is closed"))
            return waiter
        if not commands:
            waiter.set_result([])
            return waiter
        packed = [hiredis.pack_command(command) for command in commands]  # raises before anything is queued
        if not self._unsent:
            self._loop.call_soon(self._flush)
        self._unsent += packed
        now = self._loop.time()
        self._exchanges.append(_Exchange(waiter, len(commands), now))
        if self._watch is None:
            self._watch = self._loop.call_at(now + self._patience, self._check)
        return waiter

    def _flush(self) -> None:
        if self._transport is not None and self._unsent:
            if self.on_write is not None:
                self.on_write()
            data = b"".join(self._unsent) if len(self._unsent) > 1 else self._unsent[0]
            self._unsent.clear()
            self._transport.write(data)

    def close(self) -> None:
        self._give_up("the connection was closed")

    # --- the protocol -----------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        try:
            self._reader.feed(data)
            while (reply := self._reader.gets()) is not _MORE:
                exchange = self._exchanges[0]
                exchange.replies.append(reply)
                if len(exchange.replies) == exchange.count:
                    self._exchanges.popleft()
                    if not exchange.waiter.done():  # cancelled
                        exchange.waiter.set_result(exchange.replies)
        except (hiredis.ProtocolError, LookupError):
            self._give_up("the server does not speak Redis' protocol")

    def connection_lost(self, exc: Exception | None) -> None:
        self._end(str(exc) if exc else "the server has closed the connection")

    def _check(self) -> None:
        """Give the connection up if the oldest exchange has waited for too long."""
        assert self._watch is not None
        now = self._loop.time()
        late, self._watch = now - self._watch.when(), None
        if self._exchanges and (more := time_back(late, self._patience)):  # nothing may have been sent, nor read
            self._watch = self._loop.call_at(now + more, self._check)
            return
        overdue = [one for one in self._exchanges if one.sent + self._patience <= now]
        for exchange in overdue:
            if not exchange.waiter.done():
                exchange.waiter.set_exception(TimeoutError(f"no answer for {self._patience:g} seconds"))
        if overdue:
            self._give_up("the server does not answer")
        elif self._exchanges:
            self._watch = self._loop.call_at(self._exchanges[0].sent + self._patience, self._check)

    def _give_up(self, reason: str) -> None:
        if self._transport is not None:
            self._transport.abort()
            self._end(reason)

    def _end(self, reason: str) -> None:
        self._transport = None
        if self._watch is not None:
            self._watch.cancel()
            self._watch = None
        while self._exchanges:
            exchange = self._exchanges.popleft()
            if exchange.waiter.done():
                continue
            if exchange.replies and str(exchange.replies[-1]).startswith(FULL):
                exchange.waiter.set_exception(hiredis.ReplyError(str(exchange.replies[-1])))
            else:
                exchange.waiter.set_exception(Cut(reason))


def _without_secrets(refusal: hiredis.ReplyError) -> hiredis.ReplyError:
    """What is raised for a refused AUTH: some servers repeat the password in their words, or the beginning of it."""
    if str(refusal).startswith(FULL):
        return hiredis.ReplyError(f"{FULL} reached")
    code = str(refusal).partition(" ")[0]
    return hiredis.ReplyError(f"{code if code in _CODES else 'ERR'} the server refuses AUTH")
