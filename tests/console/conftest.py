"""The console in process, over a store in memory."""

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import httpx2
import pytest

from addon.console.pages import console_routes
from addon.control.app import ControlApp, create_app
from addon.monitoring.metrics import Metrics
from addon.settings import Settings
from addon.web.access import Right
from store.base import Store
from tests.control.conftest import ADDRESS, TOKEN, Capture, store

__all__ = ["store"]

type SignIn = Callable[..., Awaitable[httpx2.AsyncClient]]


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(state=tmp_path / "state", durability="process")


@pytest.fixture
def app(store: Store, settings: Settings) -> ControlApp:
    return create_app(
        store=store,
        settings=settings,
        token=TOKEN,
        metrics=Metrics(),
        version="1.2.3",
        extra_routes=console_routes(),
    )


@pytest.fixture
async def visitor(app: ControlApp) -> AsyncIterator[httpx2.AsyncClient]:
    """A page that is not signed in."""
    async with httpx2.AsyncClient(transport=httpx2.ASGITransport(app), base_url=ADDRESS) as client:
        yield client


@pytest.fixture
async def sign_in(app: ControlApp) -> AsyncIterator[SignIn]:
    """Opens a page that is signed in with a token of these rights, or with the proxy's own."""
    clients: list[httpx2.AsyncClient] = []

    async def sign_in(*rights: Right) -> httpx2.AsyncClient:
        client = httpx2.AsyncClient(transport=httpx2.ASGITransport(app), base_url=ADDRESS)
        clients.append(client)
        token = app.api.tokens.make(rights, None, "")[1] if rights else TOKEN
        answer = await client.post("/console/session", headers={"authorization": f"Bearer {token}"})
        assert answer.status_code == 200, answer.text
        client.headers["x-graft-page"] = answer.json()["page_key"]
        return client

    yield sign_in
    for client in clients:
        await client.aclose()


@pytest.fixture
async def page(sign_in: SignIn) -> httpx2.AsyncClient:
    """A page that is signed in with the proxy's own token."""
    return await sign_in()


@pytest.fixture
def capture(store: Store) -> Capture:
    return Capture(store)
