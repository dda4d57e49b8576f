"""Faster versions of methods of mitmproxy, for their usual arguments. Other arguments go to mitmproxy's own method.

The methods belong to classes, so they are replaced for every mitmproxy in the process while one of them wants it. A
method is kept if its source, or that of what it calls, is not the one that the replacement was written for."""

import asyncio
from asyncio import StreamReader, StreamWriter
from collections.abc import Awaitable, Callable, Generator, Iterable, Iterator
from dataclasses import fields
from functools import lru_cache
from http import HTTPStatus
from operator import attrgetter, contains
from pkgutil import resolve_name
from typing import Any, NamedTuple, get_args

import h11
from h11._readers import ContentLengthReader
from h11._receivebuffer import ReceiveBuffer
from mitmproxy.connection import Connection
from mitmproxy.hooks import Hook
from mitmproxy.http import Headers, HTTPFlow, MessageData, RequestData, ResponseData
from mitmproxy.proxy import commands
from mitmproxy.proxy.layers.http import HttpStream
from mitmproxy.proxy.layers.http._base import HttpEvent
from mitmproxy.proxy.layers.http._events import ResponseData as ResponseBody
from mitmproxy.proxy.layers.http._http1 import Http1Server
from mitmproxy.proxy.server import ConnectionHandler, ConnectionIO

from addon.hooks.source_hash import source_hash

Method = Callable[..., Any]


class Shortcut:
    """A method and its replacement, which `shorter` makes from it. `method` is named as `module:Class.name`; `called`:
    the functions that it calls."""

    def __init__(self, shorter: Callable[[Method], Method], written_for: str, method: str, *called: str) -> None:
        self.name = method
        self._shorter = shorter
        self._written_for = written_for
        self._called = called
        self._users = 0
        self._original: Method | None = None
        self._replacement: Method | None = None
        self._is_inherited = False

    def take(self) -> bool:
        """Replace the method. Returns False if it is kept."""
        if not self.fits():
            return False
        self.replace()
        return True

    def fits(self) -> bool:
        return self._users > 0 or source_hash(self.name, *self._called) == self._written_for

    def replace(self) -> None:
        if not self._users:
            owner, _, name = self.name.rpartition(".")
            self._original = resolve_name(self.name)
            self._is_inherited = name not in vars(resolve_name(owner))
            self._replacement = self._shorter(self._original)
            setattr(resolve_name(owner), name, self._replacement)
        self._users += 1

    def release(self) -> None:
        self._users -= 1
        owner, _, name = self.name.rpartition(".")
        if self._users or resolve_name(self.name) is not self._replacement:  # a script may have replaced it
            return
        if self._is_inherited:
            delattr(resolve_name(owner), name)
        else:
            setattr(resolve_name(owner), name, self._original)


def take_all(shortcuts: Iterable[Shortcut]) -> list[Shortcut]:
    """Take those that fit. All are compared first: what one replaces may be called by what another replaces."""
    fitting = [shortcut for shortcut in shortcuts if shortcut.fits()]
    for shortcut in fitting:
        shortcut.replace()
    return fitting


class _Fields(NamedTuple):
    """The fields of a kind of message: a getter of their values, and the allowed types of each."""

    values: Callable[[MessageData], tuple[Any, ...]]
    types: tuple[frozenset[Any], ...]

    @classmethod
    def of(cls, kind: type[MessageData]) -> "_Fields":
        types = [frozenset(get_args(field.type) or [field.type]) for field in fields(kind)]
        return cls(attrgetter(*(field.name for field in fields(kind))), tuple(types))


def checks_messages(check_each: Method) -> Method:
    """Checks a message's fields one by one only if a type is not exactly an allowed one."""
    known: dict[type[MessageData], _Fields] = {kind: _Fields.of(kind) for kind in (RequestData, ResponseData)}

    def check(self: MessageData) -> None:
        found = known.get(type(self))
        if found is None or not all(map(contains, found.types, map(type, found.values(self)))):
            check_each(self)

    return check


def gives_arguments(_: Method) -> Method:
    """Looks up the names of a hook's fields once for each kind of hook."""

    @lru_cache(maxsize=256)
    def names(kind: type[Hook]) -> tuple[str, ...]:
        return tuple(field.name for field in fields(kind))  # type: ignore[arg-type]

    def args(self: Hook) -> list[Any]:
        return [getattr(self, name) for name in names(type(self))]  # type: ignore[arg-type]

    return args


def finds_headers(get_any: Method) -> Method:
    """Compares names without three function calls for each."""

    def get_all(self: Headers, name: str | bytes) -> Any:
        if type(self) is not Headers or type(name) is not str:
            return get_any(self, name)
        wanted = name.encode("utf-8", "surrogateescape").lower()
        return [value.decode("utf-8", "surrogateescape") for key, value in self.fields if key.lower() == wanted]

    return get_all


def drains_writers(drain_each: Method) -> Method:
    """Does not wait for writers that have nothing to write."""

    async def drain_writers(self: ConnectionHandler) -> None:
        for io in self.transports.values():
            if not _is_drained(io):
                await drain_each(self)
                return

    return drain_writers


def _is_drained(io: ConnectionIO) -> bool:
    """Whether `drain` would return at once."""
    reader, writer = io.reader, io.writer
    if writer is None:
        return True
    if type(writer) is not StreamWriter or type(reader) is not StreamReader or reader.exception() is not None:
        return False
    transport = writer.transport
    return not transport.get_write_buffer_size() and not transport.is_closing()


def sends_data(send_any: Method) -> Method:
    """Looks at a response's headers only once to know whether its body is chunked."""

    def send(self: Http1Server, event: HttpEvent) -> Generator[commands.Command, Any]:
        response = self.response
        if type(event) is not ResponseBody or response is None or event.stream_id != self.stream_id:
            yield from send_any(self, event)
            return
        if data := framed(self, event.data):
            yield commands.SendData(self.conn, data)

    return send


def framed(server: Http1Server, data: bytes) -> bytes:
    """Part of a body as its response's headers say that it is sent."""
    assert server.response is not None
    headers = server.response.headers
    known, is_chunked = vars(server).get(_CHUNKED, (None, False))
    if known is not headers.fields:
        is_chunked = "chunked" in headers.get("transfer-encoding", "").lower()
        vars(server)[_CHUNKED] = headers.fields, is_chunked
    return b"%x\r\n%b\r\n" % (len(data), data) if is_chunked else data


_CHUNKED = "_toolgraft_chunked"
"""The attribute of a connection that holds the headers last sent, and whether they say that the body is chunked."""


def reads_more(handle: Method) -> Method:
    """Reads all that has arrived, up to 1 MB: mitmproxy takes 64 KB at a time, and each piece costs about the same."""

    async def handle_connection(self: ConnectionHandler, connection: Connection) -> None:
        reader = self.transports[connection].reader
        if type(reader) is StreamReader:

            def read(n: int = -1) -> Awaitable[bytes]:
                return StreamReader.read(reader, max(n, _READ_AT_ONCE) if n > 0 else n)

            vars(reader)["read"] = read
        try:
            await handle(self, connection)
        finally:
            vars(reader).pop("read", None)  # it refers to the reader

    return handle_connection


_READ_AT_ONCE = 1024 * 1024


def takes_bodies(read: Method) -> Method:
    """Copies what has arrived of a body once, not three times."""

    def take(self: ContentLengthReader, buffer: ReceiveBuffer) -> Any:
        size = len(buffer)
        if not 0 < size <= self._remaining:
            return read(self, buffer)
        self._remaining -= size
        data = bytes(buffer)
        ReceiveBuffer.__init__(buffer)
        return h11.Data(data)

    return take


def gives_options(copied: Method) -> Method:
    """Does not copy immutable values."""
    immutable = frozenset({str, int, bool, type(None)})
    unset = resolve_name("mitmproxy.optmanager:unset")

    def current(self: Any) -> Any:
        value = self._default if self.value is unset else self.value
        return value if type(value) in immutable else copied(self)

    return current


def frees_streams(flow_done: Method) -> Method:
    """Takes a finished stream apart. It and its states refer to each other, so with them the flow and its bodies would
    stay until the garbage collector runs. Whoever else holds the flow keeps it."""

    def done(self: HttpStream) -> Iterator[Any]:
        yield from flow_done(self)
        if self.flow.response is not None and self.flow.response.status_code != HTTPStatus.SWITCHING_PROTOCOLS:
            # when all that called this has returned: the stream is dropped, so nothing calls it again
            asyncio.get_running_loop().call_soon(_take_apart, self)

    return done


def serves_apps(should_serve: Method) -> Method:
    """Takes the header with the host apart only if it may name the app's: one app is mitmproxy's own, at any port."""

    def serves(self: Any, flow: HTTPFlow) -> bool:
        request = flow.request
        if self.port not in (None, request.port):
            return False
        return self.host in (request.host_header or request.host) and should_serve(self, flow)

    return serves


def maps_to_files(request_any: Method) -> Method:
    """Does not read the URL if nothing is mapped."""

    def request(self: Any, flow: HTTPFlow) -> None:
        if self.replacements:
            request_any(self, flow)

    return request


def _take_apart(stream: HttpStream) -> None:
    stream.context.layers.remove(stream)
    del stream.flow, stream.client_state, stream.server_state


_HTTP = "mitmproxy.http:"
_LAYERS = "mitmproxy.proxy.layers.http:"

SHORTCUTS = (
    Shortcut(
        checks_messages,
        "1c1e5e4297f5bb5a",
        _HTTP + "MessageData.__post_init__",
        "mitmproxy.utils.typecheck:check_option_type",
    ),
    Shortcut(gives_arguments, "5bab95f7aa358e18", "mitmproxy.hooks:Hook.args"),
    Shortcut(
        finds_headers,
        "8f944f840b2535de",
        _HTTP + "Headers.get_all",
        "mitmproxy.coretypes.multidict:MultiDict.get_all",
        *(_HTTP + name for name in ("Headers._kconv", "_native", "_always_bytes")),
        "mitmproxy.utils.strutils:always_bytes",
    ),
    Shortcut(
        serves_apps,
        "e1d6a63811bbd129",
        "mitmproxy.addons.asgiapp:ASGIApp.should_serve",
        _HTTP + "Request.pretty_host.fget",
        "mitmproxy.net.http.url:parse_authority",
    ),
    Shortcut(maps_to_files, "4c6bf038aa472f3e", "mitmproxy.addons.maplocal:MapLocal.request"),
    Shortcut(reads_more, "95c3f93e9824e527", "mitmproxy.proxy.server:ConnectionHandler.handle_connection"),
    Shortcut(
        takes_bodies,
        "6ed35d7b6375ee10",
        "h11._readers:ContentLengthReader.__call__",
        "h11._readers:ContentLengthReader.__init__",
        *(f"h11._receivebuffer:ReceiveBuffer.{name}" for name in ("__init__", "__len__", "__bytes__", "_extract")),
    ),
    Shortcut(drains_writers, "6b57434604561e3e", "mitmproxy.proxy.server:ConnectionHandler.drain_writers"),
    Shortcut(sends_data, "cc218a1337c0f5cf", "mitmproxy.proxy.layers.http._http1:Http1Server.send"),
    Shortcut(
        gives_options,
        "1553daf3b118b3b3",
        "mitmproxy.optmanager:_Option.current",
        "mitmproxy.optmanager:_Option.default.fget",
    ),
    Shortcut(
        frees_streams,
        "842a264a9b50f903",
        _LAYERS + "HttpStream.flow_done",
        *(_LAYERS + name for name in ("HttpStream.__init__", "HttpLayer.event_to_child", "HttpLayer._handle_event")),
        "mitmproxy.proxy.layer:Layer.handle_event",
    ),
)
