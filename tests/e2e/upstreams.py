"""Replacements of Gemini: the strict server, in a thread, and a server that sends the bytes of a test."""

import asyncio
import contextlib
import socket
import socketserver
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Self

from addon.fake_gemini.app import Log
from addon.fake_gemini.reply import Shape
from addon.fake_gemini.rules import Options
from addon.fake_gemini.server import StrictGemini

Json = dict[str, Any]


class Gemini:
    """The strict server. `requests`: since the last `forget`."""

    def __init__(self, shape: Shape | None = None, options: Options | None = None) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._server = StrictGemini(shape=shape, options=options)
        self._dummies = 0

    def __enter__(self) -> Self:
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._server.__aenter__(), self._loop).result(10)
        return self

    def __exit__(self, *error: object) -> None:
        asyncio.run_coroutine_threadsafe(self._server.__aexit__(None, None, None), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    @property
    def url(self) -> str:
        return self._server.url

    def watch(self, tell: Callable[[], None]) -> None:
        """Call `tell` after each request, in the server's thread, until `forget`."""
        log = self._server.log

        def added(entry: Json, size: int) -> None:
            Log.add(log, entry, size)
            tell()

        log.add = added  # type: ignore[method-assign]

    def forget(self) -> None:
        self._server.log.clear()
        vars(self._server.log).pop("add", None)
        self._dummies = self._server.dummy_signatures

    @property
    def requests(self) -> list[Json]:
        return self._server.requests

    @property
    def last(self) -> Json:
        return self.requests[-1]

    @property
    def errors(self) -> list[str]:
        """The refused requests, with the reasons."""
        return [request["error"] for request in self.requests if request["status"] >= 400]

    @property
    def dummy_signatures(self) -> int:
        return self._server.dummy_signatures - self._dummies


Script = Iterable[bytes | threading.Event]
"""The pieces that are sent; an Event holds the rest back until it is set."""


class ThreadedServer:
    """Serves in a thread during its block."""

    def __init__(self, server: socketserver.TCPServer) -> None:
        self._server = server
        self._thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(10)

    @property
    def address(self) -> str:
        return "{}:{}".format(*self._server.server_address[:2])


class _Connections(ThreadedServer):
    """A server whose `_serve` has a thread for each connection."""

    def __init__(self) -> None:
        owner = self

        class Handler(socketserver.BaseRequestHandler):
            def handle(self) -> None:
                owner._serve(self.request)

        class Server(socketserver.ThreadingTCPServer):
            allow_reuse_address = True
            daemon_threads = True

        super().__init__(Server(("127.0.0.1", 0), Handler))

    @property
    def url(self) -> str:
        return f"http://{self.address}"

    def _serve(self, connection: socket.socket) -> None:
        raise NotImplementedError


class Canned(_Connections):
    """A server of raw bytes. `first`: the scripts of the next answers, one each; `says`: the script of all answers
    after them; `heard`: the requests, byte for byte. Each connection serves one request."""

    def __init__(self) -> None:
        self.heard: list[bytes] = []
        self.heard_at: list[float] = []
        """The time of each request, by `time.monotonic`."""
        self.says: Script = ()
        self.first: list[Script] = []
        self.broken = threading.Event()
        """Set when the proxy has hung up while an answer was held back."""
        super().__init__()

    def forget(self) -> None:
        self.heard.clear()
        self.heard_at.clear()
        self.says = ()
        self.first.clear()
        self.broken.clear()

    def _serve(self, connection: socket.socket) -> None:
        connection.settimeout(30)
        request = read_message(connection)
        if not request:
            return
        self.heard.append(request)
        self.heard_at.append(time.monotonic())
        self._play(connection, self.first.pop(0) if self.first else self.says)

    def _play(self, connection: socket.socket, script: Script) -> None:
        for piece in script:
            if isinstance(piece, bytes):
                connection.sendall(piece)
            else:
                self._hold(connection, piece)

    def _hold(self, connection: socket.socket, event: threading.Event) -> None:
        for _ in range(600):
            if event.wait(0.05):
                return
            connection.settimeout(0.001)
            try:
                if connection.recv(1, socket.MSG_PEEK) == b"":
                    self.broken.set()
                    return
            except TimeoutError:
                continue
            finally:
                connection.settimeout(30)


class Flaky(Canned):
    """In front of a good server: each of the next requests gets its entry of `first`, unless that is None; all others
    are passed on. Streams are passed on whole."""

    def __init__(self, target: str) -> None:
        super().__init__()
        host, _, port = target.removeprefix("http://").partition(":")
        self._target = host, int(port)
        self.first: list[Script | None] = []  # type: ignore[assignment]

    def _serve(self, connection: socket.socket) -> None:
        connection.settimeout(30)
        request = read_message(connection)
        if not request:
            return
        self.heard.append(request)
        self.heard_at.append(time.monotonic())
        script = self.first.pop(0) if self.first else None
        if script is not None:
            self._play(connection, script)
            return
        head, _, body = request.partition(b"\r\n\r\n")
        lines = [line for line in head.split(b"\r\n") if not line.lower().startswith(b"connection:")]
        with socket.create_connection(self._target, 30) as server:
            server.sendall(b"\r\n".join([*lines, b"Connection: close", b"", b""]) + body)
            while data := server.recv(65536):
                connection.sendall(data)


class Relay(_Connections):
    """Passes connections on, until they are cut."""

    def __init__(self, target: str) -> None:
        host, _, port = target.removeprefix("http://").partition(":")
        self._address = host, int(port)
        self._open: list[socket.socket] = []
        self.connections = 0
        super().__init__()

    def __exit__(self, *error: object) -> None:
        self.cut()
        super().__exit__(*error)

    def _serve(self, connection: socket.socket) -> None:
        self.connections += 1
        with socket.create_connection(self._address, 30) as server:
            server.settimeout(None)
            self._open += [connection, server]
            back = threading.Thread(target=_pass_on, args=(server, connection), daemon=True)
            back.start()
            _pass_on(connection, server)
            back.join(30)

    def cut(self) -> None:
        """Cut both sides of every open connection."""
        while self._open:
            with contextlib.suppress(OSError):
                self._open.pop().shutdown(socket.SHUT_RDWR)


def _pass_on(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(65536):
            target.sendall(data)
    with contextlib.suppress(OSError):
        target.shutdown(socket.SHUT_WR)


def read_message(connection: socket.socket) -> bytes:
    """One HTTP/1.1 message with a Content-Length (or without a body); b"" if the other side has closed."""
    data = b""
    while b"\r\n\r\n" not in data:
        piece = connection.recv(65536)
        if not piece:
            return data
        data += piece
    head, _, body = data.partition(b"\r\n\r\n")
    length = next((int(line[15:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")), 0)
    while len(body) < length:
        piece = connection.recv(65536)
        if not piece:
            break
        body += piece
    return head + b"\r\n\r\n" + body


def answer(body: bytes, status: str = "200 OK", kind: str = "application/json; charset=UTF-8", *more: str) -> bytes:
    """A whole HTTP/1.1 answer."""
    head = [f"HTTP/1.1 {status}", f"Content-Type: {kind}", f"Content-Length: {len(body)}", *more]
    return "\r\n".join([*head, "", ""]).encode() + body


def chunked(pieces: Iterable[bytes], kind: str = "text/event-stream", *more: str) -> Iterator[bytes]:
    """A chunked answer without its end, which is `END`."""
    yield "\r\n".join(
        ["HTTP/1.1 200 OK", f"Content-Type: {kind}", "Transfer-Encoding: chunked", *more, "", ""]
    ).encode()
    for piece in pieces:
        yield chunk(piece)


def chunk(piece: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(piece), piece)


END = b"0\r\n\r\n"
