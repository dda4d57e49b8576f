"""Detects the handover of an answer: the client's connection has taken the last byte, or the client is gone.

mitmproxy has no hook for this: `response` runs before an answer, or the end of a stream, is sent. One method of
mitmproxy is therefore replaced below. If it is missing, importing this module fails.
"""

import asyncio
import logging
from collections.abc import Callable, Generator
from typing import Any

from mitmproxy import ctx, http
from mitmproxy.connection import Client
from mitmproxy.proxy import commands
from mitmproxy.proxy.layers.http import HttpStream

from addon.hooks.destinations import check
from addon.hooks.flow_state import FlowState

on_handover = FlowState[Callable[[bool], None]]("on_handover")
"""Called once, with whether the client has the whole answer. Not called if the proxy ends before that is known."""

logger = logging.getLogger("toolgraft")

_flushing: set[asyncio.Task[None]] = set()

check(HttpStream, "send_response")
_send_response = HttpStream.send_response


def send_response(self: HttpStream, already_streamed: bool = False) -> Generator[commands.Command, Any]:
    """As mitmproxy's, which returns when everything was written, or the client is gone. A stream was written before the
    hook `response`: its client may have read the last event and left since."""
    yield from _send_response(self, already_streamed)
    if self.flow not in on_handover:
        return
    if already_streamed or self.client_state == self.state_done:
        _written(self.flow)
    else:
        handover_failed(self.flow)


HttpStream.send_response = send_response  # type: ignore[method-assign]


def handover_failed(flow: http.HTTPFlow) -> None:
    """The client will not get the whole answer."""
    if (settle := on_handover.pop(flow)) is not None:
        _settle(settle, whole=False)


def _written(flow: http.HTTPFlow) -> None:
    """Data that the operating system has taken outlives the proxy; data buffered in the process does not."""
    settle = on_handover.pop(flow)
    assert settle is not None
    writer = _writer(flow.client_conn)
    if writer is None or not writer.transport.get_write_buffer_size():
        _settle(settle, whole=True)
        return
    task = asyncio.ensure_future(_flushed(writer, settle))
    _flushing.add(task)
    task.add_done_callback(_flushing.discard)


async def _flushed(writer: asyncio.StreamWriter, settle: Callable[[bool], None]) -> None:
    writer.transport.set_write_buffer_limits(0)  # `drain` waits until the buffer is empty
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
