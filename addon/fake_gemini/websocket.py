"""The strict local Gemini's WebSockets: handshake, frames and closing. ``live`` has the answers.

Like the service, it reads JSON from text and binary frames, and sends binary frames. A connection is one entry of the
log: ``body`` grows by ``{text, message}`` with each frame of the client; if the service closes the connection,
``status`` is the code and ``error`` the reason.
"""

from __future__ import annotations

import json
import urllib.parse
from typing import Any

from starlette.types import Receive, Scope, Send

from addon.fake_gemini.documents import Json
from addon.fake_gemini.entrance import Log, check_key
from addon.fake_gemini.errors import Refused, pretty
from addon.fake_gemini.live import Closed, LiveConnection
from addon.fake_gemini.routes import Route, find


async def serve(log: Log, scope: Scope, receive: Receive, send: Send) -> None:
    """Serve one WebSocket."""
    query: str = scope["query_string"].decode()
    headers = {k.decode("latin-1"): v.decode("latin-1") for k, v in scope["headers"]}
    path: str = scope["path"]
    entry: Json = {
        "method": "GET",
        "path": f"{path}?{query}" if query else path,
        "headers": headers,
        "body": [],
        "status": 101,
        "error": None,
    }
    await receive()  # the handshake
    try:
        route = _route(path)
        check_key(headers, dict(urllib.parse.parse_qsl(query)), route)
    except Refused as refused:
        log.add(entry | {"status": refused.code, "error": refused.message}, 0)
        body = pretty(refused.body()).encode()
        kind = [(b"content-type", b"application/json; charset=UTF-8")]
        await send({"type": "websocket.http.response.start", "status": refused.code, "headers": kind})
        await send({"type": "websocket.http.response.body", "body": body})
        return
    log.add(entry, 0)
    await send({"type": "websocket.accept"})
    connection = LiveConnection(route)
    while (message := await receive())["type"] == "websocket.receive":
        text = message.get("text") is not None
        data: bytes = message["text"].encode() if text else message["bytes"]
        entry["body"].append({"text": text, "message": _loggable(data)})
        try:
            answers = connection.receive(data)
        except Closed as closed:
            entry |= {"status": closed.code, "error": closed.reason}
            await send({"type": "websocket.close", "code": closed.code, "reason": closed.reason})
            return
        for answer in answers:
            await send({"type": "websocket.send", "bytes": pretty(answer).encode()})


def _route(path: str) -> Route:
    route = find(path)
    if route is None or route.method != "BidiGenerateContent":
        raise Refused(f"The requested URL {path} was not found on this server.", code=404)
    return route


def _loggable(data: bytes) -> Any:
    try:
        return json.loads(data)
    except ValueError:
        return data.decode(errors="replace")
