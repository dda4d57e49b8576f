"""A server that does not answer: it is stopped, and goes on later."""

import asyncio
import os
import re
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

import pytest
from redis.exceptions import BusyLoadingError

from store.backends import _redis_client as client
from store.backends.redis import RedisStore
from store.base import StoreUnavailable
from store.factory import open_url
from store.models import Policy
from tests.store import servers
from tests.store.records import WORKERS, a_call, a_turn, save

pytestmark = pytest.mark.e2e


class Server:
    def __init__(self, pid: int) -> None:
        self.pid = pid

    def stop(self) -> None:
        os.kill(self.pid, signal.SIGSTOP)

    def go_on(self) -> None:
        os.kill(self.pid, signal.SIGCONT)


@pytest.fixture
async def store(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[tuple[RedisStore, Server]]:
    monkeypatch.setattr(client, "PAUSE", (0.02, 0.1))
    with servers.running(servers.program_under_test()) as port:
        opened = open_url(f"redis://127.0.0.1:{port}", ttl=1000.0)
        assert isinstance(opened, RedisStore)
        await opened.open()
        server = Server(servers.pid_of(port))
        monkeypatch.setattr(client, "PATIENCE", 0.3)
        yield opened, server
        server.go_on()
        await opened.close()


type Given = tuple[RedisStore, Server]


async def _errors(operations: list[Awaitable[object]]) -> list[str]:
    found = await asyncio.gather(*operations, return_exceptions=True)
    assert all(isinstance(one, StoreUnavailable) for one in found), found
    return [str(one) for one in found]


async def _back(store: RedisStore) -> None:
    async with asyncio.timeout(20):
        while store.outage:
            await store.recovered(1.0)


async def test_a_server_that_hangs_costs_one_time_out_and_says_when_it_is_tried_next(store: Given) -> None:
    it, server = store
    call = await save(it, "t1")
    server.stop()
    traffic = it.link.traffic
    errors = await _errors([it.snapshot(f"s{number}") for number in range(100)])
    assert traffic.failures["timeout"] == 1
    errors += await _errors([it.answer("one", call.call_id, result=1), it.hold("p1", 60.0), it.ping(), it.expire()])
    assert traffic.failures["skipped"] >= 103, "and the reader of notices"
    assert (traffic.failures["timeout"], traffic.failures["connection"]) == (1, 0)
    assert traffic.openings == 1
    assert it.outage
    since = r"store redis://127\.0\.0\.1:\d+: not reachable since \d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC"
    words = re.compile(since + r" \(no answer for 0\.3 seconds\); the next try is (in \d+\.\d s|running)")
    assert [error.endswith(": no answer for 0.3 seconds") for error in errors if not words.fullmatch(error)] == [True]
    server.go_on()
    await _back(it)
    answered = await it.call("one", call.call_id)
    assert answered.result is None, "an answer that was refused was stored"
    assert (await it.answer("one", call.call_id, result=1))[1]
    await until(lambda: traffic.running == 1)  # the reader's


async def test_a_probe_reads_what_operations_read(store: Given, monkeypatch: pytest.MonkeyPatch) -> None:
    it, _ = store
    asked: list[object] = []

    async def loading(commands: Sequence[client.Command]) -> list[object]:
        asked.extend(commands)
        return [(1, 0), BusyLoadingError("Redis is loading the dataset in memory")]

    with monkeypatch.context() as patch:
        patch.setattr(it.link, "_exchange", loading)
        assert not await it.link._probe()
    assert asked == [("TIME",), ("HGET", it.keys.meta, "epoch")]
    assert await it.link._probe()


async def test_a_wait_goes_on_through_an_outage(store: Given) -> None:
    it, server = store
    call = await save(it, "t1")
    waiting = asyncio.ensure_future(it.wait_call(call, 30.0))
    claimable = asyncio.ensure_future(it.wait_claimable("one", ["get_news"], 30.0))
    following = asyncio.ensure_future(it.follow("one", await it.last_event_id(), 30.0))
    await until(lambda: _waiting(it) == 3 and it.link.traffic.running == 1)  # the reader's
    server.stop()
    it.notifier.wake_all()  # they look in the middle of the outage
    await _errors([it.snapshot("one")])
    assert not any(one.done() for one in (waiting, claimable, following))
    server.go_on()
    await _back(it)
    new = a_call("c2", turn_id="t2", name="get_news", **WORKERS)
    await it.save_turn(a_turn("t2", "one", new), [new])
    assert await claimable
    assert [event.type for event in await following]
    await it.answer("one", call.call_id, result=1)
    found = await waiting
    assert found is not None
    assert found.result == 1


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110 - nothing tells it
            await asyncio.sleep(0.01)


def _waiting(store: RedisStore) -> int:
    return len({id(future) for some in store.notifier._waiting.values() for future in some})


async def test_one_slow_or_refused_command_keeps_no_other_from_the_server(store: Given) -> None:
    it, _ = store
    slow = asyncio.ensure_future(it.link.run(("PING",), ("WAIT", 1, 5000)))
    while not slow.done():
        await it.snapshot("one")
    assert slow.exception() is not None
    with pytest.raises(StoreUnavailable, match="wrong number"):
        await it.link.run(("GET",))
    assert it.outage == ""
    assert it.link.traffic.openings == 0
    assert it.link.traffic.failures == {"timeout": 1, "skipped": 0, "connection": 0, "refused": 1}


async def test_connections_that_are_cut_open_nothing(store: Given) -> None:
    it, _ = store
    await it.snapshot("one")
    await it.link.run(("CLIENT", "KILL", "SKIPME", "yes", "TYPE", "normal"))
    await it.put_policy("one", Policy(delivery="loop"))
    assert it.link.traffic.openings == 0


async def test_a_store_is_closed_in_an_outage(store: Given) -> None:
    it, server = store
    server.stop()
    await _errors([it.ping()])
    waiting = asyncio.ensure_future(it.recovered(60.0))
    await it.close()
    await waiting
    with pytest.raises(StoreUnavailable, match="not open"):
        await it.ping()


async def test_a_store_that_is_closed_while_a_write_waits_leaves_no_probe(store: Given) -> None:
    it, server = store
    server.stop()
    write = asyncio.ensure_future(it.put_policy("one", Policy()))
    await asyncio.sleep(0)
    before = asyncio.all_tasks()
    await it.close()
    with pytest.raises(StoreUnavailable):
        await write
    assert it.link.traffic.openings == 1
    assert asyncio.all_tasks() <= before
    assert not it.link.breaker.is_open
