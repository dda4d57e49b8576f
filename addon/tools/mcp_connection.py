"""The connection to one MCP server, kept by one task: the SDK's scopes must be left by the task that entered them.

The first connection is made at the start, later ones when a call needs one. If the server no longer answers, the
connection and the server's process are ended.
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

from addon.core.summaries import problem
from addon.tools.base import SourceError, ToolError
from addon.tools.http_endpoint import origin_of, status_words
from addon.tools.mcp_config import Server
from addon.tools.mcp_transport import ConnectionWatch, describe_failure, first_cause, says_only_that_it_failed, streams

ANSWER_TIMEOUT = 5.0  # seconds for the answer to a probe
_CONNECT_TIMEOUT = 60.0  # seconds for one attempt: a first start may have to download the server
_CLOSE_TIMEOUT = 5.0
_STABLE = 10.0  # seconds after which the end of a connection is not a failed attempt
_MAX_DELAY = 30.0  # seconds between attempts
_PATIENCE = 1.0  # seconds: a call waits for an attempt that begins within this time

_RESTARTS, _CLOSED = "it is being restarted", "it is closed"

_log = logging.getLogger(__name__)


class Connection:
    """`list_tools` is awaited when the server is up and when its tools have changed. If it raises SourceError the first
    time, no further attempt is made. `on_invalid_tool` is called with the name of each invalid tool in a listing, and
    the reason. `max_bytes`: size limit of a message. `name`: the server's in messages."""

    def __init__(
        self,
        server_name: str,
        name: str,
        server: Server,
        list_tools: Callable[[Client], Awaitable[None]],
        on_invalid_tool: Callable[[str, str], None],
        max_bytes: int,
    ) -> None:
        self.server_name = server_name
        self.name = name
        self.server = server
        self._max_bytes = max_bytes
        self.fatal_error: SourceError | None = None
        self.error = "it is starting"
        self.is_known = False
        """Whether the tools have been listed."""
        self._list_tools = list_tools
        self._client: Client | None = None
        self._watch = ConnectionWatch(self._on_end, on_invalid_tool)
        self._attempt_over = asyncio.Event()  # set when the current or next attempt has connected or failed
        self._call_waiting = asyncio.Event()
        self._retry_at = 0.0
        self._status: int | None = None
        self.last_error: str | None = None
        self.last_error_at: float | None = None
        self._attempts = self._last_over = 0  # the number of the latest attempt, and of the last that is over
        self._is_connecting = False
        self._restarting = asyncio.Event()  # set until the next attempt begins
        self._lifetime = anyio.CancelScope()
        self._attempt_scope = anyio.CancelScope()
        self._task: asyncio.Task[None] | None = None
        self._probe_task: asyncio.Task[None] | None = None

    @property
    def is_up(self) -> bool:
        return self._client is not None

    async def start(self, timeout: float) -> None:
        """Start connecting, and wait up to `timeout` seconds for the server."""
        attempt_over = self._attempt_over
        self._task = asyncio.get_running_loop().create_task(self._supervise(), name=self.name)
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                await attempt_over.wait()

    async def close(self) -> None:
        task, self._task = self._task, None
        if task is None:
            return
        self._watch.stop()
        if self._probe_task is not None:
            self._probe_task.cancel()
        if self._client is not None:  # let it disconnect by itself
            self._lifetime.deadline = anyio.current_time() + _CLOSE_TIMEOUT
        else:
            self._lifetime.cancel()
        await asyncio.wait([task])

    async def client(self) -> Client:
        """The client, once connected. Raises ToolError."""
        if self._client is None:
            if self._retry_at - time.monotonic() > _PATIENCE:
                raise self._down_error()
            attempt_over = self._attempt_over
            self._call_waiting.set()
            await attempt_over.wait()
        if self._client is None:
            raise self._down_error()
        return self._client

    def end(self) -> None:
        """End the connection: the server no longer knows this session."""
        self._watch.end()

    async def restart(self, timeout: float) -> None:
        """End the connection (and the server's process, if this proxy started it), and connect again. Calls in progress
        fail. Returns when this has succeeded or failed, after `timeout` seconds at the latest."""
        if self._task is None or self._watch.stopped:
            return
        attempts = self._attempts
        if self._is_connecting and not self._watch.has_streams:
            attempts -= 1  # it is starting: cancelling that could leave its process behind
        else:
            self._end_attempt()
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                while self._last_over <= attempts:
                    await self._attempt_over.wait()

    def _end_attempt(self) -> None:
        """Let the next attempt begin without a delay."""
        self._restarting.set()
        self._call_waiting.set()
        if self._is_connecting:
            self._attempt_scope.cancel()
        elif self._client is not None:
            self._set_down(_RESTARTS)
            self._watch.end()
            self._attempt_scope.deadline = anyio.current_time() + _CLOSE_TIMEOUT  # a hanging server would block it

    def probe(self, client: Client) -> None:
        """Check that the server still answers, because a call ended without an answer."""
        is_probing = self._probe_task is not None and not self._probe_task.done()
        if client is self._client and not is_probing and not self._watch.stopped:
            self._probe_task = asyncio.ensure_future(self._await_answer(client))

    def describe_failure(self, error: BaseException) -> str:
        """Why a call or a connection failed."""
        words = describe_failure(error)
        if self.server.url and self._status and says_only_that_it_failed(words):
            return f"{origin_of(httpx2.URL(self.server.url))} answered {status_words(self._status)}"
        return words

    # --- connecting -----------------------------------------------------------------------------------------------

    async def _supervise(self) -> None:
        with self._lifetime:
            await self._connect_repeatedly()
        self._set_down(_CLOSED)

    async def _connect_repeatedly(self) -> None:
        """Connect and reconnect, with growing delays. After the first success, reconnect only when a call waits."""
        failures = 0
        while not self._watch.stopped:
            began = time.monotonic()
            await self._attempt()
            failures = 1 if time.monotonic() - began > _STABLE else failures + 1
            delay = 0.0 if failures == 1 and self.is_known else min(0.25 * 2**failures, _MAX_DELAY)
            self._retry_at = time.monotonic() + delay
            if self._watch.stopped or self.fatal_error is not None:
                return
            if self._restarting.is_set():
                failures = 0
            elif delay:
                with suppress(TimeoutError):
                    async with asyncio.timeout(delay):
                        await self._restarting.wait()
            if self.is_known:
                await self._call_waiting.wait()

    async def _attempt(self) -> None:
        """One connection, from its start to its end. Raises only when cancelled."""
        self._call_waiting.clear()
        self._restarting.clear()
        self._attempts += 1
        self._is_connecting = True
        self._watch.begin()
        self._status = None
        up = False
        try:
            with anyio.CancelScope(deadline=anyio.current_time() + _CONNECT_TIMEOUT) as self._attempt_scope:
                transport = streams(
                    self.server, self._watch, self._on_error_status, self._on_stderr_line, self._max_bytes
                )
                async with Client(transport, message_handler=self._on_message, cache=None) as client:
                    await self._list_tools(client)
                    self.is_known = True
                    self._attempt_scope.deadline = math.inf
                    up, self._client, self._is_connecting = True, client, False
                    self._last_over = self._attempts
                    self._attempt_over.set()
                    try:
                        await self._follow(client)
                    finally:
                        self._on_end()
            if self._attempt_scope.cancelled_caught and not up:
                late = f"it did not answer within {_CONNECT_TIMEOUT:g} s"
                self.error = _RESTARTS if self._restarting.is_set() else late
        except Exception as e:  # servers and transports may raise anything
            cause = first_cause(e)
            self.error = self.describe_failure(cause)
            if isinstance(cause, SourceError):
                self.fatal_error = cause
        self._is_connecting, self._last_over = False, self._attempts
        if not up:
            self._set_down(self.error)

    async def _follow(self, client: Client) -> None:
        """Update the list of tools whenever the server changes it, until the connection ends."""
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
                        _log.warning("%s: its tools stay unchanged: %s", self.name, self.describe_failure(e))

    async def _on_message(self, message: IncomingMessage) -> None:
        if isinstance(message, ToolListChangedNotification):
            self._watch.changed()

    def _on_stderr_line(self, line: str) -> None:
        _log.info("%s: %s", self.name, line)

    def _on_error_status(self, status: int) -> None:
        self._status = status

    # --- disconnecting --------------------------------------------------------------------------------------------

    async def _await_answer(self, client: Client) -> None:
        """Probe the server. Without an answer, end the connection, so that its pending calls fail."""
        try:
            async with asyncio.timeout(ANSWER_TIMEOUT):
                await client.list_tools()
        except TimeoutError:
            if client is self._client:
                _log.warning(
                    "%s no longer answers: it is stopped, and the next call starts it again",
                    self.name,
                    extra=problem("server_down", server=self.server_name, error="it no longer answers"),
                )
                self._set_down("it no longer answered")
                self._attempt_scope.cancel()
        except Exception as error:  # an error is an answer too; the end of the connection is handled elsewhere
            _log.debug("%s: %s", self.name, self.describe_failure(error))

    def _on_end(self) -> None:
        if self._client is not None:
            self._set_down("the connection has ended")

    def _set_down(self, error: str) -> None:
        """Drop the client, and wake everything that waits for this attempt."""
        self._client, self.error = None, error
        if error not in (_RESTARTS, _CLOSED):
            self.last_error, self.last_error_at = error, time.time()
        self._attempt_over.set()
        self._attempt_over = asyncio.Event()

    def _down_error(self) -> ToolError:
        return ToolError(f"{self.name} is down: {self.error}", retryable=True, sent=False)
