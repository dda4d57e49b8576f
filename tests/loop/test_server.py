"""The loops of the proxy's clients."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx2
import pytest

from addon.core.framing.documents import decode
from addon.loop.runner import Head
from addon.loop.server import LoopAnswer, LoopServer
from addon.surfaces.incoming import Framing
from store.models import Status, ToolRules
from tests.contents import user
from tests.loop.conftest import Proxy, Scripted, call, says, until

ANSWER = [says("done", finish="STOP")]


@pytest.fixture
async def server() -> AsyncIterator[LoopServer]:
    server = LoopServer()
    yield server
    await server.stop()


async def begin(proxy: Proxy, server: LoopServer, framing: Framing = Framing.SSE) -> LoopAnswer:
    runner, _ = await proxy.prepare([user("x")], framing)
    return server.answer(runner)


async def whole(answering: LoopAnswer) -> tuple[int, bytes]:
    """The status and the body of an answer."""
    pieces: list[Head | bytes] = []
    async with asyncio.timeout(10):
        while not answering.over:
            pieces += await answering.take()
    head, *body = pieces
    assert isinstance(head, Head)
    return head.status, b"".join(piece for piece in body if isinstance(piece, bytes))


async def hangs(**args: Any) -> None:
    await asyncio.Event().wait()


async def test_an_answer_comes_to_its_end(proxy: Proxy, server: LoopServer) -> None:
    await proxy.open()
    await proxy.declare({"name": "manual", "description": "d"})
    proxy.upstream(Scripted(ANSWER))
    answering = await begin(proxy, server, Framing.JSON)
    status, body = await whole(answering)
    assert (status, decode(body)) == (200, ANSWER[0])
    assert answering.error is None
    assert await answering.take() == []
    await until(lambda: not server)


async def test_the_end_of_an_answer_is_known_with_its_last_piece(proxy: Proxy, server: LoopServer) -> None:
    await proxy.open()
    await proxy.declare({"name": "manual", "description": "d"})
    proxy.upstream(Scripted(ANSWER))
    answering = await begin(proxy, server, Framing.JSON)
    async with asyncio.timeout(10):
        while not answering.over:
            pieces = await answering.take()
    assert pieces, "nobody waits once more for nothing"
    assert answering.error is None


async def test_an_answer_is_given_as_it_comes(proxy: Proxy, server: LoopServer) -> None:
    await proxy.open()
    await proxy.declare({"name": "manual", "description": "d"})
    hold = asyncio.Event()
    proxy.upstream(Scripted([says("one"), hold, *ANSWER]))
    answering = await begin(proxy, server)
    received = b""
    while b"one" not in received:
        received += b"".join(piece for piece in await answering.take() if isinstance(piece, bytes))
    assert not answering.over
    assert len(server) == 1
    hold.set()
    last = b""
    while not answering.over:
        last += b"".join(piece for piece in await answering.take() if isinstance(piece, bytes))
    assert b"done" in last


async def test_a_loop_is_not_far_ahead_of_a_client_that_does_not_read(proxy: Proxy, server: LoopServer) -> None:
    await proxy.open()
    await proxy.declare({"name": "manual", "description": "d"})
    given = 0

    async def events() -> AsyncIterator[bytes]:
        nonlocal given
        for _ in range(100):
            given += 1
            yield b'data: {"candidates":[{"content":{"role":"model","parts":[{"text":"%s"}]}}]}\r\n\r\n' % (b"x" * 9999)

    async def answers(request: httpx2.Request) -> httpx2.Response:
        return httpx2.Response(200, headers={"content-type": "text/event-stream"}, content=events())

    proxy.transport = httpx2.MockTransport(answers)
    answering = await begin(proxy, server)
    await until(lambda: given > 6)
    for _ in range(100):
        await asyncio.sleep(0)
    assert given < 10
    _, body = await whole(answering)
    assert body.count(b"data: ") >= 100


async def test_a_client_that_hangs_up_ends_the_loop(proxy: Proxy, server: LoopServer) -> None:
    proxy.tools.add("hangs", hangs, idempotent=True)
    await proxy.open()
    upstream = proxy.upstream(Scripted([says("one", call("hangs"), finish="STOP")], ANSWER))
    answering = await begin(proxy, server)
    await until(lambda: proxy.tools.begun == ["hangs"])
    for _ in range(9):  # the stream ends, its connection closes, the proxy ends: each says so
        answering.cancel()
        await asyncio.sleep(0)
    await until(lambda: not server)
    assert proxy.tools.cancelled == ["hangs"]
    assert [one.status for one in await proxy.calls()] == [Status.EXPIRED]
    assert len(upstream.bodies) == 1


@pytest.mark.parametrize("takes", [True, False])
async def test_a_client_that_hung_up_has_what_was_taken_for_it(proxy: Proxy, server: LoopServer, takes: bool) -> None:
    async def look() -> str:
        return "seen"

    proxy.tools.add("look", look)
    await proxy.open()
    proxy.upstream(Scripted([says(call("look"), finish="STOP")], [*ANSWER, asyncio.Event()]))
    answering = await begin(proxy, server)
    if takes:
        received = b""
        async with asyncio.timeout(5):
            while b"finishReason" not in received:
                received += b"".join(piece for piece in await answering.take() if isinstance(piece, bytes))
    else:
        await until(lambda: any(isinstance(piece, bytes) and b"finishReason" in piece for piece in answering._pieces))
    answering.cancel()
    await until(lambda: not server)
    (turn,) = await proxy.turns()
    assert (turn.delivered, turn.broke_off is None) == (takes, takes)


@pytest.mark.parametrize("framing", list(Framing))
async def test_an_upstream_that_cannot_be_reached_is_a_502(proxy: Proxy, server: LoopServer, framing: Framing) -> None:
    await proxy.open()
    await proxy.declare({"name": "manual", "description": "d"})
    proxy.upstream(Scripted(httpx2.ConnectError("refused")))
    status, body = await whole(await begin(proxy, server, framing))
    assert status == 502
    assert decode(body)["error"]["status"] == "UNAVAILABLE"
    await until(lambda: not server)


async def test_an_answer_that_breaks_off_upstream_breaks_off_here(proxy: Proxy, server: LoopServer) -> None:
    await proxy.open()
    await proxy.declare({"name": "manual", "description": "d"})
    proxy.upstream(Scripted([says("one"), httpx2.ReadError("cut")]))
    answering = await begin(proxy, server)
    await whole(answering)
    assert isinstance(answering.error, httpx2.ReadError)
    await until(lambda: not server)


async def test_a_call_of_the_last_step_waits_for_an_approval_when_the_loop_is_over(
    proxy: Proxy, server: LoopServer
) -> None:
    async def careful() -> str:
        return "done"

    proxy.tools.add("careful", careful, approval=True)
    await proxy.open()
    await proxy.declare({"name": "manual", "description": "d"}, manual=ToolRules())
    proxy.upstream(Scripted([says(call("careful"), call("manual"), finish="STOP")]))
    assert (await whole(await begin(proxy, server)))[0] == 200
    await until(lambda: not server)
    (waiting, _) = await proxy.calls()
    assert (waiting.approval, waiting.status) == ("waiting", Status.PENDING)
    await proxy.store.decide(waiting.session, waiting.call_id, True)
    assert (await proxy.store.wait_call(waiting, 5)) is not None
    await until(lambda: not proxy.executors._tasks)
    assert (await proxy.calls())[0].result == "done"


@pytest.mark.parametrize("framing", list(Framing))
async def test_stopping_ends_what_still_runs_and_tells_the_client(proxy: Proxy, framing: Framing) -> None:
    server = LoopServer()
    proxy.tools.add("hangs", hangs, idempotent=True)
    await proxy.open()
    proxy.upstream(Scripted([says("one", call("hangs"), finish="STOP")], ANSWER))
    answering = await begin(proxy, server, framing)
    await until(lambda: proxy.tools.begun == ["hangs"])
    await server.stop()
    assert not server
    status, body = await whole(answering)
    assert answering.error is None
    assert status == (503 if framing is Framing.JSON else 200)
    assert b"toolgraft: the proxy is ending" in body
    assert b'"UNAVAILABLE"' in body
    assert proxy.tools.cancelled == ["hangs"]


async def test_a_loop_that_comes_after_the_end_sends_nothing(proxy: Proxy) -> None:
    server = LoopServer()
    await proxy.open()
    await proxy.declare({"name": "manual", "description": "d"})
    upstream = proxy.upstream(Scripted(ANSWER))
    await server.stop()
    answering = await begin(proxy, server)
    assert await answering.take() == []
    assert answering.error is not None
    assert upstream.bodies == []


async def test_stopping_waits_until_the_clients_have_been_told(proxy: Proxy) -> None:
    server, taken = LoopServer(), asyncio.Event()
    proxy.tools.add("hangs", hangs)
    await proxy.open()
    proxy.upstream(Scripted([says("one", call("hangs"), finish="STOP")], ANSWER))
    runner, _ = await proxy.prepare([user("x")], Framing.SSE)
    server.answer(runner, taken.is_set)
    await until(lambda: proxy.tools.begun == ["hangs"])
    stopping = asyncio.ensure_future(server.stop())
    await until(lambda: not server)
    assert not stopping.done()
    taken.set()
    await stopping
