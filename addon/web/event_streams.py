"""Server-Sent Events of the control API, from several sources in one answer."""

import asyncio
import functools
import logging
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing

import anyio
from sse_starlette import EventSourceResponse, ServerSentEvent
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Scope

from addon.web.api import ApiContext
from store.base import StoreError

_log = logging.getLogger(__name__)
# It logs each whole event, and mitmweb would keep thousands of these lines in memory.
logging.getLogger("sse_starlette").setLevel(logging.WARNING)

KEEP_ALIVE = 15.0
"""Seconds."""

sse = functools.partial(ServerSentEvent, sep="\n")


def event_stream(
    api: ApiContext,
    request: Request,
    *sources: AsyncGenerator[ServerSentEvent],
    position: Callable[[], str | None] = lambda: None,
    headers: Mapping[str, str] | None = None,
) -> Response:
    """A stream until the client hangs up, its token is revoked or its page's session ends, the server stops, a source
    ends, or the store fails. The first event comes from the first source. `position`: the id in keep-alives, after
    which a reader resumes."""
    sender = _Sender(api, request.scope, sources)
    return EventSourceResponse(
        sender.events(),
        headers=headers,
        data_sender_callable=sender.send,
        ping=KEEP_ALIVE,
        ping_message_factory=lambda: sender.keep_alive(position()),
        sep="\n",
    )


class _Sender:
    def __init__(self, api: ApiContext, scope: Scope, sources: Sequence[AsyncGenerator[ServerSentEvent]]) -> None:
        self._api = api
        self._scope = scope
        self._sources = sources
        self._signed_out = asyncio.Event()
        self._ends = [*api.ends(scope["access"]), self._signed_out]
        self._writer, self._reader = anyio.create_memory_object_stream[ServerSentEvent]()

    async def events(self) -> AsyncGenerator[ServerSentEvent]:
        async with self._reader:
            async for event in self._reader:
                yield event

    async def send(self) -> None:
        try:
            async with self._writer, anyio.create_task_group() as group:
                for end in self._ends:
                    group.start_soon(self._stop_at, end, group.cancel_scope)
                for source in self._sources:
                    group.start_soon(self._forward, source, group.cancel_scope)
        except* (StoreError, OSError) as errors:
            _log.warning("an event stream ends: %r", errors.exceptions)
        except* Exception:
            _log.exception("an event stream broke off")
            raise

    async def _forward(self, source: AsyncGenerator[ServerSentEvent], running: anyio.CancelScope) -> None:
        async with aclosing(source):
            async for event in source:
                if self._api.has_ended(self._scope):
                    break
                await self._writer.send(event)
        running.cancel()

    async def _stop_at(self, end: asyncio.Event, running: anyio.CancelScope) -> None:
        await end.wait()
        running.cancel()

    def keep_alive(self, position: str | None) -> ServerSentEvent:
        try:
            if self._api.has_ended(self._scope):
                self._signed_out.set()
        except OSError:
            self._signed_out.set()
        return sse(comment="keep-alive", id=position)
