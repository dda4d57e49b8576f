"""The Redis backend's server: its URL, commands and scripts through the package `redis`, errors as the store's own, and
a circuit breaker.

    redis://[USER@]HOST[:PORT][/DATABASE][?prefix=NAME]
    redis+sentinel://[USER@]HOST[:PORT],HOST[:PORT],…/SERVICE[/DATABASE][?prefix=NAME]
    redis+cluster://[USER@]HOST[:PORT],HOST[:PORT],…[?prefix=NAME]

With `rediss` instead of `redis`, connections use TLS; `?ca=FILE` names additional trusted authorities. The password
comes from the environment, never from the URL, which process lists show.

Commands and scripts are sent again if their connection is cut, so each of them must be safe to run twice.
"""

import asyncio
import contextlib
import hashlib
import importlib.resources
import logging
import random
import re
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, NamedTuple, NoReturn
from urllib.parse import parse_qsl, unquote, urlsplit

import redis.asyncio as redis
from redis.asyncio.cluster import ClusterNode
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import MasterNotFoundError
from redis.backoff import NoBackoff
from redis.exceptions import (
    AuthenticationError,
    ClusterError,
    InvalidResponse,
    NoScriptError,
    RedisClusterException,
    RedisError,
    ResponseError,
    TryAgainError,
)

from store.base import Failure, OutcomeUnknown, StoreUnavailable, Traffic

logger = logging.getLogger(__name__)

PASSWORD = "TOOLGRAFT_REDIS_PASSWORD"
"""The environment variable with the password."""

PATIENCE = 5.0
"""Seconds after which a server that does not answer is considered unavailable."""

PAUSE = 0.1, 5.0
"""The first and the longest pause before a probe, in seconds; doubled each time. Half of it is random, so that the
processes' probes do not coincide."""

type Command = tuple[Any, ...]

_CONNECTIONS = 64
"""The most operations that run at the same time, each on one connection; others wait."""

_SENTINEL = 1.0
"""Seconds after which the next Sentinel is asked."""

_RETRY_PAUSE = 0.02, 0.5
"""The first and the longest pause before an operation is tried again, in seconds."""

_TRIES = {"server": 3, "sentinel": 3, "cluster": 20}
"""How often an operation is tried: in a cluster, keys may move or a new primary may be elected meanwhile."""

_LATE_TRIES = 3
"""How often a write is sent if its deadline is over when the server runs it."""

_NOT_SENT = MasterNotFoundError, AuthenticationError, RedisClusterException

_LATER = redis.ConnectionError, ClusterError, TryAgainError, RedisClusterException
"""Errors after which an operation is tried again: the connection was cut, or the server is not ready."""

_SHAPED = {"HGETALL", "INFO", "TIME", "XRANGE", "XREVRANGE", "ZSCORE"}
"""Commands with replies that the package converts to Python values."""

_REFUSED = (
    *("OOM", "READONLY", "NOREPLICAS", "MISCONF", "NOSCRIPT", "BUSY", "NOAUTH"),
    *("MOVED", "ASK", "LOADING", "MASTERDOWN", "TRYAGAIN", "CLUSTERDOWN"),
)
"""The first words of error replies to a script that has changed nothing."""

# --- the URL --------------------------------------------------------------------------------------------------

_URL = re.compile(
    r"(rediss?)(?:\+(sentinel|cluster))?://(?:([^@:/?]*)(:[^@/?]*)?@)?([^@/?]+)((?:/[^/?]+)*)/?(?:\?(.*))?"
)
_PATHS = {"server": r"()(?:/(\d+))?", "sentinel": r"/([^/]+)(?:/(\d+))?", "cluster": r"()(?:/(0))?"}
_PREFIX = re.compile(r"[A-Za-z0-9_.:-]{1,64}")
_FORMS = (
    "use redis://HOST:PORT/DATABASE, redis+sentinel://HOST:PORT,HOST:PORT/SERVICE/DATABASE or "
    "redis+cluster://HOST:PORT,HOST:PORT, with ?prefix=NAME and ca=FILE"
)


class Address(NamedTuple):
    kind: str  # server, sentinel or cluster
    hosts: tuple[tuple[str, int], ...]
    tls: bool
    ca: str | None
    user: str | None
    password: str | None
    service: str
    database: int
    prefix: str

    @property
    def name(self) -> str:
        """For messages: without user and password."""
        hosts = ",".join(f"{host}:{port}" for host, port in self.hosts)
        kind = "" if self.kind == "server" else f"+{self.kind}"
        path = f"/{self.service}" if self.service else ""
        database = f"/{self.database}" if self.database else ""
        return f"{'rediss' if self.tls else 'redis'}{kind}://{hosts}{path}{database}"

    @classmethod
    def read(cls, url: str, environ: Mapping[str, str]) -> "Address":
        """Raises ValueError with a message that does not contain the URL."""
        if (match := _URL.fullmatch(url)) is None:
            raise ValueError(_FORMS)
        scheme, kind, user, password, hosts, path, query = match.groups(default="")
        if password:
            raise ValueError(f"a password does not belong in the URL: put it in {PASSWORD}")
        kind = kind or "server"
        try:
            options = dict(parse_qsl(query, keep_blank_values=True, strict_parsing=bool(query)))
            addresses = tuple(_host(one, 26379 if kind == "sentinel" else 6379) for one in hosts.split(","))
        except ValueError:
            raise ValueError(_FORMS) from None
        place = re.fullmatch(_PATHS[kind], path)
        if place is None or options.keys() - {"prefix", "ca"} or (kind == "server" and len(addresses) > 1):
            raise ValueError(_FORMS)
        prefix = options.get("prefix", "toolgraft")
        if not _PREFIX.fullmatch(prefix):
            raise ValueError("prefix must consist of letters, digits and _ . : -")
        given = unquote(user) or None, environ.get(PASSWORD) or None, unquote(place[1]), int(place[2] or 0)
        return cls(kind, addresses, scheme == "rediss", options.get("ca"), *given, prefix)


def _host(text: str, port: int) -> tuple[str, int]:
    parts = urlsplit(f"//{text}")
    if not parts.hostname:
        raise ValueError("a host is missing")
    return parts.hostname, parts.port or port


# --- the circuit breaker --------------------------------------------------------------------------------------


class Breaker:
    """If the server does not answer, all operations fail without being tried until a probe reaches the server. One task
    calls `probe`, which returns whether the server has answered, so that requests never wait for a probe."""

    def __init__(self, name: str, probe: Callable[[], Awaitable[bool]], traffic: Traffic) -> None:
        self._name = name
        self._probe = probe
        self._traffic = traffic
        self.running: set[asyncio.Timeout] = set()
        """The time limits of running operations, which expire when the breaker opens."""
        self.last_answer = 0.0
        """The monotonic time of the server's last answer."""
        self._recovery: asyncio.Task[None] | None = None
        self._reachable = asyncio.Event()
        self._reachable.set()
        self._why, self._since, self._next = "", 0.0, 0.0

    @property
    def is_open(self) -> bool:
        return not self._reachable.is_set()

    @property
    def outage(self) -> str:
        """Since when and why the server is not asked, and when the next probe is sent. Empty: it is asked."""
        if not self.is_open:
            return ""
        since = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(self._since))
        rest = self._next - time.monotonic()
        next_try = f"is in {rest:.1f} s" if rest > 0 else "is running"
        return f"not reachable since {since} ({self._why}); the next try {next_try}"

    def fail(self, why: str, began: float) -> None:
        """Note that an operation, which began at this monotonic time, did not reach the server. Opens the breaker,
        unless the server answered other operations in the latter half of the time since."""
        if self.is_open or self.last_answer > (began + time.monotonic()) / 2:
            return
        self._reachable.clear()
        self._why, self._since = why, time.time()
        self._traffic.state = "open"
        self._traffic.openings += 1
        logger.warning("store %s: not reachable (%s): it is not asked until a probe has reached it", self._name, why)
        now = asyncio.get_running_loop().time()
        for limit in self.running:
            if not limit.expired():
                limit.reschedule(now)
        self._recovery = asyncio.ensure_future(self._recover())

    async def recovered(self, timeout: float) -> None:
        """Return once the server is asked again, or after the timeout."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                await self._reachable.wait()

    async def close(self) -> None:
        """End the probes, and the waiting in `recovered`."""
        if self._recovery is not None:
            self._recovery.cancel()
            await asyncio.wait({self._recovery})
        self._reachable.set()
        self._traffic.state = "closed"

    async def _recover(self) -> None:
        pause = PAUSE[0]
        while True:
            wait = pause * random.uniform(0.5, 1.0)
            self._next = time.monotonic() + wait
            await asyncio.sleep(wait)
            self._traffic.state = "half_open"
            if await self._probe():
                break
            self._traffic.state = "open"
            pause = min(2 * pause, PAUSE[1])
        self._traffic.state = "closed"
        self._reachable.set()
        logger.warning("store %s: reachable again, after %.1f s", self._name, time.time() - self._since)


# --- the client -----------------------------------------------------------------------------------------------


class Script:
    def __init__(self, name: str) -> None:
        self.text = importlib.resources.files("store.backends").joinpath(name).read_text("utf-8")
        self.digest = hashlib.sha1(self.text.encode(), usedforsecurity=False).hexdigest()


class Link:
    """Runs lists of commands on the store's server, each in one round trip."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self.round_trips = 0
        """The number of round trips, without the reader's of notices."""
        self.probe: Command = ("PING",)
        """The command that shows whether the server is ready: later, a read of one of the store's keys."""
        self.traffic = Traffic()
        self.breaker = Breaker(address.name, self._probe, self.traffic)
        self._client: Any = None
        self._sentinel: redis.Sentinel | None = None
        self._reader: redis.Redis | None = None
        self._places = asyncio.Semaphore(_CONNECTIONS)
        self._unused = asyncio.Event()
        self._ahead = time.time() - time.monotonic()  # of the server's time over the monotonic clock

    @property
    def _options(self) -> dict[str, Any]:
        address = self.address
        options: dict[str, Any] = {
            "username": address.user,
            "password": address.password,
            "client_name": "toolgraft",
            "driver_info": None,
            "protocol": 2,
            "retry": Retry(NoBackoff(), 0),  # `Link` decides what is sent again, and how often
            "socket_timeout": None,  # each operation has a time limit
            "socket_connect_timeout": PATIENCE,
        }
        if address.tls:
            options |= {"ssl": True, "ssl_ca_certs": address.ca}
        return options

    def connect(self) -> None:
        """Create the client, which opens connections when they are needed."""
        address, options = self.address, self._options
        if address.kind == "cluster":
            nodes = [ClusterNode(host, port) for host, port in address.hosts]
            # 0: otherwise each fifth MOVED closes all connections, also those that are in use
            self._client = redis.RedisCluster(startup_nodes=nodes, reinitialize_steps=0, **options)
        elif address.kind == "sentinel":
            each = {name: options[name] for name in ("protocol", "retry", "driver_info")}
            each |= {"socket_timeout": _SENTINEL, "socket_connect_timeout": _SENTINEL}
            self._sentinel = redis.Sentinel(  # type: ignore[no-untyped-call]
                address.hosts, sentinel_kwargs=each, **options, db=address.database
            )
            self._client = self._sentinel.master_for(address.service)
        else:
            ((host, port),) = address.hosts
            self._client = redis.Redis(host=host, port=port, db=address.database, **options)
        if address.kind != "cluster":
            pool = self._client.connection_pool
            self.traffic.connections = lambda: sum(count for count, _ in pool.get_connection_count())

    @property
    def is_open(self) -> bool:
        return self._client is not None

    async def close(self) -> None:
        """Wait for running commands, and close all connections."""
        client, self._client = self._client, None
        await self.breaker.close()
        self._unused.clear()
        if self.traffic.running:
            await self._unused.wait()  # each has a time limit
            await self.breaker.close()  # one of them may have opened it
        for one in (client, self._reader, self._sentinel):
            if one is not None:
                await one.aclose()

    def fail(self, error: BaseException | str, *, in_doubt: bool = False) -> NoReturn:
        """Raise StoreUnavailable, without secrets; OutcomeUnknown for a write that may have run."""
        kind = OutcomeUnknown if in_doubt else StoreUnavailable
        raise kind(f"store {self.address.name}: {self._words(error)}") from None  # the cause may contain secrets

    def _words(self, error: BaseException | str) -> str:
        if isinstance(error, TimeoutError):
            return f"no answer for {PATIENCE:g} seconds"
        words = str(error) or type(error).__name__
        if isinstance(error, RedisError) and error.status_code:
            words = f"{error.status_code} {words}"
        words = words.partition(", with args")[0]  # a server without AUTH repeats the arguments
        return words.replace(self.address.password, "***") if self.address.password else words

    async def run(self, *commands: Command) -> list[Any]:
        """The answers to these commands, in one round trip. Raises StoreUnavailable."""
        if not commands:
            return []
        return await self._ask(lambda: self._repeat(commands))

    async def script(
        self, script: Script, keys: Sequence[bytes], arguments: Sequence[Any], *, writes: bool = False
    ) -> Any:
        """Run a script. Raises StoreUnavailable; OutcomeUnknown if `writes`."""
        rest = len(keys), *keys, *arguments
        unsure: list[Exception] | None = [] if writes else None

        async def run() -> Any:
            try:
                (reply,) = await self._repeat([("EVALSHA", script.digest, *rest)], unsure)
            except NoScriptError:  # a new or restarted server
                (reply,) = await self._repeat([("EVAL", script.text, *rest)], unsure)
            return reply

        return await self._ask(run, unsure)

    async def write(self, script: Script, keys: Sequence[bytes], arguments: Sequence[Any]) -> list[Any]:
        """Run a script that writes. Its first argument is a deadline: the server's time, in microseconds, after which
        it changes nothing, because its caller has given up by then (a stopped server runs queued scripts once it
        continues). The reply begins with the server's time, and contains nothing else if the script ran too late.
        Returns the rest. Raises StoreUnavailable."""
        for _ in range(_LATE_TRIES):
            deadline = int((self.time() + PATIENCE) * 1e6)
            now, *rest = await self.script(script, keys, [deadline, *arguments], writes=True)
            self.note_time(int(now))
            if rest:
                return list(rest)
            # Nothing was changed: another server has another time, or this process was busy.
        self.fail("its clock runs ahead of every deadline")

    async def block(self, *command: Any, seconds: float) -> Any:
        """The answer to a command that waits for up to `seconds`, on a connection for such commands alone. Raises
        StoreUnavailable, also if the connection was only cut and can be opened again."""

        async def run() -> Any:
            try:
                if self._reader is None and self.address.kind == "cluster":
                    node = await self._node(self._client)
                    options = self._options | {"single_connection_client": True}
                    self._reader = redis.Redis(host=node.host, port=int(node.port), **options)
                elif self._reader is None:
                    self._reader = self._client.client()
                return await self._reader.execute_command(*command)
            except BaseException:
                reader, self._reader = self._reader, None
                if reader is not None:
                    await reader.aclose()
                raise

        return await self._ask(run, seconds=seconds)

    async def _node(self, client: redis.RedisCluster, *, ask_cluster: bool = False) -> ClusterNode:
        """The node with the store's keys, which all have one hash tag. `ask_cluster`: even if the node is known."""
        await client.initialize()
        if ask_cluster:  # closing the client instead would cut the connections of other operations
            await client.nodes_manager.initialize()
        if (node := client.get_node_from_key(f"{{{self.address.prefix}}}")) is None:
            raise RedisClusterException("no node of the cluster has the store's keys")
        return node

    async def _repeat(self, commands: Sequence[Command], unsure: list[Exception] | None = None) -> list[Any]:
        """The replies. Raises RedisError, also if one of them is an error. `unsure` collects the errors after which the
        commands may have run."""
        tries = _TRIES[self.address.kind]
        for attempt in range(tries):
            try:
                replies = await self._exchange(commands, ask_cluster=attempt > 0)
                if errors := [one for one in replies if isinstance(one, Exception)]:
                    raise next((one for one in errors if isinstance(one, _LATER)), errors[0])
                return replies
            except (*_LATER, ResponseError) as error:
                if unsure is not None and not _is_refusal(error):
                    unsure.append(error)
                is_last = attempt == tries - 1 or AuthenticationError in (type(error), type(error.__cause__))
                if is_last or not isinstance(error, _LATER):
                    raise
            await asyncio.sleep(random.random() * min(_RETRY_PAUSE[1], _RETRY_PAUSE[0] * 2**attempt))
        raise AssertionError("the last try returns or raises")

    async def _exchange(self, commands: Sequence[Command], *, ask_cluster: bool = False) -> list[Any]:
        client = self._client
        if client is None:  # closed meanwhile
            raise redis.ConnectionError("not open")
        self.round_trips += 1
        if self.address.kind == "cluster":
            node, pipeline = await self._node(client, ask_cluster=ask_cluster), client.pipeline()
            for command in commands:
                pipeline.execute_command(*command, target_nodes=node)
            return list(await pipeline.execute(raise_on_error=False))
        pool = client.connection_pool
        connection = await pool.get_connection()
        replies: list[Any] = []
        try:
            await connection.send_packed_command(connection.pack_commands(commands))
            for name, *_ in commands:
                try:
                    reply = await connection.read_response()
                except ResponseError as error:
                    reply = error
                else:
                    if name in _SHAPED:
                        reply = client.response_callbacks[name](reply)
                replies.append(reply)
        finally:
            await pool.release(connection)
        return replies

    async def _ask[T](
        self, run: Callable[[], Awaitable[T]], unsure: list[Exception] | None = None, *, seconds: float | None = None
    ) -> T:
        """Await `run` within the time limit and the breaker. `seconds`: how long the command itself waits; its duration
        is not counted then, and a cut of its connection does not open the breaker, as it is not sent again."""
        if self._client is None:
            self.fail("not open")
        breaker, traffic = self.breaker, self.traffic
        if breaker.is_open:
            traffic.failures["skipped"] += 1
            self.fail(breaker.outage)
        traffic.running += 1
        began = time.monotonic()
        try:
            async with asyncio.timeout(PATIENCE + (seconds or 0)) as limit, self._places:
                breaker.running.add(limit)
                try:
                    result = await run()
                finally:
                    breaker.running.discard(limit)
            breaker.last_answer = now = time.monotonic()
            if seconds is None:
                traffic.answered(now - began)
            return result
        except (RedisError, RedisClusterException, OSError) as error:
            in_doubt = unsure is not None and (bool(unsure) or isinstance(error, TimeoutError))
            if breaker.is_open:  # opened by another operation meanwhile
                traffic.failures["skipped"] += 1
                self.fail(breaker.outage, in_doubt=in_doubt)
            kind = _kind(error)
            traffic.failures[kind] += 1
            if kind == "refused":
                breaker.last_answer = time.monotonic()
            elif kind == "timeout" or seconds is None:
                breaker.fail(self._words(error), began)
            self.fail(error, in_doubt=in_doubt)
        finally:
            traffic.running -= 1
            if not traffic.running:
                self._unused.set()

    async def _probe(self) -> bool:
        """Whether the server answers over a new connection and serves the store's keys."""
        try:
            async with asyncio.timeout(PATIENCE):
                await self._client.aclose()  # other connections are opened
                (seconds, rest), reply = await self._exchange([("TIME",), self.probe])
        except (RedisError, RedisClusterException, OSError, TypeError, ValueError):
            return False
        if isinstance(reply, _LATER):
            return False
        self.note_time(int(seconds) * 1_000_000 + int(rest))
        self.breaker.last_answer = time.monotonic()
        return True

    # --- the server's clock -----------------------------------------------------------------------------------

    def note_time(self, microseconds: int) -> None:
        """Set the server's present time."""
        self._ahead = microseconds / 1e6 - time.monotonic()

    def time(self) -> float:
        """The server's time, in seconds since the epoch; the machine's until the server has answered."""
        return time.monotonic() + self._ahead


def _code(error: Exception) -> str:
    """The first word of an error reply."""
    return (isinstance(error, RedisError) and error.status_code) or str(error).partition(" ")[0]


def _is_refusal(error: Exception) -> bool:
    """Whether the server has changed nothing."""
    return (
        isinstance(error, _NOT_SENT)
        or isinstance(error.__context__, ConnectionRefusedError)
        or _code(error) in _REFUSED
    )


def _kind(error: Exception) -> Failure:
    if isinstance(error, (TimeoutError, redis.TimeoutError)):
        return "timeout"
    return "connection" if isinstance(error, (OSError, InvalidResponse, *_LATER)) else "refused"
