"""The connection to one MCP server, kept up by one task: the SDK's scopes must be left by the task that entered them.

It is made at once, and made again when a call wants it. One over which nothing is answered any more is ended, and with
it the server's process.
"""

import asyncio
import logging
import math
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, suppress

import anyio
import httpx2
from mcp import Client, MCPError
from mcp.client import IncomingMessage
from mcp_types import ToolListChangedNotification
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from addon.tools.base import SourceError, ToolError
from addon.tools.endpoint import origin_of, status_words
from addon.tools.mcp_config import Server
from addon.tools.mcp_errors import describe_failure, says_only_that_it_failed
from addon.tools.mcp_transport import streams
from addon.tools.mcp_watch import Watch

ANSWER_TIMEOUT = 5.0  # seconds that a server has to show that it still answers
_CONNECT_TIMEOUT = 60.0  # seconds for one attempt: a first start may have to download the server
_CLOSE_TIMEOUT = 5.0
_STEADY = 10.0  # seconds after which a connection that ends has not failed at once
_MAX_DELAY = 30.0  # seconds between attempts
_PATIENCE = 1.0  # seconds until the next attempt that a call waits for

_log = logging.getLogger(__name__)


class Connection:
    """`list_tools` is awaited when the server is up, and when its tools have changed; the first time it may raise
    SourceError, and then there is no other attempt. `left_out` is told of each tool in a listing that is no MCP tool:
    its name, and why. `most`: how many bytes a message may have."""

    def __init__(
        self,
        name: str,
        server: Server,
        list_tools: Callable[[Client], Awaitable[None]],
        left_out: Callable[[str, str], None],
        most: int,
    ) -> None:
        self.name = name
        self.server = server
        self._most = most
        self.refused: SourceError | None = None
        self.error = "it is starting"
        self.is_known = False
        """Whether its tools have been listed."""
        self._list_tools = list_tools
        self._client: Client | None = None
        self._watch = Watch(self._lost, left_out)
        self._turn = asyncio.Event()  # set once the attempt under way, or the next one, has come up or failed
        self._wanted = asyncio.Event()
        self._retry_at = 0.0
        self._status: int | None = None
        self._life = anyio.CancelScope()
        self._attempted = anyio.CancelScope()
        self._task: asyncio.Task[None] | None = None
        self._asking: asyncio.Task[None] | None = None

    async def start(self, timeout: float) -> None:
        """Begin, and wait for the server for so many seconds."""
        turn = self._turn
        self._task = asyncio.get_running_loop().create_task(self._supervise(), name=self.name)
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                await turn.wait()

    async def close(self) -> None:
        task, self._task = self._task, None
        if task is None:
            return
        self._watch.stop()
        if self._asking is not None:
            self._asking.cancel()
        if self._client is not None:  # it leaves by itself, politely
            self._life.deadline = anyio.current_time() + _CLOSE_TIMEOUT
        else:
            self._life.cancel()
        await asyncio.wait([task])

    async def client(self) -> Client:
        """The client, once there is a connection. Raises ToolError."""
        if self._client is None:
            if self._retry_at - time.monotonic() > _PATIENCE:
                raise self._down()
            turn = self._turn
            self._wanted.set()
            await turn.wait()
        if self._client is None:
            raise self._down()
        return self._client

    def end(self) -> None:
        """The server no longer knows this client."""
        self._watch.end()

    def doubt(self, client: Client) -> None:
        """A call has come to its end without an answer. Does the server answer anything?"""
        asks = self._asking is not None and not self._asking.done()
        if client is self._client and not asks and not self._watch.stopped:
            self._asking = asyncio.ensure_future(self._ask(client))

    def describe_failure(self, error: BaseException) -> str:
        """Why a call failed, or there is no connection."""
        words = describe_failure(error)
        if self.server.url and self._status and says_only_that_it_failed(words):
            return f"{origin_of(httpx2.URL(self.server.url))} answered {status_words(self._status)}"
        return words

    # --- one connection after the other ---------------------------------------------------------------------------

    async def _supervise(self) -> None:
        with self._life:
            await self._connect_again()
        self._ended("it is closed")

    async def _connect_again(self) -> None:
        """Connect, and connect again: at once for the first time, then with growing delays, and only if wanted."""
        failures = 0
        while not self._watch.stopped:
            began = time.monotonic()
            await self._attempt()
            failures = 1 if time.monotonic() - began > _STEADY else failures + 1
            delay = 0.0 if failures == 1 and self.is_known else min(0.25 * 2**failures, _MAX_DELAY)
            self._retry_at = time.monotonic() + delay
            if self._watch.stopped or self.refused is not None:
                return
            await asyncio.sleep(delay)
            if self.is_known:
                await self._wanted.wait()

    async def _attempt(self) -> None:
        """One connection, from its start to its end. Never raises but when cancelled."""
        self._wanted.clear()
        self._watch.begin()
        self._status = None
        up = False
        try:
            with anyio.CancelScope(deadline=anyio.current_time() + _CONNECT_TIMEOUT) as self._attempted:
                transport = streams(
                    self.server, self._watch, self._refused_by_status, self._told_by_process, self._most
                )
                async with Client(transport, message_handler=self._told, cache=None) as client:
                    await self._list_tools(client)
                    self.is_known = True
                    self._attempted.deadline = math.inf
                    up, self._client = True, client
                    self._turn.set()
                    try:
                        await self._follow(client)
                    finally:
                        self._lost()
            if self._attempted.cancelled_caught and not up:
                self.error = f"it has not answered within {_CONNECT_TIMEOUT:g} s"
        except Exception as e:  # whatever a server or its transport may do
            cause = _cause(e)
            self.error = self.describe_failure(cause)
            if isinstance(cause, SourceError):
                self.refused = cause
        if not up:
            self._ended(self.error)

    async def _follow(self, client: Client) -> None:
        """Keep the list of tools as the server has it, until the connection ends."""
        async with AsyncExitStack() as stack:
            capability = client.server_capabilities.tools
            if client.protocol_version in MODERN_PROTOCOL_VERSIONS and capability and capability.list_changed:
                with suppress(MCPError, RuntimeError, TimeoutError), anyio.fail_after(_CLOSE_TIMEOUT):
                    await stack.enter_async_context(client.listen(tools_list_changed=True))
                    self._watch.changed()
            while await self._watch.wait():
                try:
                    with anyio.fail_after(_CONNECT_TIMEOUT):
                        await self._list_tools(client)
                except (MCPError, TimeoutError, ValueError) as e:
                    if not self._watch.ended:
                        _log.warning("%s: its tools stay as they were: %s", self.name, self.describe_failure(e))

    async def _told(self, message: IncomingMessage) -> None:
        if isinstance(message, ToolListChangedNotification):
            self._watch.changed()

    def _told_by_process(self, line: str) -> None:
        _log.info("%s: %s", self.name, line)

    def _refused_by_status(self, status: int) -> None:
        self._status = status

    # --- its end --------------------------------------------------------------------------------------------------

    async def _ask(self, client: Client) -> None:
        """Ask the server for anything; one that says nothing is ended, and the calls that it has are errors."""
        try:
            async with asyncio.timeout(ANSWER_TIMEOUT):
                await client.list_tools()
        except TimeoutError:
            if client is self._client:
                _log.warning("%s no longer answers: it is ended, and started again by the next call", self.name)
                self._ended("it no longer answered")
                self._attempted.cancel()
        except Exception as error:  # an answer as well; or the end of the connection, which is seen elsewhere
            _log.debug("%s: %s", self.name, self.describe_failure(error))

    def _lost(self) -> None:
        if self._client is not None:
            self._ended("it has ended")

    def _ended(self, error: str) -> None:
        """Let those who wait for this attempt go, and the next ones wait for the next."""
        self._client, self.error = None, error
        self._turn.set()
        self._turn = asyncio.Event()

    def _down(self) -> ToolError:
        return ToolError(f"{self.name} is down: {self.error}", retryable=True, sent=False)


def _cause(error: BaseException) -> BaseException:
    """What went wrong, out of the groups that task groups make of it."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
