"""mitmproxy itself in the test's event loop, with its own addons and the addon: real connections, no process.

Like `harness`, it uses interfaces that mitmproxy does not promise to keep.
"""

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Self

import httpx2
from mitmproxy import addons, hooks, options
from mitmproxy.addons.proxyserver import Proxyserver
from mitmproxy.addons.script import ScriptLoader
from mitmproxy.master import Master

from addon.hooks.compose import Toolgraft, build_addons
from addon.hooks.lifecycle import Lifecycle
from addon.hooks.runtime import Runtime
from store.models import Toolset
from tests.loop.conftest import until
from tests.ports import free_port

Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Any]


class Proxied:
    """A reverse proxy to `upstream`, a regular proxy, and one in upstream mode with `upstream` as the next proxy.
    `early`, `late`: addons before and after this one."""

    def __init__(
        self,
        folder: Path,
        upstream: str,
        *,
        early: Sequence[object] = (),
        late: Sequence[object] = (),
        mitm: dict[str, Any] | None = None,
        **graft: Any,
    ) -> None:
        self._options = options.Options()
        self.master = Master(self._options, with_termlog=False)
        self.master.addons.add(*addons.default_addons())
        (self.addon,) = build_addons()
        assert isinstance(self.addon, Toolgraft)
        loader = self._addon(ScriptLoader)
        for one in (*early, self.addon, *late):
            loader.addons.append(self.master.addons.register(one))
        given: dict[str, Any] = {"store": "memory://", "control": "off", "state": str(folder / "state")} | graft
        self._options.update(
            confdir=str(folder / "conf"),
            mode=[
                f"{kind}@127.0.0.1:{free_port()}" for kind in (f"reverse:{upstream}", "regular", f"upstream:{upstream}")
            ],
            connection_strategy="lazy",
            **{f"graft_{name}": value for name, value in given.items()},
            **(mitm or {}),
        )

    def _addon[T](self, kind: type[T]) -> T:
        return next(one for one in self.master.addons.chain if isinstance(one, kind))

    async def __aenter__(self) -> Self:
        await self._addon(Proxyserver).setup_servers()
        await self.master.addons.trigger_event(hooks.RunningHook())
        return self

    async def __aexit__(self, *error: object) -> None:
        server = self._addon(Proxyserver)
        await server.servers.update([])
        for handler in list(server.connections.values()):
            for transport in list(handler.transports.values()):
                if transport.handler is not None:
                    transport.handler.cancel()
        await until(lambda: not server.connections)
        await self.master.addons.trigger_event(hooks.DoneHook())

    @property
    def runtime(self) -> Runtime:
        assert isinstance(self.addon, Toolgraft)
        lifecycle = next(part for part in self.addon.parts if isinstance(part, Lifecycle))
        assert lifecycle.runtime is not None
        return lifecycle.runtime

    def _url(self, mode: str) -> str:
        servers = self._addon(Proxyserver).servers
        found = next(one for one in servers if one.mode.full_spec.startswith(mode))
        return f"http://127.0.0.1:{found.listen_addrs[0][1]}"

    @property
    def reverse(self) -> str:
        return self._url("reverse")

    @property
    def regular(self) -> str:
        return self._url("regular")

    @property
    def chained(self) -> str:
        return self._url("upstream")

    async def tools(self, *names: str, session: str = "default", **fields: Any) -> None:
        declarations = [{"name": name, "description": "A tool."} | fields for name in names]
        await self.runtime.store.put_toolset(session, Toolset(declarations=declarations))

    @asynccontextmanager
    async def client(self, **more: Any) -> AsyncIterator[httpx2.AsyncClient]:
        async with httpx2.AsyncClient(verify=False, trust_env=False, timeout=60, **more) as client:
            yield client


@asynccontextmanager
async def serving(handler: Handler, tls: ssl.SSLContext | None = None) -> AsyncIterator[str]:
    """A server of raw bytes. Yields its URL. A connection is closed when its handler ends."""
    server = await asyncio.start_server(closing(handler), "127.0.0.1", 0, ssl=tls)
    try:
        yield f"http{'s' if tls else ''}://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        server.abort_clients()
        await server.wait_closed()


def closing(handler: Handler) -> Handler:
    """The handler; if it fails because the other side is gone, the connection is closed."""

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
                await handler(reader, writer)
        finally:
            writer.close()

    return handle


async def requests(reader: asyncio.StreamReader) -> AsyncIterator[tuple[bytes, bytes]]:
    """The head and the body of each request on a connection."""
    while (message := await read_message(reader))[0]:
        yield message


def chunk(data: bytes) -> bytes:
    """A piece of a chunked body; the last one is empty."""
    return b"%x\r\n%b\r\n" % (len(data), data)


async def read_message(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    """The head and the body of a request; empty if the other side has closed."""
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError:
        return b"", b""
    lines = head.lower().split(b"\r\n")
    length = next((int(line[15:]) for line in lines if line.startswith(b"content-length:")), 0)
    return head, await reader.readexactly(length)


def answer(body: bytes, kind: str = "application/json", *more: str) -> bytes:
    head = ["HTTP/1.1 200 OK", f"content-type: {kind}", f"content-length: {len(body)}", *more, "", ""]
    return "\r\n".join(head).encode() + body
