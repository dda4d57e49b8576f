"""The strict local Gemini's ASGI application: credentials, framing, compression and the request log.

``service`` has the rules and answers. Every request is kept in ``log``, for tests.
"""

from __future__ import annotations

import asyncio
import gzip
import json
import re
import urllib.parse
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
from starlette.responses import Response
from starlette.types import Receive, Scope, Send
from starlette.websockets import WebSocket

from addon.fake_gemini import chat, errors
from addon.fake_gemini.errors import Json, Refused, pretty
from addon.fake_gemini.history import last_words, turns
from addon.fake_gemini.interactions import Interactions, events
from addon.fake_gemini.live import Closed, LiveConnection
from addon.fake_gemini.reply import Shape
from addon.fake_gemini.routes import Route, find_route
from addon.fake_gemini.service import Service

JSON_TYPE = "application/json; charset=UTF-8"
_KNOBS = re.compile(r"\[demo:([^\]]*)\]")
_HEADERS = [
    (b"vary", b"Origin, X-Origin, Referer"),
    (b"server", b"scaffolding on HTTPServer2"),
    (b"x-content-type-options", b"nosniff"),
]


class App:
    """The ASGI application. ``shape``: how streams are cut by default.

    A request changes the shape with the header ``x-demo-shape`` or with ``[demo: …]`` in the user's last words.
    """

    def __init__(self, service: Service, shape: Shape, log: Log) -> None:
        self.service = service
        self.shape = shape
        self.log = log
        self.interactions = Interactions(service.options)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one HTTP request, or one WebSocket."""
        if scope["type"] == "websocket":
            await self._live(WebSocket(scope, receive, send))
            return
        exchange = _Exchange(scope, await _body(receive), send)
        if exchange.path.startswith("/_demo/"):
            await self._inspect(exchange)
            return
        try:
            route = self._route(exchange)
            if route.surface == "interactions":
                await self._interact(exchange, route)
                return
            if route.method == "chat/completions":
                await self._complete(exchange, route)
                return
            if exchange.streamed:
                await self._stream(exchange, route)
                return
            document = self._unary(exchange, route)
        except Refused as refused:
            await self._refuse(exchange, refused)
            return
        self._log_request(exchange, 200)
        await exchange.answer(200, pretty(document).encode())

    async def _live(self, socket: WebSocket) -> None:
        """Serve a WebSocket of the Live API: JSON in text or binary frames, answered by binary frames. Each
        connection is one entry of the log: ``body`` gets ``{text, message}`` for each frame of the client; if the
        service closes the connection, ``status`` is the code and ``error`` the reason."""
        path, query = socket.scope["path"], socket.scope["query_string"].decode()
        url, headers = f"{path}?{query}" if query else path, dict(socket.headers)
        entry: Json = {"method": "GET", "path": url, "headers": headers, "body": [], "status": 101, "error": None}
        await socket.receive()  # the handshake
        try:
            route = find_route(path)
            if route is None or route.method != "BidiGenerateContent":
                raise Refused(f"The requested URL {path} was not found on this server.", code=404)
            check_key(headers, dict(socket.query_params), route)
        except Refused as refused:
            self.log.add(entry | {"status": refused.code, "error": refused.message}, 0)
            await socket.send_denial_response(
                Response(pretty(refused.body()), refused.code, {"content-type": JSON_TYPE})
            )
            return
        self.log.add(entry, 0)
        await socket.accept()
        connection = LiveConnection(route)
        while (message := await socket.receive())["type"] == "websocket.receive":
            text = message.get("text") is not None
            data: bytes = message["text"].encode() if text else message["bytes"]
            entry["body"].append({"text": text, "message": _loggable(data)})
            try:
                answers = connection.receive(data)
            except Closed as closed:
                entry |= {"status": closed.code, "error": closed.reason}
                await socket.close(closed.code, closed.reason)
                return
            for answer in answers:
                await socket.send_bytes(pretty(answer).encode())

    def _route(self, exchange: _Exchange) -> Route:
        route = find_route(exchange.path)
        if route is None:
            raise Refused(f"The requested URL {exchange.path} was not found on this server.", code=404)
        exchange.route = route
        exchange.streamed = route.method == "streamGenerateContent"
        check_key(exchange.headers, exchange.query, route)
        return route

    def _unary(self, exchange: _Exchange, route: Route) -> Json:
        service, posted = self.service, exchange.method == "POST"
        if route.method == "generateContent" and posted:
            reply, _ = service.generate(exchange.json(), route, stream=False)
            return reply.unary()
        if route.method == "countTokens" and posted:
            return service.count_tokens(exchange.json(), route)
        if route.method == "models" and not posted:
            if route.surface != "chat":
                return service.describe(route)
            return chat.models() if not route.model else chat.model(service.describe(route)["name"])
        if route.method == "embeddings" and posted:
            return chat.embeddings(exchange.json())
        if route.method == "cachedContents":
            name = exchange.path.lstrip("/").partition("/")[2]
            if posted and not route.name:
                return service.create_cached(exchange.json(), route, name.removesuffix("cachedContents"))
            if exchange.method == "GET" and route.name:
                return service.get_cached(name)
            if exchange.method == "DELETE" and route.name:
                return service.delete_cached(name)
        raise Refused("Method not found.", code=404)

    async def _stream(self, exchange: _Exchange, route: Route) -> None:
        reply, request = self.service.generate(exchange.json(), route, stream=True)
        shape = self._shape(exchange, request)
        calling = (request.get("toolConfig") or {}).get("functionCallingConfig") or {}
        documents = reply.events(shape, partial_args=bool(calling.get("streamFunctionCallArguments")))
        self._log_request(exchange, 200)
        kind = "text/event-stream" if exchange.sse else JSON_TYPE
        await self._send(exchange, list(_frames(documents, exchange.sse)), shape, kind)

    async def _send(
        self, exchange: _Exchange, frames: list[bytes], shape: Shape, kind: str = "text/event-stream"
    ) -> None:
        await exchange.start(200, kind)
        for piece in _cut(frames, shape):
            await exchange.send({"type": "http.response.body", "body": piece, "more_body": True})
            await asyncio.sleep(shape.delay)
        if shape.cut is None:
            await exchange.send({"type": "http.response.body", "body": b""})
        # Otherwise the response stays unfinished, and the server breaks the connection.

    async def _interact(self, exchange: _Exchange, route: Route) -> None:
        if exchange.method != "POST" or route.name:
            found = {"GET": self.interactions.get, "DELETE": self.interactions.delete}.get(exchange.method)
            if found is None or not route.name:
                raise Refused("Method not found.", code=404)
            document = found(route.name)
            self._log_request(exchange, 200)
            await exchange.answer(200, msgspec.json.encode(document), "application/json")
            return
        given = exchange.json()
        shape = self._shape_from(exchange, str(given.get("input", "")))
        interaction = self.interactions.create(given)
        self._log_request(exchange, 200)
        if given.get("stream"):
            await self._send(exchange, list(events(interaction, shape)), shape)
        else:
            await exchange.answer(200, msgspec.json.encode(interaction), "application/json")

    async def _complete(self, exchange: _Exchange, route: Route) -> None:
        if exchange.method != "POST":
            raise Refused("Method not found.", code=404)
        given = exchange.json()
        reply, request = self.service.complete(given, route)
        shape = self._shape(exchange, request)
        self._log_request(exchange, 200)
        if given.get("stream"):
            usage = bool((given.get("stream_options") or {}).get("include_usage"))
            await self._send(exchange, list(reply.events(shape, usage=usage)), shape)
        else:
            await exchange.answer(200, msgspec.json.encode(reply.unary()), "application/json")

    def _shape(self, exchange: _Exchange, request: Json) -> Shape:
        history = turns(request["contents"])
        return self._shape_from(exchange, history[last_words(history)].text)

    def _shape_from(self, exchange: _Exchange, text: str) -> Shape:
        words = exchange.headers.get("x-demo-shape", "")
        match = _KNOBS.search(text)
        try:
            return self.shape.changed(f"{words},{match[1] if match else ''}")
        except ValueError as e:
            raise Refused(str(e)) from e

    async def _refuse(self, exchange: _Exchange, refused: Refused) -> None:
        self._log_request(exchange, refused.code, refused.message)
        if exchange.route is not None and exchange.route.surface == "interactions":
            await exchange.answer(refused.code, msgspec.json.encode(refused.plain()), "application/json")
            return
        body: Any = refused.body()
        kind = JSON_TYPE
        if exchange.route is not None and exchange.route.method == "chat/completions":
            body = [body]
        if exchange.streamed and exchange.route and exchange.route.surface != "codeassist":
            if exchange.sse:
                kind = "text/event-stream"  # although the body is a bare object
            else:
                body = [body]
        await exchange.answer(refused.code, pretty(body).encode(), kind)

    def _log_request(self, exchange: _Exchange, status: int, error: str | None = None) -> None:
        entry = {
            "method": exchange.method,
            "path": exchange.target,
            "headers": exchange.headers,
            "body": exchange.document if exchange.document is not None else exchange.body.decode(errors="replace"),
            "status": status,
            "error": error,
        }
        self.log.add(entry, len(exchange.body))

    async def _inspect(self, exchange: _Exchange) -> None:
        """Serve ``/_demo/requests`` and ``/_demo/stats``, for tests that run the server as a process."""
        found: dict[str, Any] = {
            "/_demo/requests": self.log.requests,
            "/_demo/stats": {
                "accepted": self.log.accepted,
                "refused": self.log.refused,
                "dummy_signatures": self.service.dummy_signatures,
            },
        }
        status = 200 if exchange.path in found else 404
        await exchange.answer(status, msgspec.json.encode(found.get(exchange.path)))


class _Exchange:
    """One request, and the methods that send its answer."""

    def __init__(self, scope: Scope, body: bytes, send: Send) -> None:
        self.method: str = scope["method"]
        self.path: str = scope["path"]
        query: str = scope["query_string"].decode()
        self.target = f"{self.path}?{query}" if query else self.path
        self.query = dict(urllib.parse.parse_qsl(query, keep_blank_values=True))
        self.headers: dict[str, str] = {k.decode("latin-1"): v.decode("latin-1") for k, v in scope["headers"]}
        self.body = body
        self.send = send
        self.document: Any = None
        self.route: Route | None = None
        self.streamed = False
        self.sse = self.query.get("alt", self.query.get("$alt", "")).partition(";")[0] == "sse"

    def json(self) -> Any:
        """The body as JSON. Raises ``Refused``."""
        try:
            self.document = msgspec.json.decode(self.body)
        except (msgspec.DecodeError, UnicodeDecodeError) as e:
            raise Refused(f"Invalid JSON payload received. Unexpected token.\n{e}") from e
        return self.document

    async def start(self, status: int, kind: str, length: int | None = None, *, zipped: bool = False) -> None:
        headers = [(b"content-type", kind.encode()), *_HEADERS]
        if length is not None:
            headers.append((b"content-length", b"%d" % length))
        if zipped:
            headers.append((b"content-encoding", b"gzip"))
        await self.send({"type": "http.response.start", "status": status, "headers": headers})

    async def answer(self, status: int, body: bytes, kind: str = JSON_TYPE) -> None:
        """Send the whole answer, compressed if the client accepts gzip, except event streams."""
        zipped = kind in (JSON_TYPE, "application/json") and "gzip" in self.headers.get("accept-encoding", "")
        if zipped:
            body = gzip.compress(body, 1)
        await self.start(status, kind, len(body), zipped=zipped)
        await self.send({"type": "http.response.body", "body": body})


async def _body(receive: Receive) -> bytes:
    chunks = []
    while True:
        message = await receive()
        chunks.append(message.get("body", b""))
        if not message.get("more_body"):
            return b"".join(chunks)


def _frames(events: list[Json], sse: bool) -> Iterator[bytes]:
    """Events as server-sent events, or as the pieces of a JSON array."""
    for n, event in enumerate(events):
        if sse:
            yield f"data: {json.dumps(event, ensure_ascii=False, separators=(',', ': '))}\r\n\r\n".encode()
        else:
            yield ((",\r\n" if n else "[") + pretty(event)).encode()
    if not sse:
        yield b"]"


def _cut(frames: list[bytes], shape: Shape) -> Iterator[bytes]:
    if shape.cut is not None:
        frames = frames[: shape.cut]
    if not shape.bytes:
        yield from frames
        return
    whole = b"".join(frames)
    for n in range(0, len(whole), shape.bytes):
        yield whole[n : n + shape.bytes]


def _loggable(data: bytes) -> Any:
    try:
        return json.loads(data)
    except ValueError:
        return data.decode(errors="replace")


class Log:
    """The latest requests, ``{method, path, headers, body, status, error}``: at most ``keep``, and ``keep_bytes``."""

    def __init__(self, keep: int = 2000, keep_bytes: int = 64 << 20) -> None:
        self.requests: list[Json] = []
        self.accepted = 0
        self.refused = 0
        self._sizes: list[int] = []
        self._total = 0
        self._keep, self._keep_bytes = keep, keep_bytes

    def add(self, entry: Json, size: int) -> None:
        """Add a request, and drop the oldest beyond the limits."""
        if entry["status"] < 400:
            self.accepted += 1
        else:
            self.refused += 1
        self.requests.append(entry)
        self._sizes.append(size)
        self._total += size
        while len(self.requests) > 1 and (len(self.requests) > self._keep or self._total > self._keep_bytes):
            del self.requests[0]
            self._total -= self._sizes.pop(0)

    def clear(self) -> None:
        """Forget the requests, but not the counts."""
        self.requests.clear()
        self._sizes.clear()
        self._total = 0


def check_key(headers: Mapping[str, str], query: Mapping[str, str], route: Route) -> None:
    """Check the API key or bearer token. Raises ``Refused``."""
    scheme, _, token = headers.get("authorization", "").partition(" ")
    live = route.method == "BidiGenerateContent"  # also accepts tokens for a single session
    bearer = token.strip() if scheme.lower() in (("bearer", "token") if live else ("bearer",)) else ""
    key = headers.get("x-goog-api-key") or query.get("key") or (live and query.get("access_token")) or ""
    if route.surface == "chat" and not bearer:
        raise Refused("Missing or invalid Authorization header.")
    if not key and not bearer:
        raise errors.no_key(route.surface)
    if route.surface == "codeassist" and not bearer:
        raise errors.key_not_supported()
    if (bearer or key).startswith(("bad", "invalid")):
        service = "generativelanguage" if route.surface in ("developer", "interactions", "chat") else "aiplatform"
        raise errors.invalid_key(f"{service}.googleapis.com")
