"""The stream that tells pages what has changed."""

import asyncio
from collections.abc import AsyncIterator

import httpx2
import pytest

from addon.console import changes
from addon.control.app import ControlApp
from addon.tools.base import ServerState
from store.base import Store
from store.models import Policy, Status
from tests.control.conftest import Capture, Exchange

EVERYTHING = ["calls", "approvals", "turns", "sessions"]


@pytest.fixture
async def stream(app: ControlApp) -> AsyncIterator[Exchange]:
    """After its first messages, which let the page fetch everything."""
    exchange = Exchange(app, "/console/changes")
    assert (await exchange.start())["status"] == 200
    assert [kind_of(await exchange.block()) for _ in EVERYTHING] == EVERYTHING
    yield exchange
    await exchange.leave()


def kind_of(block: str) -> str:
    event, data = block.splitlines()
    assert data == "data: {}"
    return event.removeprefix("event: ")


@pytest.fixture(autouse=True)
def _no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(changes, "_PAUSE", 0.0)
    monkeypatch.setattr(changes, "_PAUSE_WHEN_BUSY", 0.0)


async def test_each_kind_of_change_is_named(stream: Exchange, store: Store, capture: Capture) -> None:
    await store.put_policy("one", Policy(delivery="placeholder"))
    assert kind_of(await stream.block()) == "sessions"
    await capture("call_1", approval="waiting", owner="loop", loop_id="loop_1")
    assert [kind_of(await stream.block()) for _ in range(3)] == ["calls", "approvals", "turns"]
    await store.settle("default", "call_1", Status.EXPIRED, error="nobody decided")
    assert [kind_of(await stream.block()) for _ in range(3)] == ["calls", "approvals", "turns"]


async def test_the_page_of_tools_is_told_of_the_proxy_s_own(
    app: ControlApp, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(changes, "_PAUSE_FOR_TOOLS", 0.001)
    tools, mcp = [{"name": "noop"}], [ServerState("files", False, 0, "it does not answer")]
    monkeypatch.setattr(app.api, "shared", lambda: tools)
    monkeypatch.setattr(app.api, "server_states", lambda: mcp)
    stream = Exchange(app, "/console/changes", "page=tools")
    assert (await stream.start())["status"] == 200
    assert [kind_of(await stream.block()) for _ in range(5)] == [*EVERYTHING, "tools"]
    tools.append({"name": "other"})
    assert kind_of(await stream.block()) == "tools"
    mcp[0] = ServerState("files", True, 3)
    assert kind_of(await stream.block()) == "tools"
    await store.put_policy("one", Policy(delivery="placeholder"))
    assert kind_of(await stream.block()) == "sessions"
    await stream.leave()


async def test_some_changes_are_named_together(stream: Exchange, capture: Capture) -> None:
    for number in range(20):
        await capture(f"call_{number}")
    assert [kind_of(await stream.block()) for _ in range(2)] == ["calls", "turns"]


async def test_more_changes_than_are_looked_at_are_everything_but_no_approval_is_made_up(
    stream: Exchange, capture: Capture, store: Store
) -> None:
    for number in range(100):
        await capture(f"call_{number}")
    assert [kind_of(await stream.block()) for _ in range(3)] == ["calls", "turns", "sessions"]
    for number in range(100, 200):
        await capture(f"call_{number}")
    await capture("call_200", approval="waiting", owner="loop", loop_id="loop_1")
    assert [kind_of(await stream.block()) for _ in range(4)] == EVERYTHING


async def test_a_busy_store_is_looked_at_less_often(
    stream: Exchange, capture: Capture, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[float] = []
    sleep = asyncio.sleep

    async def noted(seconds: float, result: object = None) -> object:
        if seconds in (0.01, 0.02):
            pauses.append(seconds)
        return await sleep(0, result)

    monkeypatch.setattr(changes, "_PAUSE", 0.01)
    monkeypatch.setattr(changes, "_PAUSE_WHEN_BUSY", 0.02)
    monkeypatch.setattr(asyncio, "sleep", noted)
    for number in range(100):
        await capture(f"call_{number}")
    assert [kind_of(await stream.block()) for _ in range(3)] == ["calls", "turns", "sessions"]
    for _ in range(2):
        await store.put_policy("one", Policy(delivery="placeholder"))
        assert kind_of(await stream.block()) == "sessions"
    assert pauses[-2:] == [0.02, 0.01]


async def test_the_stream_ends_when_the_server_stops(stream: Exchange, app: ControlApp) -> None:
    app.stop()
    assert await stream.block() == ""


async def test_the_events_of_the_control_api_end_when_the_page_signs_out(
    app: ControlApp, page: httpx2.AsyncClient
) -> None:
    ((name, value),) = page.cookies.items()
    headers = {"authorization": "", "cookie": f"{name}={value}", "x-graft-page": page.headers["x-graft-page"]}
    stream = Exchange(app, "/v1/events", headers=headers)
    assert (await stream.start())["status"] == 200
    assert (await stream.block()).startswith(": toolgraft")
    await app.api.store.put_policy("one", Policy(delivery="placeholder"))
    assert "event: session." in await stream.block()
    assert (await page.delete("/console/session")).status_code == 204
    await app.api.store.put_policy("one", Policy(delivery="loop"))
    assert await stream.block() == ""


async def test_the_stream_of_a_page_ends_when_it_signs_out(app: ControlApp, page: httpx2.AsyncClient) -> None:
    ((name, value),) = page.cookies.items()
    headers = {"authorization": "", "cookie": f"{name}={value}", "x-graft-page": page.headers["x-graft-page"]}
    stream = Exchange(app, "/console/changes", headers=headers)
    assert (await stream.start())["status"] == 200
    assert [kind_of(await stream.block()) for _ in EVERYTHING] == EVERYTHING
    assert (await page.delete("/console/session")).status_code == 204
    await app.api.store.put_policy("one", Policy(delivery="placeholder"))
    assert await stream.block() == ""
