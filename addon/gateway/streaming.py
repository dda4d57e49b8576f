"""Long answers and streams, which are cancelled when the client hangs up or the proxy stops."""

import logging
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator, Mapping
from contextlib import aclosing, contextmanager
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from addon.core.framing.replies import PROXY_ENDING
from addon.gateway.failures import TurnFailed
from addon.gateway.handover import Handover, HandoverResponse
from addon.web.api import ApiContext
from addon.web.problems import Problem
from addon.web.tasks import while_connected

logger = logging.getLogger("toolgraft")

_NOBODY = Response(status_code=499)


async def answer_while_connected(
    request: Request, api: ApiContext, handover: Handover, work: Callable[[], Coroutine[Any, Any, Response]]
) -> Response:
    """The result of `work`, which is cancelled if the client hangs up or the proxy stops. If the proxy is ending or
    about to, raises Problem (503) instead of a failure of the work, so that the client can try again."""
    if api.draining:
        raise ending_problem()
    answer: Response | None = None
    try:
        with counted(api):
            answer = await while_connected(request.receive, work(), api.ending)
    except TurnFailed as error:
        if api.ending.is_set() and error.code >= 500:
            raise ending_problem() from error
        raise
    finally:
        if answer is None:
            await handover.settle(whole=False)
    if answer is not None:
        return HandoverResponse(answer, handover)
    if api.ending.is_set():
        raise ending_problem()
    return _NOBODY


@contextmanager
def counted(api: ApiContext) -> Iterator[None]:
    """Counts a request in progress: before a proxy ends, it waits for these."""
    api.active_requests += 1
    try:
        yield
    finally:
        api.active_requests -= 1


def ending_problem() -> Problem:
    """The error for an answer that is cut off because the proxy stops."""
    return Problem(503, PROXY_ENDING)


class Stream(Response):
    """Server-sent events from a generator, which is closed at the end or when the client hangs up. An error in the
    generator breaks off the answer. If the proxy stops (`api.ending` is set), the generator is cancelled and may yield
    a last event with `ending_problem`."""

    def __init__(
        self, events: AsyncGenerator[bytes], api: ApiContext, headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(headers={"cache-control": "no-cache", **(headers or {})}, media_type="text/event-stream")
        del self.headers["content-length"]
        self._events = events
        self._api = api

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def write() -> None:
            async with aclosing(self._events):
                async for event in self._events:
                    await send({"type": "http.response.body", "body": event, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})

        with counted(self._api):
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            await while_connected(receive, write(), self._api.ending)
            await self._events.aclose()  # closes a generator that was never started
