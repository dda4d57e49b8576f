"""The Redis backend's way to its server: commands in one round trip, scripts, and errors as the store's own."""

import asyncio
import hashlib
import importlib.resources
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, NoReturn

import hiredis

from store.backends._breaker import Breaker
from store.backends._redis_node import Node, Sending, is_not_ready
from store.backends._redis_replies import shaped
from store.backends._redis_url import Address
from store.backends._redis_wire import PATIENCE, Command, Cut, Wire
from store.base import OutcomeUnknown, StoreUnavailable
from store.traffic import Failure, Traffic

__all__ = ["PATIENCE", "Command", "Link", "Script"]

_COMPANY = 0.02
"""Seconds that what nobody waits for waits for other commands, whose write it shares."""

_LATE_TRIES = 3
"""How often a write is sent whose deadline was over when the server ran it."""


class Script:
    def __init__(self, name: str) -> None:
        self.text = importlib.resources.files("store.backends").joinpath(name).read_text("utf-8")
        self.digest = hashlib.sha1(self.text.encode(), usedforsecurity=False).hexdigest()


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

    def fail(self, error: BaseException | str, sending: Sending | None = None) -> NoReturn:
        """Raise StoreUnavailable, without secrets; OutcomeUnknown for a write that may have run."""
        kind = OutcomeUnknown if sending is not None and sending.is_in_doubt else StoreUnavailable
        raise kind(f"store {self.address.name}: {self._words(error)}") from (
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

        async def run(node: Node) -> list[Any]:
            send = node.run_apart if any(one[0] == "WAIT" for one in commands) else node.run
            return [shaped(*one) for one in zip(commands, await send(commands), strict=True)]

        await self._take_along()
        return await self._ask(run)

    async def script(
        self, script: Script, keys: Sequence[bytes], arguments: Sequence[Any], sending: Sending | None = None
    ) -> Any:
        """Run a script. `sending`: it writes. Raises StoreUnavailable."""
        rest = len(keys), *keys, *arguments

        async def run(node: Node) -> Any:
            (reply,) = await node.run([("EVALSHA", script.digest, *rest)], sending)
            if isinstance(reply, hiredis.ReplyError) and str(reply).startswith("NOSCRIPT"):
                (reply,) = await node.run([("EVAL", script.text, *rest)], sending)  # a new or restarted server
            if isinstance(reply, hiredis.ReplyError):
                raise reply
            return reply

        await self._take_along()
        return await self._ask(run, sending=sending)

    async def write(self, script: Script, keys: Sequence[bytes], arguments: Sequence[Any]) -> list[Any]:
        """Run a script that writes, with a deadline before its arguments: the server's time, in microseconds, after
        which it changes nothing, as its caller has given up by then. Its reply begins with the server's time, and is
        that alone if it came too late. Returns the rest. Raises StoreUnavailable.

        A server that was stopped runs what it was sent once it goes on. The deadline is by its clock alone."""
        for _ in range(_LATE_TRIES):
            deadline = int((self.time() + PATIENCE) * 1e6)
            now, *rest = list(await self.script(script, keys, [deadline, *arguments], Sending()))
            self.note_time(int(now))
            if rest:
                return rest
            # nothing was changed: another server has another time, or this process was busy
        self.fail("its clock runs ahead of every deadline")

    async def run_with(
        self, script: Script, keys: Sequence[bytes], arguments: Sequence[Any], *commands: Command
    ) -> tuple[list[Any], Any]:
        """The answers to these commands, and that of a script after them, in one round trip; None in its place: the
        server does not know the script yet. Raises StoreUnavailable."""

        async def run(node: Node) -> tuple[list[Any], Any]:
            *replies, last = await node.run([*commands, ("EVALSHA", script.digest, len(keys), *keys, *arguments)])
            if isinstance(last, hiredis.ReplyError):
                if not str(last).startswith("NOSCRIPT"):
                    raise last
                last = None
            return [shaped(*one) for one in zip(commands, replies, strict=True)], last

        await self._take_along()
        return await self._ask(run)

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

        async def run(node: Node) -> Any:
            return shaped(command, await node.block(command, seconds))

        return await self._ask(run, waits=True)

    async def _ask[T](
        self, run: Callable[[Node], Awaitable[T]], *, waits: bool = False, sending: Sending | None = None
    ) -> T:
        """What `run` returns. `waits`: the command itself waits, so that its time says nothing. A cut of its connection
        says nothing either, as it is not sent again. `sending`: it writes."""
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
                    result = await run(self._node)
                finally:
                    breaker.leave(limit)
            now = breaker.answered()
            if not waits:
                traffic.answered(now - began)
            return result
        except (hiredis.HiredisError, OSError) as error:
            if breaker.is_open:  # since another operation has waited in vain
                traffic.failures["skipped"] += 1
                self.fail(breaker.outage, sending)
            kind = _kind(error)
            traffic.failures[kind] += 1
            if kind == "refused":
                breaker.answered()
            elif kind == "timeout" or not waits:
                breaker.fail(self._words(error), began)
            self.fail(error, sending)
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


def _kind(error: Exception) -> Failure:
    if isinstance(error, TimeoutError):
        return "timeout"
    if isinstance(error, OSError) or is_not_ready(error):
        return "connection"
    return "refused"
