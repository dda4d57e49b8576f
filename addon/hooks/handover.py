"""When an answer has been handed over: the connection to its client has taken the last byte, or the client is gone.

mitmproxy has no hook for that: `response` comes before an answer is sent, or its end is. For that one method of
mitmproxy's is replaced below; where it is missing this module cannot be imported.
"""

import asyncio
import logging
from collections.abc import Callable, Generator
from typing import Any

from mitmproxy import ctx, http
from mitmproxy.connection import Client
from mitmproxy.proxy import commands
from mitmproxy.proxy.layers.http import HttpStream

from addon.hooks.onward import check
from addon.hooks.perflow import PerFlow

handover = PerFlow[Callable[[bool], None]]("handover")
"""Called once: whether the client has all of the answer. Not called where the proxy ends before that is known."""

logger = logging.getLogger("toolgraft")

_flushing: set[asyncio.Task[None]] = set()

check(HttpStream, "send_response")
_send_response = HttpStream.send_response


def send_response(self: HttpStream, already_streamed: bool = False) -> Generator[commands.Command, Any]:
    """As mitmproxy's, which returns when all was written, or the client is gone. What streamed had been written before
    the hook `response`: a client that reads no further than the answer's last event may be gone since."""
    yield from _send_response(self, already_streamed)
    if self.flow not in handover:
        return
    if already_streamed or self.client_state == self.state_done:
        _written(self.flow)
    else:
        lost(self.flow)


HttpStream.send_response = send_response  # type: ignore[method-assign]


def lost(flow: http.HTTPFlow) -> None:
    """The client will not get all of the answer."""
    if (settle := handover.pop(flow)) is not None:
        _settle(settle, whole=False)


def _written(flow: http.HTTPFlow) -> None:
    """What the operating system has taken outlives the proxy; what waits in the process does not."""
    settle = handover.pop(flow)
    assert settle is not None
    writer = _writer(flow.client_conn)
    if writer is None or not writer.transport.get_write_buffer_size():
        _settle(settle, whole=True)
        return
    task = asyncio.ensure_future(_flushed(writer, settle))
    _flushing.add(task)
    task.add_done_callback(_flushing.discard)


async def _flushed(writer: asyncio.StreamWriter, settle: Callable[[bool], None]) -> None:
    writer.transport.set_write_buffer_limits(0)  # `drain` waits until nothing is left
    try:
        await writer.drain()
    except OSError:
        _settle(settle, whole=False)
    else:
        _settle(settle, whole=True)


def _settle(settle: Callable[[bool], None], *, whole: bool) -> None:
    try:
        settle(whole)
    except Exception:
        logger.exception("whether the client has an answer could not be noted")


def _writer(client: Client) -> asyncio.StreamWriter | None:
    handler = ctx.master.addons.get("proxyserver").connections.get(client.id)
    found = handler.transports.get(client) if handler is not None else None
    return found.writer if found is not None and isinstance(found.writer, asyncio.StreamWriter) else None
