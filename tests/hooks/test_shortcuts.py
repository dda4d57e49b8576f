"""The faster methods return the same as mitmproxy's own."""

import asyncio
import itertools
import socket
from asyncio import StreamReader
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock

import h11
import mitmproxy.proxy.layers  # noqa: F401 - makes the hooks of flows known
import pytest
from h11._readers import ContentLengthReader
from h11._receivebuffer import ReceiveBuffer
from mitmproxy import hooks, http
from mitmproxy.addons.asgiapp import ASGIApp
from mitmproxy.addons.maplocal import MapLocal
from mitmproxy.connection import Client, ConnectionState
from mitmproxy.hooks import Hook
from mitmproxy.http import Headers, MessageData, RequestData, ResponseData
from mitmproxy.options import Options
from mitmproxy.proxy.commands import Command, SendData
from mitmproxy.proxy.context import Context
from mitmproxy.proxy.events import DataReceived, Event
from mitmproxy.proxy.layers.http._events import ResponseData as ResponseBody
from mitmproxy.proxy.layers.http._http1 import Http1Server
from mitmproxy.proxy.server import ConnectionHandler, ConnectionIO
from mitmproxy.test import taddons, tflow

from addon.hooks.shortcuts import SHORTCUTS, Shortcut, reads_more
from addon.hooks.source_hash import source_hash
from tests.hooks.harness import Hooks

MADE: dict[type[MessageData], dict[str, Any]] = {
    RequestData: vars(http.Request.make("POST", "http://a.test/b", b"c").data),
    ResponseData: vars(http.Response.make(200, b"c").data),
}


class Bytes(bytes):
    pass


class Fields(Headers):
    pass


VALUES = [b"", Bytes(), "", 0, True, 0.5, None, [], object(), Headers(), Fields(), (b"", b"")]


@contextmanager
def taken() -> Iterator[None]:
    took = [shortcut for shortcut in SHORTCUTS if shortcut.take()]
    try:
        assert len(took) == len(SHORTCUTS)
        yield
    finally:
        for shortcut in took:
            shortcut.release()


def made(kind: type[MessageData], **other: Any) -> str:
    """The error for a message with these fields, if any."""
    try:
        kind(**MADE[kind] | other)
    except TypeError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("kind", MADE)
def test_a_message_takes_what_it_took(kind: type[MessageData]) -> None:
    given = [{field.name: value} for field in fields(kind) for value in VALUES]
    expected = [made(kind, **one) for one in given]
    assert "" in expected
    assert len(set(expected)) > len(fields(kind))
    with taken():
        assert [made(kind, **one) for one in given] == expected


def test_a_kind_of_message_that_is_derived_is_checked_too() -> None:
    class Derived(ResponseData):
        pass

    with taken():
        assert Derived(**MADE[ResponseData])
        with pytest.raises(TypeError, match="status_code"):
            Derived(**MADE[ResponseData] | {"status_code": "200"})


def test_a_message_as_proxies_make_them_is_not_checked_field_by_field(monkeypatch: pytest.MonkeyPatch) -> None:
    def check_option_type(*_: object) -> None:
        raise AssertionError

    with taken():
        monkeypatch.setattr("mitmproxy.utils.typecheck.check_option_type", check_option_type)
        for kind, values in MADE.items():
            assert kind(**values)


def test_hooks_have_the_arguments_that_they_had() -> None:
    events = [kind(*map(str, range(len(fields(kind))))) for kind in hooks.all_hooks.values()]  # type: ignore[arg-type]
    expected = [event.args() for event in events]
    with taken():
        assert [event.args() for event in events] == expected


def method() -> object:
    return vars(MessageData)["__post_init__"]


async def test_shortcuts_are_taken_while_one_mitmproxy_wants_them(make: Callable[..., Hooks]) -> None:
    own = method()
    one, other = make(), make()
    assert method() is not own
    await one.done()
    assert method() is not own
    other.set(fast="off")
    assert method() is own
    other.set(fast="on")
    assert method() is not own
    await other.done()
    assert method() is own


async def test_another_mitmproxy_takes_the_shortcuts_that_fit(
    make: Callable[..., Hooks], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def args(self: Hook) -> list[Any]:
        return list(vars(self).values())

    own = method()
    monkeypatch.setattr(Hook, "args", args)
    hooks = make()
    assert method() is not own
    assert vars(Hook)["args"] is args
    assert caplog.text.count("graft_fast") == 1
    assert "Hook.args" in caplog.text
    await hooks.done()
    assert method() is own
    assert vars(Hook)["args"] is args


class Owner:
    def method(self) -> int:
        return 1


def test_a_method_of_a_script_is_left_in_place() -> None:
    def its_own(self: Owner) -> int:
        return 3

    name = f"{__name__}:Owner.method"
    shortcut = Shortcut(lambda own: lambda self: own(self) + 1, source_hash(name), name)
    assert shortcut.take()
    assert Owner().method() == 2
    Owner.method = its_own  # type: ignore[method-assign]
    shortcut.release()
    assert Owner().method() == 3
    assert not shortcut.take()


class Heir(Owner):
    pass


def test_an_inherited_method_is_inherited_when_the_shortcut_is_gone() -> None:
    name = f"{__name__}:Heir.method"
    shortcut = Shortcut(lambda own: lambda self: own(self) + 1, source_hash(name), name)
    assert shortcut.take()
    assert (Heir().method(), "method" in vars(Heir)) == (Owner().method() + 1, True)
    shortcut.release()
    assert "method" not in vars(Heir)


def test_a_missing_method_has_no_shortcut() -> None:
    for name in ("mitmproxy.none:Hook.args", "mitmproxy.hooks:Hook.none", "mitmproxy.hooks:Hook.__init__"):
        assert not Shortcut(lambda own: own, "written for this", name).take()


HEADERS = Headers([(b"A", b"1"), (b"a", b"2"), (b"\xff", b"\xfe"), ("ä".encode(), "ö".encode()), (b"none", b"")])


def headers_of(headers: Headers) -> list[object]:
    names: list[Any] = ["a", "A", b"a", b"\xff", "\udcff", "ä", "Ä", "none", "nowhere", Text("a"), 1, None]
    return [result_of(headers.get_all, name) for name in names] + [result_of(headers.get, "a")]


def result_of(function: Callable[..., object], *given: object) -> object:
    try:
        return function(*given)
    except Exception as error:
        return repr(error)


class Text(str):
    pass


class Upper(Headers):
    """Whose names are compared in another way."""

    @staticmethod
    def _kconv(key: Any) -> Any:
        return key


def test_headers_are_found_as_they_were() -> None:
    odd = Headers()
    odd.fields = (("a", "1"), (b"a", 1))  # type: ignore[assignment]
    kinds = [HEADERS, Upper(HEADERS.fields), odd, Headers()]
    expected = [headers_of(headers) for headers in kinds]
    assert expected[0][:1] == [["1", "2"]]
    with taken():
        assert [headers_of(headers) for headers in kinds] == expected


def test_options_are_what_they_were() -> None:
    with taddons.context() as context:
        options = context.options
        options.add_option("given", Sequence[str], ["default"], "help")
        options.add_option("text", str | None, None, "help")
        options.add_option("number", int, 1, "help")
        options.update(number=2)

        def values() -> list[object]:
            return [(name, getattr(options, name)) for name in list(options._options)]

        expected = values()
        with taken():
            assert values() == expected
            options.given.append("changed")
            assert options.given == ["default"]
            options.update(given=["one"], text="a")
            options.given.append("two")
            assert (options.given, options.text) == (["one"], "a")


@pytest.mark.parametrize("short", [False, True])
@pytest.mark.parametrize("port", [80, 8080, None])
def test_an_app_is_served_at_its_host_and_port(short: bool, port: int | None) -> None:
    app = ASGIApp(None, "app.test", port)
    with taken() if short else nullcontext():
        for url, header in itertools.product(
            ("http://app.test/", "http://app.test:8080/", "http://other.test/", "http://app.test.other/"),
            (None, "", "app.test", "app.test:99", "[app.test]", "x.app.test", "other.test", "app.test:x", "\udcff"),
        ):
            flow = tflow.tflow(req=http.Request.make("GET", url))
            if header is not None:
                flow.request.headers["Host"] = header
            assert app.should_serve(flow) is (
                flow.request.pretty_host == "app.test" and port in (None, flow.request.port)
            )
            flow.response = http.Response.make()
            assert not app.should_serve(flow)


@pytest.mark.parametrize("short", [False, True])
def test_requests_are_mapped_to_files(short: bool, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mapped")
    mapping = MapLocal()
    with taken() if short else nullcontext(), taddons.context(mapping) as context:
        for mapped in ([], [f"|there|{tmp_path / 'file'}"]):
            context.options.update(map_local=mapped)
            flow = tflow.tflow(req=http.Request.make("GET", "http://a.test/there"))
            mapping.request(flow)
            assert (flow.response.content if flow.response else None) == (b"mapped" if mapped else None)


class Wire:
    """A connection as mitmproxy has it, and its other end."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, other: socket.socket) -> None:
        self.io = ConnectionIO(asyncio.ensure_future(asyncio.sleep(3600)), reader, writer)
        self.writer = writer
        self.other = other

    @classmethod
    async def open(cls) -> "Wire":
        one, other = socket.socketpair()
        return cls(*await asyncio.open_connection(sock=one), other)

    async def close(self) -> None:
        assert self.io.handler is not None
        self.io.handler.cancel()
        self.other.close()
        self.writer.transport.abort()
        await asyncio.wait([self.io.handler])


def drain(*connections: ConnectionIO) -> asyncio.Future[None]:
    handler = SimpleNamespace(transports=dict(enumerate(connections)), _drain_lock=asyncio.Lock())
    return asyncio.ensure_future(ConnectionHandler.drain_writers(handler))  # type: ignore[arg-type]


async def test_nobody_waits_for_writers_without_data(monkeypatch: pytest.MonkeyPatch) -> None:
    wire = await Wire.open()
    wire.writer.write(b"data")
    monkeypatch.setattr(asyncio.StreamWriter, "drain", None)
    with taken():
        await drain(wire.io, ConnectionIO())
    await wire.close()


@pytest.mark.parametrize("short", [False, True])
async def test_a_writer_with_too_much_data_is_waited_for(short: bool) -> None:
    wire, idle = await Wire.open(), await Wire.open()
    with taken() if short else nullcontext():
        wire.writer.write(bytes(5_000_000))
        waiting = drain(idle.io, wire.io)
        assert not (await asyncio.wait([waiting], timeout=0))[0]
        loop = asyncio.get_running_loop()
        wire.other.setblocking(False)
        async with asyncio.timeout(10):
            while not waiting.done():
                await loop.sock_recv(wire.other, 1_000_000)
    await wire.close()
    await idle.close()


@pytest.mark.parametrize("short", [False, True])
@pytest.mark.parametrize("closed", ["here", "there"])
async def test_the_handler_of_a_lost_connection_is_cancelled(short: bool, closed: str) -> None:
    wire = await Wire.open()
    with taken() if short else nullcontext():
        if closed == "here":
            wire.writer.transport.abort()
        else:
            wire.other.close()
            wire.writer.write(b"lost")
        handler = wire.io.handler
        assert handler is not None
        async with asyncio.timeout(10):
            while not handler.cancelling():
                await drain(wire.io)
                await asyncio.sleep(0)
    await wire.close()


class Reading(ConnectionHandler):
    """A connection from which this reader reads. `pieces`: what is handled."""

    def __init__(self, reader: StreamReader) -> None:
        self.client = Client(peername=("127.0.0.1", 1), sockname=("127.0.0.1", 2), state=ConnectionState.OPEN)
        super().__init__(Context(self.client, Options()))
        self.transports[self.client] = ConnectionIO(reader=reader, writer=AsyncMock(close=lambda: None))
        self.pieces: list[bytes] = []

    async def handle_hook(self, hook: object) -> None: ...

    async def server_event(self, event: Event) -> None:
        if isinstance(event, DataReceived):
            self.pieces.append(event.data)
        else:
            self.client.state = ConnectionState.CLOSED


async def test_what_has_arrived_is_handled_as_one_piece() -> None:
    data = bytes(300_000)
    counts = []
    for short in (False, True):
        with taken() if short else nullcontext():
            reader = StreamReader()
            reader.feed_data(data)
            reader.feed_eof()
            connection = Reading(reader)
            await connection.handle_connection(connection.client)
            assert b"".join(connection.pieces) == data
            counts.append(len(connection.pieces))
    assert counts == [5, 1]


@pytest.mark.parametrize("short", [False, True])
def test_a_body_ends_where_its_length_says(short: bool) -> None:
    with taken() if short else nullcontext():
        reader, buffer = ContentLengthReader(10), ReceiveBuffer()
        found: list[object] = []
        for piece in (b"", b"abc", b"", b"defg", b"hijGET / HTTP/1.1\r\n\r\n"):
            buffer += piece
            event = reader(buffer)
            found.append(bytes(event.data) if isinstance(event, h11.Data) else event)
            assert bool(buffer) is piece.endswith(b"\n")
        assert found == [None, b"abc", None, b"defg", b"hij"]
        assert isinstance(reader(buffer), h11.EndOfMessage)
        lines = buffer.maybe_extract_lines()
        assert lines is not None
        assert bytes(lines[0]) == b"GET / HTTP/1.1"
        cut, rest = ContentLengthReader(5), ReceiveBuffer()
        rest += b"abc"
        cut(rest)
        with pytest.raises(h11.RemoteProtocolError, match="received 3 bytes, expected 5"):
            cut.read_eof()


def sent(headers: Sequence[Headers], data: Sequence[bytes], stream_id: int = 1) -> list[bytes]:
    """What a client is sent of a body whose pieces are sent under each of these headers, and after a change of them."""
    client = Client(peername=("127.0.0.1", 1), sockname=("127.0.0.1", 2))
    server = Http1Server(Context(client, Options()))
    commands: list[Command] = []
    for one in headers:
        server.response = http.Response.make(200, b"", one)
        for piece in data:
            commands += server.send(ResponseBody(stream_id, piece))
        one["transfer-encoding"] = "chunked"
        commands += server.send(ResponseBody(stream_id, b"changed"))
    return [command.data for command in commands if isinstance(command, SendData)]


@pytest.mark.parametrize("short", [False, True])
def test_a_body_is_chunked_as_its_headers_say(short: bool) -> None:
    values = ["", "gzip, Chunked", "gzip"]
    with taken() if short else nullcontext():
        none, chunked, other = (sent([Headers(transfer_encoding=value)], [b"one", b"", b"two"]) for value in values)
        changed = b"7\r\nchanged\r\n"
        assert none == other == [b"one", b"two", changed]
        assert chunked == [b"3\r\none\r\n", b"0\r\n\r\n", b"3\r\ntwo\r\n", changed]
        both = sent([Headers(), Headers(transfer_encoding="chunked")], [b"one"])
        assert both == [b"one", changed, b"3\r\none\r\n", changed]
        with pytest.raises(AssertionError):
            sent([Headers()], [b"one"], stream_id=3)


async def test_a_reader_whose_connection_has_ended_does_not_refer_to_itself() -> None:
    reader = StreamReader()
    reader.feed_data(b"x" * 100_000)
    sizes: list[int] = []

    async def handle(self: Any, connection: str) -> None:
        sizes.append(len(await self.transports[connection].reader.read(65_535)))
        raise ConnectionError

    handler = SimpleNamespace(transports={"client": SimpleNamespace(reader=reader)})
    with pytest.raises(ConnectionError):
        await reads_more(handle)(handler, "client")
    assert sizes == [100_000]
    assert "read" not in vars(reader)
