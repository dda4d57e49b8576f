"""The Redis backend's connections: commands in one round trip, scripts, and errors as the store's own."""

import asyncio
import contextlib
import hashlib
import importlib.resources
import time
from collections.abc import AsyncIterator, Sequence
from typing import Any, NoReturn

import hiredis
import redis.asyncio as redis
from redis.asyncio.connection import Connection, SSLConnection
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import Sentinel, SentinelManagedConnection, SentinelManagedSSLConnection
from redis.backoff import ExponentialWithJitterBackoff, NoBackoff
from redis.driver_info import DriverInfo
from redis.exceptions import NoScriptError, RedisError

from store.backends._redis_url import Address
from store.base import StoreUnavailable

CONNECTIONS = 64
"""Connections of one process; more requests wait for one."""

PATIENCE = 5.0
"""Seconds after which a server that does not answer is considered unavailable."""

_ONCE = Retry(NoBackoff(), 0)

_DRIVER = DriverInfo()
"""One for all connections: without it each would look up the version of the installed package."""

type Command = tuple[Any, ...]


class _Packing:
    """Connections that pack commands in C: a transaction has many arguments."""

    def pack_command(self, *arguments: Any) -> list[bytes]:
        packed: bytes = hiredis.pack_command(arguments)
        return [packed]


class _Connection(_Packing, Connection):
    pass


class _TlsConnection(_Packing, SSLConnection):
    pass


class _SentinelConnection(_Packing, SentinelManagedConnection):
    pass


class _SentinelTlsConnection(_Packing, SentinelManagedSSLConnection):
    pass


class Script:
    def __init__(self, name: str) -> None:
        self.text = importlib.resources.files("store.backends").joinpath(name).read_text("utf-8")
        self.digest = hashlib.sha1(self.text.encode(), usedforsecurity=False).hexdigest()


class Link:
    """`round_trips`: the number of exchanges with the server so far, those of the reader of notices apart."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self.round_trips = 0
        self._sentinel: Sentinel | None = None
        self._client: Any = None
        self._reader: Any = None
        self._in_use = 0
        self._free = asyncio.Semaphore(CONNECTIONS)
        self._unused = asyncio.Event()
        self._time: tuple[float, float] | None = None  # of the server, and of the monotonic clock at that moment

    def connect(self) -> None:
        """Construct the clients; connections are opened as they are needed."""
        address = self.address
        options: dict[str, Any] = {
            "username": address.user,
            "password": address.password,
            "socket_timeout": PATIENCE,
            "socket_connect_timeout": PATIENCE,
            "retry": Retry(ExponentialWithJitterBackoff(base=0.02, cap=0.5), 2),
            "client_name": "toolgraft",
            "driver_info": _DRIVER,
            "protocol": 2,
        }
        if address.kind == "sentinel":
            kind = _SentinelTlsConnection if address.tls else _SentinelConnection
            if address.tls:
                options |= {"ssl": True, "ssl_ca_certs": address.ca}
            self._sentinel = Sentinel(  # type: ignore[no-untyped-call]
                address.hosts, sentinel_kwargs={"socket_timeout": PATIENCE}, **options
            )
            options = {"db": address.database, "connection_class": kind}
            self._client = self._sentinel.master_for(address.service, **options)
            self._reader = self._sentinel.master_for(address.service, **options, retry=_ONCE)
        else:
            ((host, port),) = address.hosts
            options |= {"host": host, "port": port, "db": address.database}
            options["connection_class"] = _TlsConnection if address.tls else _Connection
            if address.tls:
                options["ssl_ca_certs"] = address.ca
            self._client = redis.Redis.from_pool(redis.ConnectionPool(**options))
            self._reader = redis.Redis.from_pool(redis.ConnectionPool(**{**options, "retry": _ONCE}))

    @property
    def is_open(self) -> bool:
        return self._client is not None

    async def close(self) -> None:
        """Let running commands end, and close all connections."""
        clients = [client for client in (self._client, self._reader) if client is not None]
        self._client = self._reader = None
        self._unused.clear()
        if self._in_use:
            await self._unused.wait()  # each has a time limit
        sentinels = self._sentinel.sentinels if self._sentinel else []
        self._sentinel = None
        for one in (*clients, *sentinels):
            try:
                await one.aclose()
            except (RedisError, OSError):
                pass

    def fail(self, error: BaseException | str) -> NoReturn:
        """Raise StoreUnavailable, without secrets."""
        words = str(error) or type(error).__name__
        if self.address.password:
            words = words.replace(self.address.password, "***")
        raise StoreUnavailable(f"store {self.address.name}: {words}") from (
            error if isinstance(error, BaseException) else None
        )

    async def run(self, *commands: Command) -> list[Any]:
        """The answers to these commands, in one round trip. Raises StoreUnavailable."""
        if not commands:
            return []
        async with self._using(PATIENCE) as client:
            self.round_trips += 1
            if len(commands) == 1:
                return [await client.execute_command(*commands[0])]
            pipeline = client.pipeline(transaction=False)
            for command in commands:
                pipeline.execute_command(*command)
            answers: list[Any] = await pipeline.execute()
            return answers

    async def script(self, script: Script, keys: Sequence[bytes], arguments: Sequence[Any]) -> Any:
        """Run a script. Raises StoreUnavailable."""
        async with self._using(PATIENCE) as client:
            self.round_trips += 1
            try:
                return await client.execute_command("EVALSHA", script.digest, len(keys), *keys, *arguments)
            except NoScriptError:  # a new or restarted server
                return await client.execute_command("EVAL", script.text, len(keys), *keys, *arguments)

    async def block(self, *command: Any, seconds: float) -> Any:
        """The answer to a command that waits for up to `seconds`. Raises StoreUnavailable, also if the connection was
        cut and could be opened again."""
        async with self._using(seconds + PATIENCE):
            return await self._reader.execute_command(*command)

    @contextlib.asynccontextmanager
    async def _using(self, seconds: float) -> AsyncIterator[Any]:
        if self._client is None:
            self.fail("not open")
        self._in_use += 1
        try:
            async with asyncio.timeout(seconds), self._free:
                yield self._client or self.fail("not open")
        except (RedisError, OSError, TimeoutError) as error:
            self.fail(error)
        finally:
            self._in_use -= 1
            if not self._in_use:
                self._unused.set()

    # --- the server's clock -----------------------------------------------------------------------------------

    def note_time(self, microseconds: int) -> None:
        """The server has just said what time it is."""
        self._time = microseconds / 1e6, time.monotonic()

    def time(self) -> float:
        """The server's time, in seconds since the epoch; the machine's own before the server has said it."""
        at, then = self._time or (time.time(), time.monotonic())
        return at + time.monotonic() - then
