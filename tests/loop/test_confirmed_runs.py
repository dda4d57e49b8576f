"""Where the store has replicas, a tool runs only once a replica knows that it does: else another proxy could run it too
after the store's server was lost."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import pytest

from addon.surfaces.incoming import Framing
from store.backends import _redis_base
from store.base import NotDurable
from store.factory import open_url
from store.models import Status
from tests.loop.calling import ANSWER, returns
from tests.loop.conftest import Proxy, Scripted, call, says
from tests.store import servers
from tests.store.records import WORKERS, save


@pytest.fixture(scope="module")
def ports() -> Iterator[tuple[int, int]]:
    with servers.running_with_replica() as ports:
        yield ports


@pytest.fixture
def stopped(ports: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> Callable[[], AbstractContextManager[None]]:
    """The replica does nothing meanwhile, and is not waited for."""

    @contextmanager
    def stopped() -> Iterator[None]:
        with monkeypatch.context() as patch, servers.stopped(ports[1]):
            patch.setattr(_redis_base, "_SYNC", 100)
            yield

    return stopped


@pytest.fixture
async def proxy(ports: tuple[int, int], request: pytest.FixtureRequest) -> AsyncIterator[Proxy]:
    store: Any = open_url(f"redis://127.0.0.1:{ports[0]}?prefix={abs(hash(request.node.name))}", ttl=1000.0)
    proxy = Proxy(store=store)
    yield proxy
    await proxy.close()
    await store.close()


@pytest.mark.parametrize("framing", [Framing.JSON, Framing.SSE])
@pytest.mark.parametrize("rules", [{}, {"idempotent": True}, {"cache_ttl": 60.0}], ids=str)
async def test_no_tool_runs_whose_start_is_unconfirmed(
    proxy: Proxy, stopped: Callable[[], AbstractContextManager[None]], framing: Framing, rules: dict[str, Any]
) -> None:
    proxy.tools.add("tool", returns(1), **rules)
    await proxy.open()
    await proxy.policy(parallel=1)
    calls = [call("tool", n=1), call("tool", n=2)]  # the second one starts later than it is stored
    upstream = proxy.upstream(Scripted([says(*calls, finish="STOP")], ANSWER))
    with stopped():
        assert (await proxy.ask("x", framing=framing)).text == "done"
    responses = [part["functionResponse"]["response"] for part in upstream.bodies[1]["contents"][-1]["parts"]]
    assert ["could not be run" in one["error"] for one in responses] == [True, True]
    assert proxy.tools.begun == []
    assert {one.status for one in await proxy.calls()} == {Status.EXPIRED}, "a retry of the request runs them"
    upstream = proxy.upstream(Scripted([says(*calls, finish="STOP")], ANSWER))
    assert (await proxy.ask("again", framing=framing)).text == "done"
    assert proxy.tools.begun == ["tool", "tool"]


async def test_no_worker_has_a_call_whose_claim_is_unconfirmed(
    proxy: Proxy, stopped: Callable[[], AbstractContextManager[None]]
) -> None:
    await proxy.open()
    one = await save(proxy.store, "t1", call=WORKERS)
    with stopped():
        assert await proxy.store.claim("one", [one.name], lease=60, worker="w") is not None
        sync = asyncio.ensure_future(proxy.store.sync())
        assert await proxy.store.session("one") is None
        assert not sync.done()  # it makes nobody else wait
        with pytest.raises(NotDurable):
            await sync
    await proxy.store.sync()
