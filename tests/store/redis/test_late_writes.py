"""Writes that a stopped server has not run when their caller gives up, and what their errors say."""

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest

from store.backends.redis import RedisStore
from store.base import NotDurable, OutcomeUnknown, StoreUnavailable
from store.factory import open_url
from store.models import Policy
from tests.store import servers
from tests.store.records import save
from tests.store.redis.test_outage import Given, _back, store, until  # noqa: F401 - a fixture

pytestmark = pytest.mark.e2e


async def test_a_write_that_was_refused_is_not_applied_once_the_server_goes_on(
    store: Given,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    it, server = store
    call = await save(it, "t1")
    await it.save_plain("one", [b"before"])  # the server knows the script
    last = await it.last_event_id()
    await asyncio.gather(*(it.link.run(("PING",)) for _ in range(5)))  # there are connections for all of them
    (ours,) = await it.link.run(("CLIENT", "LIST", "TYPE", "NORMAL"))
    script, sent, began = it.link.script, asyncio.Barrier(3), it.link.time()

    async def to_stopped(*arguments: Any, **named: Any) -> Any:
        """Stop the server before three writes, which have read what they need."""
        await sent.wait()
        server.stop()
        return await script(*arguments, **named)

    with monkeypatch.context() as patch:
        patch.setattr(it.link, "script", to_stopped)
        writes = it.answer("one", call.call_id, result=1), save(it, "t2", "two"), it.save_plain("one", [b"key"])
        errors = await asyncio.gather(*writes, return_exceptions=True)
    assert [type(one) for one in errors] == [OutcomeUnknown] * 3, "they were sent"
    with pytest.raises(StoreUnavailable) as later:
        await it.put_policy("three", Policy())
    assert not isinstance(later.value, OutcomeUnknown), "it was not sent"
    await until(lambda: it.link.time() > began + 1.0)  # past their deadline of 0.3 s
    server.go_on()
    await _back(it)
    await _gone(it, ours)
    assert (await it.call("one", call.call_id)).result is None
    assert await it.last_event_id() == last
    assert (await it.look_up("one", keys=[b"key"])).plain == {}
    assert (await it.turns("two")).items == []


async def _gone(it: RedisStore, connections: bytes) -> None:
    """The server has read all that came over these connections."""
    ids = {line.split()[0] for line in connections.splitlines()}
    async with asyncio.timeout(10):
        while True:
            (now,) = await it.link.run(("CLIENT", "LIST", "TYPE", "NORMAL"))
            if not ids & {line.split()[0] for line in now.splitlines()}:
                return


@pytest.fixture
async def one() -> AsyncIterator[RedisStore]:
    opened = open_url(servers.new_url(), ttl=1000.0)
    assert isinstance(opened, RedisStore)
    await opened.open()
    yield opened
    await opened.close()


@pytest.mark.parametrize("ahead", [3600.0, -3600.0])
async def test_another_clock_of_the_server_refuses_no_write(one: RedisStore, ahead: float) -> None:
    await one.put_policy("one", Policy())
    one.link.note_time(int((one.link.time() - ahead) * 1e6))  # as after a failover
    await one.put_policy("one", Policy(delivery="loop"))
    assert abs(one.link.time() - time.time()) < 60
    one.link.note_time(int((one.link.time() - ahead) * 1e6))
    await one.save_plain("one", [b"key"], b"chain")
    assert (await one.look_up("one", keys=[b"key"])).plain == {b"key": b"chain"}


async def test_a_write_that_was_applied_before_its_deadline_is_found_by_a_later_try(
    one: RedisStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = one.link.script

    async def late(name: Any, keys: Any, arguments: Any, **writes: bool) -> Any:
        await script(name, keys, arguments, **writes)
        return await script(name, keys, [0, *arguments[1:]], **writes)

    monkeypatch.setattr(one.link, "script", late)
    await one.put_policy("one", Policy(delivery="loop"))
    assert [event.type for event in await one.events(after=None)] == ["session.updated"]


async def test_a_clock_that_runs_away_ends_the_tries(one: RedisStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(one.link, "time", lambda: time.time() - 3600)
    with pytest.raises(StoreUnavailable, match="ahead of every deadline") as error:
        await one.put_policy("one", Policy())
    assert not isinstance(error.value, OutcomeUnknown)
    assert await one.session("one") is None


async def test_a_write_that_ends_in_the_middle_may_have_changed_something(one: RedisStore) -> None:
    await one.link.run(
        ("SET", one.keys.notices + b"x", "1"), ("DEL", one.keys.names), ("SET", one.keys.names, "damaged")
    )
    with pytest.raises(OutcomeUnknown, match="WRONGTYPE"):
        await one.put_policy("one", Policy())


async def test_a_full_server_has_changed_nothing() -> None:
    with servers.running(servers.program_under_test(), "--maxmemory-policy", "noeviction") as port:
        it = open_url(f"redis://127.0.0.1:{port}", ttl=60)
        await it.open()
        assert isinstance(it, RedisStore)
        await it.link.run(("CONFIG", "SET", "maxmemory", "1"))
        with pytest.raises(StoreUnavailable, match="OOM") as error:
            await it.put_policy("two", Policy())
        assert not isinstance(error.value, OutcomeUnknown)
        await it.close()


async def test_a_write_that_is_not_confirmed_was_made(store: Given) -> None:  # noqa: F811
    it, server = store
    it._has_replicas = True
    server.stop()
    with pytest.raises(NotDurable):
        await it.confirm()
    server.go_on()
    await _back(it)


async def test_a_server_without_room_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """It answers the first command, whichever that is, and closes the connection."""
    monkeypatch.setenv("TOOLGRAFT_REDIS_PASSWORD", "s3cr3t")
    with servers.running(servers.program_under_test(), "--requirepass", "s3cr3t") as port:
        it = open_url(f"redis://127.0.0.1:{port}", ttl=60)
        await it.open()
        assert isinstance(it, RedisStore)
        await it.link.run(("CONFIG", "SET", "maxclients", "1"))
        other = open_url(f"redis://127.0.0.1:{port}", ttl=60)
        with pytest.raises(Exception, match="max number of clients reached") as error:
            await other.open()
        assert "AUTH" not in str(error.value)
        await it.close()
