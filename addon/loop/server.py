"""The loopback server: a flow of mitmproxy's that needs a loop is sent here, and gets its answer as a stream.

mitmproxy can only wait for an answer that comes over a connection, so this is one: inside the process, on a port of
its own, and each request shows a secret that is good for it alone.
"""

import asyncio
import contextlib
import logging
import secrets
import socket
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

import httpx2
import uvicorn

from addon.core import replies
from addon.loop.runner import Head, Runner
from addon.loop.running import Running

logger = logging.getLogger("toolgraft")

SECRET_HEADER = b"x-toolgraft-loop"

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]


class LoopServer:
    """`register` takes a loop that is to be run, and gives the secret by which its request is known."""

    def __init__(self) -> None:
        self._waiting: dict[bytes, tuple[Runner, Callable[[], None]]] = {}
        self.running = Running()
        self._answering: set[asyncio.Task[None]] = set()
        # the protocol is named: without it asyncio does not know TCP when it sees it, and leaves Nagle's delay on
        self._listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        self._listener.bind(("127.0.0.1", 0))
        self._listener.listen(512)
        self._listener.setblocking(False)
        self.port: int = self._listener.getsockname()[1]
        self._server = uvicorn.Server(
            uvicorn.Config(
                self._app,
                interface="asgi3",
                proxy_headers=False,
                http="httptools",
                ws="none",
                lifespan="off",
                loop="none",
                log_config=None,
                log_level="critical",
                access_log=False,
                server_header=False,
                date_header=False,
                timeout_graceful_shutdown=1,
            )
        )
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        config, server = self._server.config, self._server
        config.load()
        server.lifespan = config.lifespan_class(config)
        await server.startup(sockets=[self._listener])
        self._task = asyncio.ensure_future(server.main_loop())

    async def stop(self) -> None:
        if self._task is None:
            self._listener.close()
            return
        self._server.should_exit = True
        for answering in self._answering:
            answering.cancel()
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task
        await self._server.shutdown(sockets=[self._listener])

    def register(self, runner: Runner, received: Callable[[], None] = lambda: None) -> bytes:
        """`received` is called when the loop's request is here: whole, with nothing of it still to be sent."""
        secret = secrets.token_hex(16).encode()
        self._waiting[secret] = runner, received
        return secret

    def forget(self, secret: bytes) -> None:
        """A loop whose request never came."""
        self._waiting.pop(secret, None)

    async def _app(self, scope: Scope, receive: Receive, send: Send) -> None:
        waiting = self._waiting.pop(dict(scope["headers"]).get(SECRET_HEADER, b""), None)
        if waiting is None:
            await send({"type": "http.response.start", "status": 403, "headers": []})
            await send({"type": "http.response.body"})
            return
        while (await receive()).get("more_body"):
            pass  # the runner has the body already
        runner, received = waiting
        received()
        self.running.begin(runner)
        gone = asyncio.ensure_future(receive())  # the next thing to come is the client's hang-up
        answering = asyncio.ensure_future(_answer(runner, send))
        self._answering.add(answering)
        try:
            await asyncio.wait({gone, answering}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            gone.cancel()
            answering.cancel()
            await asyncio.wait({answering})
            self._answering.discard(answering)
            self.running.end(runner)
        if not answering.cancelled() and (error := answering.exception()) is not None:
            logger.debug("an answer broke off: %s", error)
            raise ConnectionError("the answer broke off") from error


async def _answer(runner: Runner, send: Send) -> None:
    """Send what a loop gives. Where the upstream breaks off in an answer, the answer breaks off."""
    begun = False
    output = runner.output()
    try:
        async for out in output:
            if isinstance(out, Head):
                begun = True
                await send({"type": "http.response.start", "status": out.status, "headers": list(out.headers)})
            else:
                await send({"type": "http.response.body", "body": out, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})
    except httpx2.RequestError as error:
        if begun:
            raise
        await _refuse(runner, send, 502, "UNAVAILABLE", f"the model cannot be reached: {error}")
    except Exception as error:
        logger.exception("a tool loop failed")
        if begun:
            raise
        await _refuse(runner, send, 500, "INTERNAL", f"the tool loop failed: {type(error).__name__}")
    finally:
        await output.aclose()


async def _refuse(runner: Runner, send: Send, code: int, status: str, message: str) -> None:
    headers = [(b"content-type", b"application/json; charset=UTF-8")]
    await send({"type": "http.response.start", "status": code, "headers": headers})
    body = runner.wire.error(replies.error(code, status, f"toolgraft: {message}"))
    await send({"type": "http.response.body", "body": body})
