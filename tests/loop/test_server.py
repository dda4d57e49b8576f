"""The loopback server, over a real connection."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx2
import pytest

from addon.core.documents import decode
from addon.loop.server import SECRET_HEADER, LoopServer
from addon.surfaces.base import Framing
from store.models import Status, ToolRules
from tests.loop.conftest import Proxy, Scripted, call, says, until, user

ANSWER = [says("done", finish="STOP")]


@pytest.fixture
async def server() -> AsyncIterator[LoopServer]:
    server = LoopServer()
    await server.start()
    yield server
    await server.stop()


@pytest.fixture
async def client(server: LoopServer) -> AsyncIterator[httpx2.AsyncClient]:
    base = f"http://127.0.0.1:{server.port}"
    async with httpx2.AsyncClient(base_url=base, verify=False, trust_env=False) as client:
        yield client


async def secret(proxy: Proxy, server: LoopServer, framing: Framing = Framing.SSE) -> dict[str, str]:
    """The header by which a loop's request is known."""
    runner, _ = await proxy.prepare([user("x")], framing)
    return {SECRET_HEADER.decode(): server.register(runner).decode()}


async def hangs(**args: Any) -> None:
    await asyncio.Event().wait()


async def test_a_secret_is_good_for_one_answer(proxy: Proxy, server: LoopServer, client: httpx2.AsyncClient) -> None:
    await proxy.open()
    await proxy.declare({"name": "manual", "description": "d"})
    proxy.upstream(Scripted(ANSWER))
    headers = await secret(proxy, server, Framing.JSON)
    assert (await client.post("/", headers={SECRET_HEADER.decode(): "guessed"})).status_code == 403
    assert (await client.post("/")).status_code == 403
    answer = await client.post("/", headers=headers, content=b"ignored")
    assert (answer.status_code, answer.json()) == (200, ANSWER[0])
    assert (await client.post("/", headers=headers)).status_code == 403
    await until(lambda: not server.running)


async def test_whoever_sent_the_request_is_told_that_it_is_here_before_the_loop_runs(
    proxy: Proxy, server: LoopServer, client: httpx2.AsyncClient
) -> None:
    await proxy.open()
    await proxy.declare({"name": "manual", "description": "d"})
    upstream = proxy.upstream(Scripted(ANSWER))
    runner, _ = await proxy.prepare([user("x")], Framing.SSE)
    asked: list[int] = []
    secret = server.register(runner, lambda: asked.append(len(upstream.bodies)))
    assert asked == []
    assert (await client.post("/", headers={SECRET_HEADER.decode(): secret.decode()})).status_code == 200
    assert asked == [0]


async def test_an_answer_is_streamed_as_it_comes(proxy: Proxy, server: LoopServer, client: httpx2.AsyncClient) -> None:
    await proxy.open()
    await proxy.declare({"name": "manual", "description": "d"})
    hold = asyncio.Event()
    proxy.upstream(Scripted([says("one"), hold, *ANSWER]))
    async with client.stream("POST", "/", headers=await secret(proxy, server)) as answer:
        chunks = answer.aiter_bytes()
        assert b"one" in await anext(chunks)
        assert [runner.loop_id for runner in server.running] == [proxy.runner.loop_id]
        hold.set()
        assert b"done" in b"".join([chunk async for chunk in chunks])


async def test_a_client_that_hangs_up_ends_the_loop(
    proxy: Proxy, server: LoopServer, client: httpx2.AsyncClient
) -> None:
    proxy.tools.add("hangs", hangs)
    await proxy.open()
    upstream = proxy.upstream(Scripted([says("one", call("hangs"), finish="STOP")], ANSWER))
    async with client.stream("POST", "/", headers=await secret(proxy, server)) as answer:
        await anext(answer.aiter_bytes())
        await until(lambda: proxy.tools.begun == ["hangs"])
    await until(lambda: not server.running)
    assert proxy.tools.cancelled == ["hangs"]
    assert [one.status for one in await proxy.calls()] == [Status.EXPIRED]
    assert len(upstream.bodies) == 1


@pytest.mark.parametrize("framing", list(Framing))
async def test_an_upstream_that_cannot_be_reached_is_a_502(
    proxy: Proxy, server: LoopServer, client: httpx2.AsyncClient, framing: Framing
) -> None:
    await proxy.open()
    await proxy.declare({"name": "manual", "description": "d"})
    proxy.upstream(Scripted(httpx2.ConnectError("refused")))
    answer = await client.post("/", headers=await secret(proxy, server, framing))
    assert answer.status_code == 502
    assert decode(answer.content)["error"]["status"] == "UNAVAILABLE"
    await until(lambda: not server.running)


async def test_an_answer_that_breaks_off_upstream_breaks_off_here(
    proxy: Proxy, server: LoopServer, client: httpx2.AsyncClient
) -> None:
    await proxy.open()
    await proxy.declare({"name": "manual", "description": "d"})
    proxy.upstream(Scripted([says("one"), httpx2.ReadError("cut")]))
    with pytest.raises(httpx2.RemoteProtocolError):
        await client.post("/", headers=await secret(proxy, server))
    await until(lambda: not server.running)


async def test_a_loop_is_alive_while_a_call_of_its_last_step_waits(
    proxy: Proxy, server: LoopServer, client: httpx2.AsyncClient
) -> None:
    proxy.tools.add("careful", hangs, approval=True)
    await proxy.open()
    await proxy.declare({"name": "manual", "description": "d"}, manual=ToolRules())
    proxy.upstream(Scripted([says(call("careful"), call("manual"), finish="STOP")]))
    assert (await client.post("/", headers=await secret(proxy, server))).status_code == 200
    await until(lambda: not server._answering)
    assert [runner.loop_id for runner in server.running] == [proxy.runner.loop_id]
    (waiting, _) = await proxy.calls()
    assert (waiting.approval, waiting.loop_id) == ("waiting", proxy.runner.loop_id)
    await proxy.store.decide(waiting.call_id, False)
    await until(lambda: not server.running)


async def test_a_loop_whose_request_never_comes_is_forgotten(proxy: Proxy, server: LoopServer) -> None:
    await proxy.open()
    await proxy.declare({"name": "manual", "description": "d"})
    proxy.upstream(Scripted())
    headers = await secret(proxy, server)
    server.forget(next(iter(headers.values())).encode())
    assert not server._waiting


async def test_stopping_ends_what_still_runs(proxy: Proxy) -> None:
    server = LoopServer()
    await server.start()
    proxy.tools.add("hangs", hangs)
    await proxy.open()
    proxy.upstream(Scripted([says("one", call("hangs"), finish="STOP")], ANSWER))
    async with httpx2.AsyncClient(verify=False, trust_env=False) as client:
        url = f"http://127.0.0.1:{server.port}/"
        asking = asyncio.ensure_future(client.post(url, headers=await secret(proxy, server)))
        await until(lambda: proxy.tools.begun == ["hangs"])
        await server.stop()
        await asyncio.wait({asking})
        assert asking.exception() is not None
    await until(lambda: not server.running)
    assert proxy.tools.cancelled == ["hangs"]
