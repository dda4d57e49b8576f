"""Lost replies and servers that hang or die, with one server, behind Sentinel and in a cluster."""

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, ExitStack
from pathlib import Path
from typing import NamedTuple

import pytest

from store.backends.redis import RedisStore
from store.base import StoreUnavailable
from store.factory import open_url
from store.models import Policy
from tests.ports import free_port
from tests.store import servers
from tests.store.records import WORKERS, save, types
from tests.store.routes import Route

pytestmark = pytest.mark.e2e

PATIENCE = 5.0
"""Seconds that an operation waits for a server."""


class Served(NamedTuple):
    store: RedisStore
    port: int
    route: Route


@pytest.fixture(params=["server", "sentinel", "cluster"])
async def served(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Served]:
    """A store whose way to its server is a route, and the port of that server."""
    port, program = free_port(), servers.program_under_test()
    async with AsyncExitStack() as stack:
        route = await stack.enter_async_context(Route(port))
        options: list[str] = []
        if request.param == "cluster":
            options = ["--cluster-enabled", "yes", "--cluster-port", str(free_port())]
            options += ["--cluster-announce-ip", "127.0.0.1", "--cluster-announce-port", str(route.port)]
        stack.enter_context(servers.running(program, *options, port=port))
        url = f"redis://127.0.0.1:{route.port}"
        if request.param == "cluster":
            servers.ask(port, "CLUSTER", "ADDSLOTSRANGE", 0, 16383)
            await asyncio.to_thread(servers.until, lambda: "cluster_state:ok" in servers.ask(port, "CLUSTER", "INFO"))
            url = f"redis+cluster://127.0.0.1:{route.port}"
        elif request.param == "sentinel":
            config = tmp_path / "sentinel.conf"
            config.write_text(f"sentinel monitor main 127.0.0.1 {route.port} 1\n")
            sentinel = stack.enter_context(servers.running(program, str(config), "--sentinel", options_first=True))
            url = f"redis+sentinel://127.0.0.1:{sentinel}/main"
        store = open_url(url, ttl=1000.0)
        assert isinstance(store, RedisStore)
        await store.open()
        stack.push_async_callback(store.close)
        yield Served(store, port, route)


async def test_a_script_whose_reply_was_lost_is_applied_once(served: Served) -> None:
    store, _, route = served
    call = await save(store, "t1", call=WORKERS)
    writes: dict[str, Callable[[], Awaitable[object]]] = {
        "session.updated": lambda: store.put_policy("one", Policy()),
        "turn.created": lambda: save(store, "t2", call=WORKERS),
        "call.updated": lambda: store.answer("one", call.call_id, result=1),
    }
    for expected, write in writes.items():
        last, cuts = await store.last_event_id(), route.cuts
        route.lose_reply_to = b"EVALSHA"
        await write()
        assert route.cuts == cuts + 1
        events = [event.type for event in await store.events(after=last)]
        assert events == [expected, *(["call.created"] if expected == "turn.created" else [])]


async def test_a_server_that_hangs_costs_one_time_out(served: Served) -> None:
    store, port, _ = served
    await store.snapshot("one")
    with servers.stopped(port):
        begun = time.monotonic()
        for _ in range(3):
            operations = [store.snapshot("one"), store.put_policy("one", Policy()), store.last_event_id()]
            found = await asyncio.gather(*operations, return_exceptions=True)
            assert all(isinstance(one, StoreUnavailable) for one in found)
        assert PATIENCE - 1 < time.monotonic() - begun < PATIENCE + 2


async def test_a_write_during_which_the_server_is_killed_is_repeated_soon_after_its_restart(tmp_path: Path) -> None:
    port, program = free_port(), servers.program_under_test()
    options = "--appendonly", "yes", "--appendfsync", "always", "--dir", str(tmp_path)
    with ExitStack() as stack:
        stack.enter_context(servers.running(program, *options, port=port))
        store = open_url(f"redis://127.0.0.1:{port}", ttl=1000.0)
        await store.open()
        pid = servers.pid_of(port)
        os.kill(pid, signal.SIGSTOP)
        writing = asyncio.ensure_future(store.put_policy("one", Policy(delivery="loop")))
        await asyncio.sleep(0)
        os.kill(pid, signal.SIGKILL)
        killed = time.monotonic()
        with pytest.raises(StoreUnavailable):
            await writing
        assert time.monotonic() - killed < 1, "nobody waits for a server that is gone"
        await asyncio.to_thread(servers.until, lambda: not servers.listens(port))
        stack.enter_context(servers.running(program, *options, port=port))
        restarted = time.monotonic()
        while True:
            try:
                await store.put_policy("one", Policy(delivery="loop"))
                break
            except StoreUnavailable:
                await store.recovered(0.1)
        assert time.monotonic() - restarted < 2
        assert await types(store, "one") == ["session.updated"]
        await store.close()
