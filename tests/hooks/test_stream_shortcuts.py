"""Requests and streamed answers pass through the layers with the shortcuts as they do without them."""

from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import cache, partial
from typing import Any

import pytest
from mitmproxy.addons.proxyserver import Proxyserver
from mitmproxy.connection import Client, Connection, ConnectionState
from mitmproxy.http import HTTPFlow
from mitmproxy.options import Options
from mitmproxy.proxy import commands, events, layers
from mitmproxy.proxy.context import Context
from mitmproxy.proxy.layer import NextLayer, NextLayerHook
from mitmproxy.proxy.layers.http import HTTPMode, HttpStream
from mitmproxy.proxy.layers.http._events import ResponseData
from mitmproxy.proxy.layers.http._hooks import HttpRequestHeadersHook, HttpResponseHeadersHook
from mitmproxy.proxy.mode_specs import ProxyMode
from mitmproxy.proxy.tunnel import TunnelLayer
from mitmproxy.test import taddons

from addon.hooks.hook_cache import ALL_SHORTCUTS
from addon.hooks.shortcuts import take_all
from addon.hooks.streams import Stage, stream_through
from tests.hooks.proxied import chunk

REQUEST = b"GET /a HTTP/1.1\r\nhost: up.test\r\n\r\n"
CHUNKED = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
LENGTH = b"HTTP/1.1 200 OK\r\ncontent-length: 6\r\n\r\n"
UNTIL_CLOSED = b"HTTP/1.1 200 OK\r\n\r\n"
END = chunk(b"")


@contextmanager
def shortened() -> Iterator[None]:
    took = take_all(ALL_SHORTCUTS)
    try:
        assert len(took) == len(ALL_SHORTCUTS)
        yield
    finally:
        while took:
            took.pop().release()


@cache
def options_of(**given: Any) -> Options:
    with taddons.context(Proxyserver()) as context:
        context.options.update(connection_strategy="lazy", **given)
        options: Options = context.options
        return options


class Tunnel(TunnelLayer):
    """A tunnel for the client, open once it has greeted."""

    def __init__(self, context: Context) -> None:
        super().__init__(context, context.client, context.client)

    def receive_handshake_data(self, data: bytes) -> Generator[commands.Command, Any, tuple[bool, str | None]]:
        yield from ()
        return data == b"hello", "no greeting" if data == b"no" else None

    def receive_data(self, data: bytes) -> Generator[commands.Command, Any]:
        yield commands.Log("received")
        yield from super().receive_data(data.swapcase())

    def send_data(self, data: bytes) -> Generator[commands.Command, Any]:
        yield from super().send_data(data.swapcase())


class Wire:
    """The layers of a proxy's connection. `log`: what they do, event by event; `sent`: each piece that they send."""

    def __init__(
        self,
        options: Options,
        mode: str,
        stream: Callable[[HTTPFlow], None],
        *,
        has_tunnel: bool = False,
        streams: bool = False,
    ) -> None:
        """`streams`: the request's body streams too."""
        client = Client(peername=("127.0.0.1", 1), sockname=("127.0.0.1", 2), state=ConnectionState.OPEN)
        client.proxy_mode = ProxyMode.parse(mode)
        self.context = Context(client, options)
        self.top = NextLayer(self.context, ask_on_start=True)
        self.log: list[list[Any]] = []
        self.sent: list[bytes] = []
        self.late: list[commands.StartHook] = []
        """The hooks whose end is still to come, if `is_late`."""
        self.is_late = False
        self.flow: HTTPFlow | None = None
        self._stream = stream
        self._streams = streams
        self._layers: deque[Callable[[Context], Any]] = deque(
            [
                layers.modes.ReverseProxy if mode.startswith("reverse") else layers.modes.HttpProxy,
                *([Tunnel] if has_tunnel else []),
                partial(
                    layers.HttpLayer, mode=HTTPMode.transparent if mode.startswith("reverse") else HTTPMode.regular
                ),
            ]
        )

    def has(self, event: events.Event) -> None:
        log: list[Any] = []
        self.log.append(log)
        waiting = deque([event])
        while waiting:
            for command in self.top.handle_event(waiting.popleft()):
                match command:
                    case commands.SendData(connection=to, data=data):
                        self.sent.append(data)
                        before = log.pop() if log and log[-1][0] == type(to).__name__ else ("", b"")
                        log.append((type(to).__name__, before[1] + data))
                    case commands.OpenConnection(connection=to):
                        to.state = ConnectionState.OPEN
                        self.server: Connection = to
                        waiting.append(events.OpenConnectionCompleted(command, None))
                    case commands.CloseConnection(connection=closed):
                        closed.state = ConnectionState.CLOSED
                        log.append((type(closed).__name__, "closed"))
                    case commands.StartHook():
                        log.append(command.name)
                        self._run(command)
                        if self.is_late:
                            self.late.append(command)
                        else:
                            waiting.append(events.HookCompleted(command))
                    case commands.Log():
                        pass
                    case _:
                        log.append(repr(type(command)))

    def _run(self, hook: commands.StartHook) -> None:
        if isinstance(hook, NextLayerHook):
            hook.data.layer = self._layers.popleft()(hook.data.context)
        if isinstance(hook, HttpRequestHeadersHook):
            hook.flow.request.stream = self._streams
        if isinstance(hook, HttpResponseHeadersHook):
            self.flow = hook.flow
            self._stream(hook.flow)

    def got(self, data: bytes) -> None:
        if self.server.connected:
            self.has(events.DataReceived(self.server, data))


def streamed(flow: HTTPFlow, stage: Stage | bool) -> None:
    assert flow.response is not None
    flow.response.stream = stage


def over_after(count: int, flow: HTTPFlow) -> None:
    pieces: list[bytes] = []

    def stage(data: bytes) -> list[bytes]:
        pieces.append(data)
        return [data, b"more"] if data else [b"end"]

    stream_through(flow, stage, is_over=lambda: len(pieces) >= count)


def split(data: bytes) -> Iterable[bytes]:
    return (data[:1], b"", data[1:])


PIECES: dict[str, Sequence[bytes]] = {
    "a chunk each": (CHUNKED, chunk(b"one"), chunk(b"two"), END),
    "several chunks at once": (CHUNKED, chunk(b"one") + chunk(b"two"), chunk(b"three") + END),
    "the head with a chunk": (CHUNKED + chunk(b"one"), chunk(b"two"), chunk(b"three"), END),
    "cut chunks": (CHUNKED, b"3\r", b"\none\r\n3\r\nt", b"wo", b"\r\n", chunk(b"three"), b"0\r\n", b"\r\n"),
    "odd chunks": (CHUNKED, b"003\r\none\r\n", b'3;a="b"\r\ntwo\r\n', b"0A\r\n0123456789\r\n", b"00\r\n\r\n"),
    "no chunk": (CHUNKED, chunk(b"one"), b"none\r\n"),
    "no end of a chunk": (CHUNKED, chunk(b"one"), b"3\r\ntwo!!", b"!"),
    "a second answer": (CHUNKED, chunk(b"one"), END, chunk(b"two")),
    "trailers": (CHUNKED, chunk(b"one"), b"0\r\na: b\r\n\r\n"),
    "a length": (LENGTH, b"one", b"two"),
    "until it is closed": (UNTIL_CLOSED, b"one", chunk(b"two")),
}
STREAMS: dict[str, Callable[[HTTPFlow], None]] = {
    "as it comes": partial(streamed, stage=True),
    "bytes": partial(streamed, stage=bytes.upper),
    "parts": partial(streamed, stage=split),
    "nothing": partial(streamed, stage=lambda _: []),
    "over": partial(over_after, 2),
    "whole": partial(streamed, stage=False),
}
OPTIONS: dict[str, dict[str, Any]] = {"": {}, "stored": {"store_streamed_bodies": True}}


def passed(stream: str, pieces: Sequence[bytes], mode: str = "reverse:http://up.test", **given: Any) -> list[object]:
    """What the layers do, twice on one connection, and then when the upstream closes."""
    wire = Wire(options_of(**given), mode, STREAMS[stream])
    wire.has(events.Start())
    request = REQUEST if mode.startswith("reverse") else REQUEST.replace(b"/a", b"http://up.test/a", 1)
    for _ in range(2):
        if not wire.context.client.connected:
            break
        wire.has(events.DataReceived(wire.context.client, request))
        for piece in pieces:
            wire.got(piece)
        content = wire.flow.response.data.content if wire.flow and wire.flow.response else None
        wire.log.append([content])
    wire.server.state = ConnectionState.CLOSED
    wire.has(events.ConnectionClosed(wire.server))
    return [*wire.log]


@pytest.mark.parametrize("stream", STREAMS)
@pytest.mark.parametrize("pieces", PIECES.values(), ids=PIECES)
async def test_an_answer_passes_as_it_did(stream: str, pieces: Sequence[bytes]) -> None:
    for mode in ("reverse:http://up.test", "regular"):
        for given in OPTIONS.values():
            expected = passed(stream, pieces, mode, **given)
            with shortened():
                assert passed(stream, pieces, mode, **given) == expected


def tunnelled(greeting: Sequence[bytes]) -> list[object]:
    """What the layers do with a request and its answer through a tunnel for which the client sends this greeting."""
    wire = Wire(options_of(), "reverse:http://up.test", STREAMS["bytes"], has_tunnel=True)
    wire.has(events.Start())
    for piece in greeting:
        wire.has(events.DataReceived(wire.context.client, piece))
    if wire.context.client.connected:
        wire.has(events.DataReceived(wire.context.client, REQUEST.swapcase()))
        for piece in PIECES["a chunk each"]:
            wire.got(piece)
        wire.has(events.ConnectionClosed(wire.server))
    wire.has(events.ConnectionClosed(wire.context.client))
    return [*wire.log]


@pytest.mark.parametrize("greeting", [["hello"], ["hel", "hello"], ["no"]])
async def test_a_tunnel_is_what_it_was(greeting: list[str]) -> None:
    given = [piece.encode() for piece in greeting]
    expected = tunnelled(given)
    with shortened():
        assert tunnelled(given) == expected


POST = b"POST /a HTTP/1.1\r\nhost: up.test\r\n"
LARGE = bytes(200_000)
MESSAGES: dict[str, tuple[bytes, bytes]] = {
    "a length": (b"content-length: 3\r\n\r\n", b"one"),
    "none": (b"content-length: 0\r\n\r\n", b""),
    "chunks": (b"transfer-encoding: chunked\r\n\r\n", chunk(b"one") + END),
    "large": (b"content-length: %d\r\n\r\n" % len(LARGE), LARGE),
}


def exchanged(head: bytes, body: bytes, *, streams: bool) -> tuple[list[object], list[bytes]]:
    """What the layers do with a request and an answer of this form, and each piece that they send."""
    wire = Wire(options_of(), "reverse:http://up.test", partial(streamed, stage=streams), streams=streams)
    wire.has(events.Start())
    for _ in range(2):
        wire.has(events.DataReceived(wire.context.client, POST + head))
        wire.has(events.DataReceived(wire.context.client, body))
        wire.got(b"HTTP/1.1 200 OK\r\n" + head)
        wire.got(body)
    return [*wire.log], wire.sent


@pytest.mark.parametrize("streams", [False, True])
@pytest.mark.parametrize("message", MESSAGES)
async def test_a_head_is_sent_with_its_body_or_at_once(message: str, streams: bool) -> None:
    expected, _ = exchanged(*MESSAGES[message], streams=streams)
    with shortened():
        log, sent = exchanged(*MESSAGES[message], streams=streams)
    assert log == expected
    heads = [piece for piece in sent if b"HTTP/1.1" in piece and not piece.partition(b"\r\n\r\n")[2]]
    joined = {"a length": 4, "chunks": 4}.get(message, 0) if not streams else 0
    assert len(heads) == 4 - joined


async def test_an_answer_in_chunks_is_sent_with_their_end() -> None:
    with shortened():
        _, sent = exchanged(*MESSAGES["chunks"], streams=False)
    answer = b"HTTP/1.1 200 OK\r\n" + b"".join(MESSAGES["chunks"])
    assert [piece for piece in sent if b"200 OK" in piece] == [answer] * 2
    assert sent.count(END) == 2, "requests end apart: most have a length"


def answered_early(body: bytes) -> tuple[list[object], bytes]:
    """What the layers do with an answer that ends before its request does, and what they send before that."""
    wire = Wire(options_of(), "reverse:http://up.test", partial(streamed, stage=False), streams=True)
    wire.has(events.Start())
    wire.has(events.DataReceived(wire.context.client, POST + MESSAGES["chunks"][0] + chunk(b"one")))
    wire.got(CHUNKED + chunk(body) + END)
    sent = wire.sent[-1]
    wire.has(events.DataReceived(wire.context.client, END))
    return [*wire.log], sent


@pytest.mark.parametrize("body", [b"two", LARGE])
async def test_an_answer_does_not_wait_for_the_end_of_its_request(body: bytes) -> None:
    expected, _ = answered_early(body)
    with shortened():
        log, sent = answered_early(body)
    assert log == expected
    assert sent.endswith(chunk(body))


@pytest.mark.parametrize("short", [False, True])
async def test_a_piece_waits_for_the_hook_that_is_running(short: bool) -> None:
    with shortened() if short else nullcontext():
        wire = Wire(options_of(), "reverse:http://up.test", STREAMS["as it comes"])
        wire.has(events.Start())
        wire.has(events.DataReceived(wire.context.client, REQUEST))
        wire.is_late = True
        wire.got(CHUNKED)
        wire.got(chunk(b"one"))
        assert wire.log[-1] == []
        wire.is_late = False
        wire.has(events.HookCompleted(wire.late.pop()))
        wire.got(chunk(b"two"))
        assert wire.sent[1:] == [CHUNKED, chunk(b"one"), chunk(b"two")]


async def test_a_plain_piece_takes_the_short_way(monkeypatch: pytest.MonkeyPatch) -> None:
    handle = HttpStream._handle_event
    found: list[bytes] = []

    def spy(self: HttpStream, event: events.Event) -> Any:
        if isinstance(event, ResponseData):
            found.append(event.data)
        return handle(self, event)

    with shortened():
        monkeypatch.setattr(HttpStream, "_handle_event", spy)
        passed("bytes", PIECES["a chunk each"])
        assert found == []
        passed("bytes", PIECES["a length"])
        assert found == [b"one", b"two"] * 2
