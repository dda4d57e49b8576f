"""The control API in process, over a store in memory."""

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import httpx2
import pytest

from addon.control.app import ControlApp, create_app
from addon.monitoring.metrics import Metrics
from addon.settings import Settings
from store.base import Store
from store.factory import open_url
from store.models import Call, Step, Turn

TOKEN = "a-token-for-tests"
ADDRESS = "http://127.0.0.1:8741"


@pytest.fixture
async def store() -> AsyncIterator[Store]:
    store = open_url("memory://", ttl=3600.0)
    await store.open()
    yield store
    await store.close()


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(
        state=tmp_path / "state",
        max_body=2048,
        max_media=256,
        allow_hosts=("graft.example",),
        allow_origins=("https://app.example",),
    )


@pytest.fixture
def metrics() -> Metrics:
    return Metrics()


@pytest.fixture
def app(store: Store, settings: Settings, metrics: Metrics) -> ControlApp:
    return create_app(store=store, settings=settings, token=TOKEN, metrics=metrics, version="1.2.3")


@pytest.fixture
async def client(app: ControlApp) -> AsyncIterator[httpx2.AsyncClient]:
    """A client that has the token."""
    async with httpx2.AsyncClient(
        transport=httpx2.ASGITransport(app), base_url=ADDRESS, headers={"Authorization": f"Bearer {TOKEN}"}
    ) as client:
        yield client


class Capture:
    """Puts turns with calls into the store, as the proxy would."""

    def __init__(self, store: Store) -> None:
        self.store = store

    async def __call__(
        self, call_id: str, *, session: str = "default", name: str = "get_weather", **fields: Any
    ) -> Call:
        now = fields.pop("created_at", None) or self.store.clock()
        call = Call(
            call_id=call_id,
            session=session,
            name=name,
            turn_id=f"turn_{call_id}",
            created_at=now,
            updated_at=now,
            **{"args": {"city": "Oslo"}, "owner": "workers", "released": True, **fields},
        )
        content = {"role": "model", "parts": [{"functionCall": {"name": name, "args": {"city": "Oslo"}}}]}
        turn = Turn(
            turn_id=call.turn_id,
            session=session,
            visible=[{"text": f"Tool call completed [{call.turn_id}]"}],
            steps=[Step.model_validate({"content": content, "slots": [{"name": name, "call_id": call_id}]})],
            pair=b"\xff\x00key",
            usage=[{"totalTokenCount": 3}],
            created_at=now,
        )
        await self.store.save_turn(turn, [call])
        return call


@pytest.fixture
def capture(store: Store) -> Capture:
    return Capture(store)


class Exchange:
    """One request with an answer that is read piece by piece, and a client that can leave; with a body, a POST."""

    def __init__(
        self,
        app: ControlApp,
        path: str,
        query: str = "",
        headers: dict[str, str] | None = None,
        body: bytes | None = None,
    ) -> None:
        self._body = body
        self._sent: asyncio.Queue[Any] = asyncio.Queue()
        self._left = asyncio.Event()
        given = {"host": "127.0.0.1:8741", "authorization": f"Bearer {TOKEN}", **(headers or {})}
        scope = {
            "type": "http",
            "method": "GET" if body is None else "POST",
            "path": path,
            "root_path": "",
            "query_string": query.encode(),
            "headers": [(name.lower().encode(), value.encode()) for name, value in given.items()],
        }
        self.task = asyncio.ensure_future(app(scope, self._receive, self._sent.put))
        self._text = ""

    async def _receive(self) -> dict[str, Any]:
        if self._body is not None:
            body, self._body = self._body, None
            return {"type": "http.request", "body": body, "more_body": False}
        await self._left.wait()
        return {"type": "http.disconnect"}

    async def start(self) -> dict[str, Any]:
        message: dict[str, Any] = await asyncio.wait_for(self._sent.get(), 5)
        return message

    async def block(self) -> str:
        """The next block of the stream, up to its blank line; comments too. "" at the end."""
        while "\n\n" not in self._text:
            message = await asyncio.wait_for(self._sent.get(), 5)
            self._text += message["body"].decode()
            if not message.get("more_body"):
                return self._text
        block, _, self._text = self._text.partition("\n\n")
        return block

    async def leave(self) -> None:
        self._left.set()
        await asyncio.wait([self.task], timeout=5)
        assert self.task.done()


@pytest.fixture
async def exchange(app: ControlApp) -> AsyncIterator[Callable[..., Exchange]]:
    made: list[Exchange] = []

    def make(path: str, query: str = "", headers: dict[str, str] | None = None, body: bytes | None = None) -> Exchange:
        made.append(Exchange(app, path, query, headers, body))
        return made[-1]

    yield make
    for one in made:
        await one.leave()
