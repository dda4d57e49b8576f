"""An upstream for benchmarks: no rules, a fixed answer, as little work as asyncio allows.

Unary requests get one text answer. With ``alt=sse`` come N events, one write each: N from ``?events=N`` or from
"N events" in the body, else 10; ``?delay=S`` puts S seconds between them. With ``?call=NAME`` unary requests get a call
of that function instead. HTTP/1.1 with Content-Length or chunks.
"""

from __future__ import annotations

import asyncio
import functools
import json
import re
import socket

_ANSWER = {
    "candidates": [
        {
            "content": {"parts": [{"text": "Paris is the capital of France. " * 8}], "role": "model"},
            "finishReason": "STOP",
            "index": 0,
        }
    ],
    "usageMetadata": {"promptTokenCount": 8, "candidatesTokenCount": 64, "totalTokenCount": 72},
    "modelVersion": "gemini-3-flash-preview",
    "responseId": "AAAAAAAAAAAAAAAAAAAAAAA",
}


def _head(kind: bytes, framing: bytes) -> bytes:
    return b"HTTP/1.1 200 OK\r\ncontent-type: " + kind + b"\r\n" + framing + b"\r\n\r\n"


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


def _event(final: bool) -> bytes:
    candidate: dict[str, object] = {"content": {"parts": [{"text": "Paris is lovely. "}], "role": "model"}, "index": 0}
    if final:
        candidate["finishReason"] = "STOP"
    event = {**_ANSWER, "candidates": [candidate]}
    return _chunk(f"data: {json.dumps(event, separators=(',', ': '))}\r\n\r\n".encode())


@functools.cache
def _call(name: str) -> bytes:
    part = {"functionCall": {"id": "f1", "name": name, "args": {"city": "Paris"}}, "thoughtSignature": "c2lnbmVk" * 40}
    candidate = {"content": {"parts": [part], "role": "model"}, "finishReason": "STOP", "index": 0}
    body = json.dumps({**_ANSWER, "candidates": [candidate]}, indent=2).encode()
    return _head(b"application/json; charset=UTF-8", b"content-length: %d" % len(body)) + body


_BODY = json.dumps(_ANSWER, indent=2).encode()
_UNARY = _head(b"application/json; charset=UTF-8", b"content-length: %d" % len(_BODY)) + _BODY
_STREAM = _head(b"text/event-stream", b"transfer-encoding: chunked")
_EVENT, _LAST = _event(False), _event(True) + b"0\r\n\r\n"
_CALL = re.compile(rb"[?&]call=(\w+)")
_LENGTH = re.compile(rb"\r\ncontent-length:\s*(\d+)", re.IGNORECASE)
_CHUNKED = re.compile(rb"\r\ntransfer-encoding:\s*chunked", re.IGNORECASE)
_EVENTS = re.compile(rb"[?&]events=(\d+)")
_SAID = re.compile(rb"(\d+) events")
_DELAY = re.compile(rb"[?&]delay=([\d.]+)")


class Light(asyncio.Protocol):
    """One connection; requests are answered in turn, and not before their body is here."""

    def __init__(self) -> None:
        self.buffer = bytearray()
        self.need = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.buffer += data
        if len(self.buffer) >= self.need:
            self._request()

    def _request(self) -> None:
        end = self.buffer.find(b"\r\n\r\n")
        if end < 0:
            return
        head = bytes(self.buffer[:end])
        if match := _LENGTH.search(head):
            self.need = end + 4 + int(match[1])
        elif _CHUNKED.search(head):
            if not self.buffer.endswith(b"0\r\n\r\n"):
                return
            self.need = len(self.buffer)
        else:
            self.need = end + 4
        if len(self.buffer) < self.need:
            return
        line = head.partition(b"\r\n")[0]
        if b"alt=sse" in line:
            match = _EVENTS.search(line) or _SAID.search(self.buffer, end)
            delay = _DELAY.search(line)
            self.transport.write(_STREAM)
            self._events(int(match[1]) if match else 10, float(delay[1]) if delay else 0.0)
        else:
            match = _CALL.search(line)
            self.transport.write(_call(match[1].decode()) if match else _UNARY)
        del self.buffer[: self.need]
        self.need = 0

    def _events(self, left: int, delay: float) -> None:
        """One event now and the others later, so that each is a write of its own."""
        if self.transport.is_closing():
            return
        if left <= 1:
            self.transport.write(_LAST)
            return
        self.transport.write(_EVENT)
        asyncio.get_running_loop().call_later(delay, self._events, left - 1, delay)


async def serve(sock: socket.socket) -> None:
    """Serve until cancelled."""
    server = await asyncio.get_running_loop().create_server(Light, sock=sock)
    async with server:
        await server.serve_forever()
