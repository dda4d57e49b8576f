"""The front doors in process: the control API's application, a real store and the strict Gemini behind them."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from addon.control.app import ControlApp, create_app
from addon.core.framing.documents import Document
from addon.fake_gemini.server import StrictGemini
from addon.gateway.downloads import Download
from addon.gateway.engine import Caller
from addon.gateway.mount import gateway_routes
from addon.loop.upstream import Outgoing, Upstream
from store.backends.memory import MemoryStore
from store.base import Store
from tests.loop.conftest import Proxy, Scripted, Watcher, until

__all__ = ["House", "Scripted", "until"]

MODEL = "gemini-3-flash"
URL = "http://127.0.0.1:8741"
KEY = "a-key-of-the-proxy-s"


class Outside:
    """Records each turn: its caller in `callers`, its first request in `sent`, its upstream requests in `requests`."""

    def __init__(self, proxy: Proxy) -> None:
        self.proxy = proxy
        self.watcher = Watcher()
        self.callers: list[Caller] = []
        self.sent: list[bytes] = []

    def upstream(self, caller: Caller, sent: bytes, *, streams: bool) -> Upstream:
        self.callers.append(caller)
        self.sent.append(sent)
        return Upstream(lambda _: self.proxy.transport, self.watcher)

    @property
    def requests(self) -> list[Outgoing]:
        return [one.outgoing for one in self.watcher.exchanges if isinstance(one.outgoing, Outgoing)]


class House:
    """A proxy with its doors."""

    def __init__(
        self,
        store: Store | None = None,
        *,
        environ: dict[str, str] | None = None,
        download: Download | None = None,
        **options: Any,
    ):
        self.download = download
        self.environ = {"GEMINI_API_KEY": KEY} if environ is None else environ
        self.options = options
        self.store: Store = store or MemoryStore()
        self._build()

    def _build(self) -> None:
        self.proxy = Proxy(store=self.store, **self.options)
        self.outside = Outside(self.proxy)
        extra_routes = gateway_routes(
            store=self.store,
            grafter=lambda: self.proxy.grafter,
            executors=self.proxy.executors,
            upstreams=self.outside,
            environ=self.environ,
            download=self.download,
        )
        self.app: ControlApp = create_app(
            store=self.store,
            settings=self.proxy.settings,
            token=None,
            metrics=self.proxy.grafter.metrics,
            version="1",
            extra_routes=extra_routes,
        )
        self.http = httpx2.AsyncClient(transport=httpx2.ASGITransport(self.app), base_url=URL)

    def upstream(self, *rounds: Any) -> Scripted:
        return self.proxy.upstream(Scripted(*rounds))

    async def open(self) -> None:
        await self.proxy.open()

    async def close(self) -> None:
        await self.http.aclose()
        await self.proxy.close()

    async def restart(self) -> None:
        """End the process, and start another with the same store."""
        await self.close()
        self._build()
        await self.open()

    async def post(self, path: str, document: Any, **headers: str) -> httpx2.Response:
        given = {name.replace("_", "-"): value for name, value in headers.items()}
        async with asyncio.timeout(10):
            return await self.http.post(path, json=document, headers=given)

    async def ask(self, path: str, document: Any, status: int = 200, **headers: str) -> Document:
        answer = await self.post(path, document, **headers)
        assert answer.status_code == status, answer.text
        found: Document = answer.json()
        return found

    async def gemini(self, given: Any, status: int = 200, **more: Any) -> Document:
        return await self.ask("/v1/gemini", {"model": MODEL, "input": given, **more}, status)

    async def gemini_stream(self, given: Any, **more: Any) -> list[Document]:
        answer = await self.post("/v1/gemini", {"model": MODEL, "input": given, "stream": True, **more})
        assert answer.headers["content-type"].startswith("text/event-stream"), answer.text
        events = answer.text.split("\r\n\r\n")
        assert events.pop() == ""
        assert all(event.startswith("data: ") and "\n" not in event for event in events)
        return [json.loads(event.removeprefix("data: ")) for event in events]

    async def respond(self, given: Any, status: int = 200, **more: Any) -> Document:
        return await self.ask("/v1/responses", {"model": MODEL, "input": given, **more}, status)

    async def respond_stream(self, given: Any, **more: Any) -> list[Document]:
        answer = await self.post("/v1/responses", {"model": MODEL, "input": given, "stream": True, **more})
        assert answer.headers["content-type"].startswith("text/event-stream"), answer.text
        blocks = answer.text.split("\n\n")
        assert blocks.pop() == ""
        events = []
        for block in blocks:
            if block.startswith(":"):
                continue
            name, data = block.split("\n")
            events.append(json.loads(data.removeprefix("data: ")))
            assert name == f"event: {events[-1]['type']}"
        assert [event["sequence_number"] for event in events] == list(range(len(events)))
        return events


@pytest.fixture
async def house(tmp_path: Path) -> AsyncIterator[House]:
    house = House(state=tmp_path)
    await house.open()
    yield house
    await house.close()


@pytest.fixture
async def gemini() -> AsyncIterator[StrictGemini]:
    async with StrictGemini() as gemini:
        yield gemini


@pytest.fixture
async def home(tmp_path: Path, gemini: StrictGemini) -> AsyncIterator[House]:
    """A house with the strict Gemini as its upstream."""
    house = House(state=tmp_path, upstream=gemini.url)
    await house.open()
    yield house
    await house.close()  # before the server, which would wait for its connections
