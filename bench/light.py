"""An upstream for benchmarks: no rules, one answer, as little work as asyncio allows.

Unary requests get one text answer. Each text answer has a number, in a stream in its last event, so that no two are
equal; with ``?same`` all are equal. ``alt=sse`` gives N events, one write each: N from ``?events=N`` or from
"N events" in the body, else 10; ``?delay=S``, or "N events, M ms apart" in the body, puts pauses between them.
With ``?call=NAME``, unary requests get a call of that function instead. HTTP/1.1 with Content-Length or chunks.

A chat completion (``/chat/completions``) is unary, and gets one text answer.

With ``?loop=NAME,NAME``, requests get calls of these functions until their body contains a functionResponse. In a
stream, the calls are the second event, and ``?first=S`` delays the first event by S seconds. The calls' only argument,
``sent``, is the time (``time.monotonic``) at which they were written.
"""

from __future__ import annotations

import argparse
import asyncio
import functools
import itertools
import json
import re
import time
from collections.abc import Iterator, Sequence
from urllib.parse import unquote

_SIGNATURE = "c2lnbmVk" * 40
_ANSWER = {
    "candidates": [],
    "usageMetadata": {"promptTokenCount": 8, "candidatesTokenCount": 64, "totalTokenCount": 72},
    "modelVersion": "gemini-3-flash-preview",
    "responseId": "AAAAAAAAAAAAAAAAAAAAAAA",
}


def _head(kind: bytes, framing: bytes) -> bytes:
    return b"HTTP/1.1 200 OK\r\ncontent-type: " + kind + b"\r\n" + framing + b"\r\n\r\n"


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


def _event(*parts: object, final: bool = False) -> bytes:
    candidate: dict[str, object] = {"content": {"parts": parts, "role": "model"}, "index": 0}
    if final:
        candidate["finishReason"] = "STOP"
    event = {**_ANSWER, "candidates": [candidate]}
    return _chunk(f"data: {json.dumps(event, separators=(',', ': '))}\r\n\r\n".encode())


def _unary(*parts: object) -> bytes:
    candidate = {"content": {"parts": parts, "role": "model"}, "finishReason": "STOP", "index": 0}
    body = json.dumps({**_ANSWER, "candidates": [candidate]}, indent=2).encode()
    return _head(b"application/json; charset=UTF-8", b"content-length: %d" % len(body)) + body


def _calls(names: Sequence[str]) -> list[dict[str, object]]:
    """Parts that call these functions now. The first has the signature."""
    sent = time.monotonic()
    calls = [{"id": f"f{n}", "name": name, "args": {"sent": sent}} for n, name in enumerate(names, 1)]
    return [{"functionCall": call} | ({} if n else {"thoughtSignature": _SIGNATURE}) for n, call in enumerate(calls)]


@functools.cache
def _call(name: str) -> bytes:
    call = {"id": "f1", "name": name, "args": {"city": "Paris"}}
    return _unary({"functionCall": call, "thoughtSignature": _SIGNATURE})


_NUMBER = "0000000"
_UNARY = _unary({"text": f"Paris is the capital of France, {_NUMBER}. " + "Paris is the capital of France. " * 7})
_COMPLETION_BODY = json.dumps(
    {
        "id": "AAAAAAAAAAAAAAAAAAAAAAA",
        "object": "chat.completion",
        "created": 1_800_000_000,
        "model": "gemini-3-flash-preview",
        "choices": [
            {
                "index": 0,
                "finish_reason": "stop",
                "message": {
                    "role": "assistant",
                    "content": f"Paris is the capital of France, {_NUMBER}. " + "Paris is the capital of France. " * 7,
                },
            }
        ],
        "usage": {"prompt_tokens": 8, "completion_tokens": 64, "total_tokens": 72},
    },
    separators=(",", ":"),
).encode()
_COMPLETION = _head(b"application/json", b"content-length: %d" % len(_COMPLETION_BODY)) + _COMPLETION_BODY
_STREAM = _head(b"text/event-stream", b"transfer-encoding: chunked")
_LOVELY = {"text": "Paris is lovely. "}
_EVENT = _event(_LOVELY)
_LAST = _event({"text": f"Paris is lovely, {_NUMBER}."}, final=True) + b"0\r\n\r\n"
_SAME = re.compile(rb"[?&]same\b")
_numbers = itertools.count(1)
_CALL = re.compile(rb"[?&]call=(\w+)")
_LENGTH = re.compile(rb"\r\ncontent-length:\s*(\d+)", re.IGNORECASE)
_CHUNKED = re.compile(rb"\r\ntransfer-encoding:\s*chunked", re.IGNORECASE)
_EVENTS = re.compile(rb"[?&]events=(\d+)")
_EVENTS_IN_BODY = re.compile(rb"(\d+) events(?:, (\d+) ms apart)?")
_DELAY = re.compile(rb"[?&]delay=([\d.]+)")
_LOOP = re.compile(rb"[?&]loop=((?:\w|,|%2C)+)")
_FIRST = re.compile(rb"[?&]first=([\d.]+)")


def _numbered(answer: bytes, *, same: bool) -> bytes:
    return answer if same else answer.replace(_NUMBER.encode(), b"%07d" % next(_numbers), 1)


def _events(count: int, names: Sequence[str], *, same: bool) -> Iterator[bytes]:
    for number in range(count - 1):
        yield _event(*_calls(names)) if names and number == 1 else _EVENT
    yield _numbered(_LAST, same=same)


class Light(asyncio.Protocol):
    """One connection; requests are answered one by one, each after its whole body has arrived."""

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
        match = _LOOP.search(line)
        names = unquote(match[1].decode()).split(",") if match and b'"functionResponse"' not in self.buffer else []
        same = _SAME.search(line) is not None
        if b"alt=sse" in line:
            asked = _EVENTS_IN_BODY.search(self.buffer, end)
            match = _EVENTS.search(line) or asked
            events = _events(int(match[1]) if match else 10, names, same=same)
            apart, first = _DELAY.search(line), _FIRST.search(line)
            delay = float(apart[1]) if apart else int(asked[2]) / 1000 if asked and asked[2] else 0.0
            self._stream(events, delay, float(first[1]) if first and names else 0.0)
        elif b"/chat/completions" in line:
            self.transport.write(_numbered(_COMPLETION, same=same))
        elif names:
            self.transport.write(_unary(*_calls(names)))
        else:
            match = _CALL.search(line)
            self.transport.write(_call(match[1].decode()) if match else _numbered(_UNARY, same=same))
        del self.buffer[: self.need]
        self.need = 0

    def _stream(self, events: Iterator[bytes], delay: float, first: float) -> None:
        if first:
            asyncio.get_running_loop().call_later(first, self._stream, events, delay, 0.0)
            return
        self.transport.write(_STREAM)
        self._event(events, delay)

    def _event(self, events: Iterator[bytes], delay: float) -> None:
        """Write one event now and the others later, each with a separate write."""
        event = next(events, None)
        if event is None or self.transport.is_closing():
            return
        self.transport.write(event)
        asyncio.get_running_loop().call_later(delay, self._event, events, delay)


async def serve(port: int) -> None:
    server = await asyncio.get_running_loop().create_server(Light, "127.0.0.1", port)
    print(f"listening on http://127.0.0.1:{server.sockets[0].getsockname()[1]}", flush=True)
    async with server:
        await server.serve_forever()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m bench.light", description=__doc__)
    parser.add_argument("--port", type=int, default=9912)
    asyncio.run(serve(parser.parse_args().port))
