"""A store's server that has lost its latest writes, as one that was started from an older file or took another's place:
the proxy that made them makes them again."""

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, ExitStack
from pathlib import Path
from typing import Any

import httpx2
import pytest

from addon.core.framing.documents import Document, encode
from addon.loop import call_results
from store.base import StoreUnavailable
from store.factory import open_url
from store.models import Status
from tests.loop.conftest import Proxy, Scripted, google_error
from tests.loop.retrying import ANSWER, STEP, responses
from tests.ports import free_port
from tests.store import servers

pytestmark = pytest.mark.e2e


class Shared:
    """A Redis server, and proxies that share it. `runs`: how often their tool `send` ran. `within`: what each run of it
    does."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.port = free_port()
        self.folder = folder
        self._stack = stack
        self.runs = 0
        self.result: Any = "sent"
        self.within: Callable[[], object] = lambda: None

    def start(self) -> None:
        options = "--dir", str(self.folder)
        self._stack.enter_context(servers.running(servers.program_under_test(), *options, port=self.port))

    def save(self) -> None:
        assert "OK" in servers.answer_of(self.port, "SAVE")

    def save_and_forget(self) -> None:
        """What is there comes back with the next start."""
        self.save()
        assert "OK" in servers.answer_of(self.port, "FLUSHALL")

    def lose_writes_since_save(self) -> None:
        os.kill(servers.pid_of(self.port), signal.SIGKILL)
        servers.until(lambda: not servers.listens(self.port))
        self.start()

    async def send(self) -> Any:
        self.runs += 1
        self.within()
        if isinstance(self.result, Exception):
            raise self.result
        return self.result

    async def proxy(self, name: str, stack: AsyncExitStack) -> Proxy:
        proxy = Proxy(store=open_url(f"redis://127.0.0.1:{self.port}", ttl=100_000.0))
        proxy.executors.proxy_id = name
        proxy.tools.add("send", self.send)
        await proxy.open()
        stack.push_async_callback(proxy.store.close)
        stack.push_async_callback(proxy.close)
        await proxy.store.hold(name, 3600)
        return proxy


@pytest.fixture
async def shared(tmp_path: Path) -> AsyncIterator[Shared]:
    with ExitStack() as stack:
        made = Shared(tmp_path, stack)
        made.start()
        yield made


BROKEN_OFF = httpx2.Response(400, content=encode(google_error(400)))


class LosesWrites(Scripted):
    """Its second answer is an error, and right before the server loses its writes: what the proxy writes then is
    there."""

    def __init__(self, shared: Shared) -> None:
        super().__init__(STEP, BROKEN_OFF)
        self.shared = shared

    async def __call__(self, request: httpx2.Request) -> httpx2.Response:
        if self.bodies:
            self.shared.lose_writes_since_save()
        return await super().__call__(request)


async def _retry(shared: Shared, proxy: Proxy, result: Any) -> None:
    upstream = proxy.upstream(Scripted(ANSWER))
    retry = await proxy.ask("x")
    retry.check()
    assert retry.text == "Wait. done"
    assert responses(upstream.bodies[-1]) == [result]
    assert shared.runs == 1


@pytest.mark.parametrize(
    ("result", "expected"),
    [
        ("sent", {"result": "sent"}),
        ("large", {"error": "the call has run, and its result was lost with the store's server"}),
        (ValueError("full"), {"error": "ValueError: full"}),
    ],
)
@pytest.mark.parametrize("at", ["the same", "another"])
async def test_a_retry_gets_the_result_that_the_server_has_lost(
    shared: Shared, monkeypatch: pytest.MonkeyPatch, at: str, result: Any, expected: Document
) -> None:
    """Without it, the retry would wait for the proxy that ran the call, as long as that is there."""
    async with AsyncExitStack() as stack:
        first = await shared.proxy("one", stack)
        second = first if at == "the same" else await shared.proxy("two", stack)
        shared.within, shared.result = shared.save, result
        monkeypatch.setattr(call_results, "_LARGE", len('"sent"'))
        first.upstream(LosesWrites(shared))
        await first.ask("x")
        await _retry(shared, second, expected)


async def test_a_retry_gets_a_result_although_another_server_did_not_know_its_call(shared: Shared) -> None:
    """As after two failovers within seconds, of which the first one is to a server that lacks the call."""
    async with AsyncExitStack() as stack:
        first, second = await shared.proxy("one", stack), await shared.proxy("two", stack)
        shared.within = shared.save_and_forget
        first.upstream(LosesWrites(shared))
        await first.ask("x")
        await _retry(shared, second, {"result": "sent"})


async def test_a_call_that_had_its_result_is_not_ended_without_it(shared: Shared) -> None:
    """Whoever ends calls that nobody waits for does not know which of them are final."""
    async with AsyncExitStack() as stack:
        proxy = await shared.proxy("one", stack)
        shared.within = shared.save
        proxy.upstream(Scripted(STEP, BROKEN_OFF))
        await proxy.ask("x")
        ((call,), results) = (await proxy.store.calls()).items, proxy.executors._results
        ended = await results.settle(call.session, call.call_id, Status.EXPIRED, "cancelled", has_begun=True)
        assert ended == call
        assert call.result == "sent"
        shared.lose_writes_since_save()
        await until_broken_off(proxy)
        await proxy.executors.late_writes.wait(30)
        assert (await proxy.store.call(call.session, call.call_id)).result == "sent"


async def test_an_answer_broke_off_although_the_server_has_lost_that(shared: Shared) -> None:
    """Without it, the retry would begin again, and run the tools once more."""
    async with AsyncExitStack() as stack:
        first, second = await shared.proxy("one", stack), await shared.proxy("two", stack)
        shared.within = shared.save
        first.upstream(Scripted(STEP, BROKEN_OFF))
        await first.ask("x")
        shared.lose_writes_since_save()
        await until_broken_off(first)
        await _retry(shared, second, {"result": "sent"})


async def test_an_answer_that_goes_on_is_not_broken_off_because_the_server_has_lost_writes(shared: Shared) -> None:
    """It broke off before, and that is the latest that was noted of it."""
    async with AsyncExitStack() as stack:
        first = await shared.proxy("one", stack)
        first.upstream(Scripted(STEP, BROKEN_OFF))
        await first.ask("x")

        class CutsConnections(Scripted):
            async def __call__(self, request: httpx2.Request) -> httpx2.Response:
                reconnected = asyncio.Event()
                repeat = first.store.on_reconnected
                assert repeat is not None

                def and_tell() -> None:
                    repeat()
                    reconnected.set()

                first.store.on_reconnected = and_tell
                servers.answer_of(shared.port, "CLIENT", "KILL", "TYPE", "normal")
                async with asyncio.timeout(30):
                    await reconnected.wait()
                await first.executors.late_writes.wait(30)
                (turn,) = await first.turns()
                assert turn.broke_off is None
                return await super().__call__(request)

        upstream = first.upstream(CutsConnections(ANSWER))
        assert (await first.ask("x")).text == "Wait. done"
        assert len(upstream.bodies) == 1


async def until_broken_off(proxy: Proxy) -> None:
    async with asyncio.timeout(30):
        while True:
            with contextlib.suppress(StoreUnavailable):
                (turn,) = await proxy.turns()
                if turn.broke_off is not None:
                    return
            await asyncio.sleep(0.01)
