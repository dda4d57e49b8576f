"""`/v1/responses` over a WebSocket: each message of the client is a request, answered with the events of its response.

Further requests wait for the current response. If the last response of a connection is not stored, only this connection
can continue it.
"""

import asyncio
from collections import deque
from contextlib import aclosing, suppress
from typing import Any

from starlette.routing import WebSocketRoute
from starlette.types import Receive, Scope, Send
from starlette.websockets import WebSocket, WebSocketDisconnect

from addon.core.dialects.responses.errors import bad
from addon.core.dialects.responses.request import ResponsesRequest
from addon.core.framing.documents import Document, encode
from addon.gateway.conversations import LocalHistory
from addon.gateway.engine import Caller
from addon.gateway.failures import openai_error
from addon.gateway.front_door import FrontDoor, access_of, caller_of
from addon.gateway.response_turns import ResponseTurns
from addon.gateway.streaming import counted, ending_problem
from addon.web import tasks
from addon.web.access import name_session
from addon.web.api import ApiContext
from addon.web.problems import Problem, parse, refusal

PATH = "/v1/responses"
LONGEST = 3600.0
"""Seconds that a connection may last, from Open Responses."""
_MOST_WAITING = 8
"""The most messages of a client that wait for the current response."""
_TYPE = "response.create"
_NOT_HERE = ("stream", "stream_options", "background")
_TRY_LATER, _POLICY = 1013, 1008


def socket_route(door: FrontDoor, turns: ResponseTurns) -> WebSocketRoute:
    async def serve(scope: Scope, receive: Receive, send: Send) -> None:
        try:
            access = access_of(websocket := WebSocket(scope, receive, send))
            access.check("ask")
            name_session(scope)
            caller = caller_of(websocket, scope["api"].settings, door.key)
        except Problem as problem:
            await refusal(problem, scope)(scope, receive, send)
            return
        await websocket.accept()
        with suppress(WebSocketDisconnect):
            await _Connection(door, turns, websocket, caller).run()

    class Endpoint:
        """An ASGI application: Starlette would wrap a function in its own session."""

        async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
            await serve(scope, receive, send)

    return WebSocketRoute(PATH, Endpoint())


class _Connection:
    def __init__(self, door: FrontDoor, turns: ResponseTurns, websocket: WebSocket, caller: Caller) -> None:
        self._door = door
        self._turns = turns
        self._websocket = websocket
        self._caller = caller
        self._api: ApiContext = websocket.scope["api"]
        self._local = LocalHistory()
        self._waiting: deque[str] = deque()
        self._arrived = asyncio.Event()

    async def run(self) -> None:
        """Serve until the client hangs up, the proxy stops, the token is revoked or the connection is too old."""
        ends = [event.wait() for event in self._api.ends(access_of(self._websocket))]
        reader = tasks.spawn(self._read(), name="WebSocket")
        stops = [reader, *(tasks.spawn(end, name="an end") for end in ends)]
        now = asyncio.get_running_loop().time
        began = now()
        try:
            while not any(stop.done() for stop in stops):
                left = began + LONGEST - now()
                if left <= 0:
                    await self._refuse(_too_old(), 400)
                    await self._websocket.close()
                    return
                if not self._waiting:
                    await self._wait(tasks.spawn(self._arrived.wait(), name="a message"), stops, left)
                    continue
                text = self._waiting.popleft()
                self._arrived.clear()
                await self._wait(tasks.spawn(self._answer(text), name="a response"), stops, None)
            if not reader.done():
                await self._websocket.close(_TRY_LATER, "the proxy is ending, or the token was revoked")
        finally:
            await tasks.cancel(*stops)

    async def _wait(self, task: asyncio.Task[Any], stops: list[asyncio.Task[Any]], timeout: float | None) -> None:
        """Wait until the task, one of `stops` or the timeout is over, and cancel the task if it is not."""
        try:
            await asyncio.wait((task, *stops), timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
        finally:
            if not task.done():
                await tasks.cancel(task)
        if not task.cancelled():
            task.result()

    async def _read(self) -> None:
        """Read messages until the client hangs up, or has sent too many."""
        while (message := await self._websocket.receive())["type"] == "websocket.receive":
            text = message.get("text")
            text = message["bytes"].decode("utf-8", "replace") if text is None else text
            size = sum(map(len, self._waiting)) + len(text)
            if len(self._waiting) >= _MOST_WAITING or (self._waiting and size > self._api.settings.max_body):
                await self._websocket.close(_POLICY, "a connection answers one request after the other: wait for them")
                return
            self._waiting.append(text)
            self._arrived.set()

    async def _answer(self, text: str) -> None:
        try:
            parsed = await self._request(text)
        except Exception as error:
            await self._fail(error)
            return
        handover = self._door.engine.handover(self._caller, f"websocket {PATH}", text.encode())
        whole = failed = False
        try:
            if self._api.draining:
                raise ending_problem()
            turn = self._turns.events(self._caller, parsed, handover, self._api.ending, self._local)
            with counted(self._api):
                async with aclosing(turn) as events:
                    async for some in events:
                        for event in some:
                            failed = failed or event["type"] in ("error", "response.failed")
                            await self._send(event)
            whole = True
        except WebSocketDisconnect:
            raise
        except Exception as error:
            failed = True
            await self._fail(error)
        finally:
            if failed:
                self._local.forget(parsed.previous_response_id)
            await handover.settle(whole=whole)

    async def _request(self, text: str) -> ResponsesRequest:
        """Raises Invalid, Problem."""
        body = parse(text.encode("utf-8", "surrogatepass"))
        if not isinstance(body, dict) or body.get("type") != _TYPE:
            raise bad("type", f'must be "{_TYPE}": each message is an object that asks for a response')
        for name in _NOT_HERE:
            if body.get(name) is not None:
                raise bad(name, "is not for WebSockets: every response comes as events", "unknown_parameter")
        given = self._door.with_model({name: value for name, value in body.items() if name != "type"})
        request, _ = await self._turns.read(self._caller.session, {**given, "stream": True})
        return request

    async def _send(self, event: Document) -> None:
        if event["type"] == "error":
            await self._refuse({name: event[name] for name in ("code", "message", "param")}, 500)
        else:
            await self._websocket.send_text(encode(event).decode())

    async def _fail(self, error: Exception) -> None:
        status, document = openai_error(error)
        await self._refuse(document["error"], status)

    async def _refuse(self, error: Document, status: int) -> None:
        await self._websocket.send_text(encode({"type": "error", "status": status, "error": error}).decode())


def _too_old() -> Document:
    return {
        "message": f"a connection lasts {LONGEST / 60:.0f} minutes: open a new one",
        "type": "invalid_request_error",
        "param": None,
        "code": "websocket_connection_limit_reached",
    }
