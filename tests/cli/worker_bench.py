"""A worker's client with a control API in process."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2

from addon.cli.worker_client import Worker
from addon.control.app import create_app
from addon.monitoring.metrics import Metrics
from addon.settings import Settings
from store.base import Store
from store.models import Call, Step, Turn

TOOLS = "/v1/sessions/default/tools"
LEASE = 1.0  # the shortest allowed


@dataclass
class Rules:
    timeout: float | None = None
    retries: int | None = None
    after: tuple[str, ...] = ()
    idempotent: bool = False
    redeliver: bool = False
    cache_ttl: float | None = None
    approval: bool = False
    behavior: str | None = None
    scheduling: str | None = None


@dataclass
class Tool:
    declaration: dict[str, Any]
    rules: Rules


class Functions:
    """A source of async functions that take their arguments as a dict."""

    def __init__(self, **functions: Callable[[dict[str, Any]], Awaitable[Any]]) -> None:
        self.functions = functions
        self.rules: dict[str, Rules] = {}

    async def list_tools(self) -> Sequence[Tool]:
        return [Tool({"name": name}, self.rules.get(name, Rules())) for name in self.functions]

    async def call(self, name: str, args: Mapping[str, Any], *, call_id: str) -> Any:
        return await self.functions[name](dict(args))


class Line(httpx2.AsyncBaseTransport):
    """A connection to the proxy that can be cut."""

    def __init__(self, app: Any) -> None:
        self._proxy = httpx2.ASGITransport(app)
        self.is_cut = False
        self.cut_path: str | None = None
        """Requests for paths with this ending do not arrive."""
        self.lost = 0
        """The number of further answers to claims that will be lost."""

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        path = request.url.path
        if self.is_cut or (self.cut_path is not None and path.endswith(self.cut_path)):
            raise httpx2.ConnectError("refused")
        answer = await self._proxy.handle_async_request(request)
        if self.lost and path.endswith("/claim") and answer.status_code == 200:
            self.lost -= 1
            raise httpx2.ReadError("broken")
        return answer


class Bench:
    """A proxy with its store, for workers. Nothing waits for a thread, so time can leap."""

    def __init__(self, store: Store, state: Path) -> None:
        self.store = store
        settings = Settings(state=state, max_body=4096, durability="process")
        self.shared: list[dict[str, Any]] = []  # the proxy's own tools
        app = create_app(
            store=store, settings=settings, token="t", metrics=Metrics(), version="1", shared=lambda: self.shared
        )
        self.line = Line(app)
        self.client = self.client_of("t")

    def client_of(self, token: str) -> httpx2.AsyncClient:
        return httpx2.AsyncClient(
            transport=self.line, base_url="http://127.0.0.1:8741", headers={"Authorization": f"Bearer {token}"}
        )

    async def capture(self, call_id: str, name: str = "f", **args: Any) -> None:
        call = Call(
            call_id=call_id,
            session="default",
            name=name,
            args=args,
            owner="workers",
            released=True,
            turn_id=call_id,
            created_at=1e9,
            updated_at=1e9,
        )
        content = {"role": "model", "parts": [{"functionCall": {"name": name, "args": args}}]}
        turn = Turn(turn_id=call_id, session="default", visible=[], steps=[Step(content=content)], created_at=1e9)
        await self.store.save_turn(turn, [call])

    async def final(self, call_id: str) -> Call:
        """The call, as soon as it is answered."""
        async with asyncio.timeout(10):
            call = await self.store.call("default", call_id)
            while not call.status.final:
                call = await self.store.wait_call(call, 10) or call
            return call

    async def tools(self) -> list[Any]:
        tools: list[Any] = (await self.client.get(TOOLS)).json()["tools"]
        return tools


class Served:
    """A running worker and its events."""

    def __init__(self, worker: Worker, events: asyncio.Queue[dict[str, Any]]) -> None:
        self.events = events
        self.stop, self.hurry = asyncio.Event(), asyncio.Event()
        self.task = asyncio.ensure_future(worker.run(self.stop, self.hurry))

    async def until(self, event: str, **fields: Any) -> dict[str, Any]:
        """The next event of this kind."""
        async with asyncio.timeout(10):
            while True:
                report = await self.events.get()
                if report.items() >= {"event": event, **fields}.items():
                    return report

    async def end(self, *, hurry: bool = False) -> None:
        self.stop.set()
        if hurry:
            self.hurry.set()
        async with asyncio.timeout(10):
            await self.task


@asynccontextmanager
async def serve(
    bench: Bench, source: Functions, *, name: str = "w1", concurrency: int = 4, ready: bool = True
) -> AsyncIterator[Served]:
    events: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
    worker = Worker(
        source,
        bench.client,
        session="default",
        name=name,
        concurrency=concurrency,
        lease=LEASE,
        report=events.put_nowait,
    )
    served = Served(worker, events)
    if ready:
        await served.until("serving")
    try:
        yield served
    finally:
        await served.end(hurry=True)


async def echo(args: dict[str, Any]) -> Any:
    return args
