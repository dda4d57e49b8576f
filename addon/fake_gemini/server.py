"""Runs the strict local Gemini on loopback: in a test's event loop, or as ``python -m addon.fake_gemini.server``."""

import argparse
import asyncio
import contextlib
import socket
from collections.abc import Iterator
from types import TracebackType
from typing import Any, Self

import uvicorn

from addon.fake_gemini.app import App, Log
from addon.fake_gemini.reply import Shape
from addon.fake_gemini.rules import Options
from addon.fake_gemini.service import Service


def listen(port: int = 0) -> socket.socket:
    """A listening loopback socket; port 0: any free port. Raises OSError if the port is in use."""
    # without the protocol, asyncio leaves Nagle's algorithm on, which costs 40 ms per answer
    sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        sock.bind(("127.0.0.1", port))
    except OSError:
        sock.close()
        raise
    sock.listen(512)
    sock.setblocking(False)
    return sock


class _Server(uvicorn.Server):
    """uvicorn inside another program: reports when it listens, stops immediately, and does not handle signals."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.ready = asyncio.Event()
        self.stop = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.ready.set()

    async def main_loop(self) -> None:
        await self.stop.wait()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for server in self.servers:
            server.close()
            server.abort_clients()
        tasks = list(self.server_state.tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for server in self.servers:
            await server.wait_closed()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def _config(app: App) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        log_config=None,
        log_level=60,  # streams cut on purpose would be logged as errors
        access_log=False,
        lifespan="off",
        http="h11",
        ws="wsproto",
        date_header=False,
        server_header=False,
        timeout_keep_alive=120,
        timeout_graceful_shutdown=1,
    )


class StrictGemini:
    """``async with StrictGemini() as gemini:`` then ``gemini.url``; ``gemini.requests`` are the received requests.

    ``port=0``: any free port. ``reply`` and ``rules`` describe ``shape`` and ``options``.
    """

    def __init__(self, *, port: int = 0, shape: Shape | None = None, options: Options | None = None) -> None:
        self.service = Service(options or Options())
        self.log = Log()
        self.app = App(self.service, shape or Shape(), self.log)
        self._requested_port = port

    async def __aenter__(self) -> Self:
        self._socket = listen(self._requested_port)
        self.port: int = self._socket.getsockname()[1]
        self._server = _Server(_config(self.app))
        self._task = asyncio.get_running_loop().create_task(self._server.serve([self._socket]))
        await self._server.ready.wait()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.stop.set()
        await self._task
        self._socket.close()

    @property
    def url(self) -> str:
        """The base URL, without a final slash."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def requests(self) -> list[dict[str, Any]]:
        """The received requests, oldest first: ``{method, path, headers, body, status, error}``."""
        return self.log.requests

    @property
    def refused(self) -> list[dict[str, Any]]:
        """The refused requests; ``error`` says why."""
        return [request for request in self.log.requests if request["status"] >= 400]

    @property
    def dummy_signatures(self) -> int:
        """The number of dummy signatures in accepted requests."""
        return self.service.dummy_signatures


def run(port: int, shape: str = "", *, check_signatures: bool = True, check_declared: bool = True) -> None:
    """Serve on 127.0.0.1 until interrupted; port 0 takes a free one. Raises ValueError for an unknown shape, and
    OSError if the port cannot be used."""
    cut = Shape().changed(shape)
    sock = listen(port)
    print(f"listening on http://127.0.0.1:{sock.getsockname()[1]}", flush=True)
    with contextlib.suppress(KeyboardInterrupt):
        service = Service(Options(check_signatures=check_signatures, check_declared=check_declared))
        uvicorn.Server(_config(App(service, cut, Log()))).run([sock])


def main(argv: list[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m addon.fake_gemini.server", description=__doc__)
    parser.add_argument("--port", type=int, default=9912, help="0: any free port (default 9912)")
    parser.add_argument("--shape", default="", help='how streams are cut, e.g. "each,usage,pieces=5,delay=0.01"')
    parser.add_argument("--any-signature", action="store_true", help="do not check thoughtSignatures")
    parser.add_argument("--any-call", action="store_true", help="accept calls of undeclared functions in the history")
    given = parser.parse_args(argv)
    try:
        run(
            given.port,
            given.shape,
            check_signatures=not given.any_signature,
            check_declared=not given.any_call,
        )
    except ValueError as e:
        parser.error(str(e))
    except OSError as e:
        parser.exit(1, f"cannot listen on 127.0.0.1:{given.port}: {e.strerror}\n")


if __name__ == "__main__":
    main()
