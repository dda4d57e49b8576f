"""A client that hangs up at one proxy, and asks another one again before the first could note that in Redis."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import NamedTuple

import httpx2
import pytest

from store.backends.redis import RedisStore
from store.base import StoreUnavailable
from store.factory import open_url
from tests.contents import user
from tests.gateway.conftest import MODEL, House
from tests.loop.conftest import Played, Proxy, Scripted, call, says, until
from tests.ports import free_port
from tests.store import servers
from tests.store.routes import Route

pytestmark = pytest.mark.e2e

STEP = [says("Wait. ", call("send", "c1"), finish="STOP")]
ANSWER = [says("done", finish="STOP")]
LEASE = 60.0


class Model(Scripted):
    """Calls the tool until it has a result."""

    async def __call__(self, request: httpx2.Request) -> httpx2.Response:
        self.rounds = [ANSWER if b"functionResponse" in request.content else STEP]
        return await super().__call__(request)


class Side(NamedTuple):
    """A proxy with its way to Redis, and its front doors."""

    proxy: Proxy
    route: Route
    house: House

    @property
    def store(self) -> RedisStore:
        assert isinstance(self.proxy.store, RedisStore)
        return self.proxy.store

    async def back(self, server: int) -> None:
        """The way leads to the server again."""
        self.route.lead_to(server)
        async with asyncio.timeout(30):
            while True:
                with suppress(StoreUnavailable):
                    await self.store.ping()
                    return
                await self.store.recovered(1)

    async def renew(self) -> None:
        """As the runtime does all the time."""
        await self.proxy.executors.catch_up()
        await self.store.hold(str(self.proxy.executors.proxy_id), LEASE)

    def ask(self) -> "asyncio.Task[Played]":
        return asyncio.ensure_future(self.proxy.ask(user("x")))


class Pair(NamedTuple):
    """Two proxies on one Redis. `sent`: the proxies that have run the tool, which returns when `goes_on` is set."""

    one: Side
    two: Side
    sent: list[int]
    goes_on: asyncio.Event
    server: int


@pytest.fixture
async def pair(tmp_path: Path) -> AsyncIterator[Pair]:
    url, sent, goes_on = servers.new_url(), list[int](), asyncio.Event()
    port = servers.shared(servers.program_under_test())
    sides = []
    async with AsyncExitStack() as stack:
        for number in (1, 2):
            route = await stack.enter_async_context(Route(port))
            store = open_url(url.replace(f":{port}/", f":{route.port}/"), ttl=100_000.0)
            house = House(store, state=tmp_path / f"{number}")
            proxy = house.proxy
            stack.push_async_callback(store.close)

            async def send(number: int = number) -> str:
                sent.append(number)
                await goes_on.wait()
                return f"sent by {number}"

            proxy.tools.add("send", send)
            proxy.executors.proxy_id = f"p{number}"
            await proxy.open()
            await store.drop("this")
            stack.push_async_callback(house.close)
            proxy.upstream(Model())
            sides.append(Side(proxy, route, house))
            await sides[-1].renew()
        yield Pair(sides[0], sides[1], sent, goes_on, port)
        goes_on.set()


async def hang_up(asking: "asyncio.Task[Played]") -> None:
    asking.cancel()
    with suppress(asyncio.CancelledError):
        await asking


async def test_a_retry_waits_for_what_a_proxy_without_redis_has_yet_to_note(pair: Pair) -> None:
    """Both lose Redis, the client loses its patience, and the other proxy has Redis back first."""
    one, two = pair.one, pair.two
    asking = one.ask()
    await until(lambda: pair.sent == [1])
    for side in (one, two):
        side.route.lead_to(free_port())
    await hang_up(asking)
    assert len(one.proxy.executors.late_writes) > 0
    await two.back(pair.server)
    retry = two.ask()
    await asyncio.wait({retry}, timeout=1)  # long enough to run the tool
    assert (pair.sent, retry.done()) == ([1], False)
    await one.back(pair.server)
    pair.goes_on.set()
    await one.renew()
    assert (await retry).text == "Wait. done"
    assert pair.sent == [1]
    (turn,) = await two.proxy.turns()
    assert turn.delivered
    assert [one.result for one in await two.proxy.calls()] == ["sent by 1"]


async def test_a_retry_waits_for_the_lease_of_a_proxy_that_is_gone(pair: Pair) -> None:
    one, two = pair.one, pair.two
    await one.store.hold("p1", 1.5)
    asking = one.ask()
    await until(lambda: pair.sent == [1])
    one.route.lead_to(free_port())  # for good, as if it was killed
    retry = two.ask()
    assert (await retry).text == "Wait. done"
    assert pair.sent == [1]
    assert [one.status for one in await two.proxy.calls()] == ["expired"]
    await hang_up(asking)


async def test_a_request_beside_the_same_one_at_another_proxy_waits_no_longer_than_for_its_next_sign_of_life(
    pair: Pair,
) -> None:
    one, two = pair.one, pair.two
    asking = one.ask()
    await until(lambda: pair.sent == [1])
    other = two.ask()
    await asyncio.wait({other}, timeout=0.5)
    assert pair.sent == [1]
    await one.renew()
    await until(lambda: pair.sent == [1, 2])
    pair.goes_on.set()
    assert [(await one).text for one in (asking, other)] == ["Wait. done"] * 2


@pytest.mark.parametrize("path", ["/v1/responses", "/v1/gemini"])
async def test_a_conversation_stays_locked_until_a_proxy_without_redis_has_noted_what_its_retry_needs(
    pair: Pair, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("addon.graft.machine_shell.PATIENCE", 0.1)  # for which the error is held back
    one, two = pair.one, pair.two
    asked = {"model": MODEL, "input": "x", "conversation": "chat"}
    asking = asyncio.ensure_future(one.house.post(path, asked))
    await until(lambda: pair.sent == [1])
    one.route.lead_to(free_port())
    pair.goes_on.set()
    assert (await asking).status_code == 503
    assert (await two.house.post(path, asked)).status_code == 409
    await one.back(pair.server)
    await one.renew()
    retry = await two.house.post(path, asked)
    assert (retry.status_code, "done" in retry.text) == (200, True), retry.text
    assert pair.sent == [1]
