"""Commands and scripts: each caller gets its own replies, and connections that were cut are opened again."""

import asyncio
import traceback
from collections.abc import AsyncIterator

import pytest

from store.backends import _redis_client as links
from store.base import StoreUnavailable, StoreUnusable
from store.factory import open_url
from tests.store import servers

pytestmark = pytest.mark.e2e


@pytest.fixture
async def link() -> AsyncIterator[links.Link]:
    link = links.Link(links.Address.read(servers.new_url(), {}))
    link.connect()
    await link.run(("PING",))
    yield link
    await link.close()


async def test_a_refused_command_concerns_its_own_caller_alone(link: links.Link) -> None:
    commands = [("ECHO", "1")], [("PING",), ("NONSENSE",)], [("ECHO", "2")]
    replies = await asyncio.gather(*(link.run(*some) for some in commands), return_exceptions=True)
    assert replies[::2] == [[b"1"], [b"2"]]
    assert isinstance(replies[1], StoreUnavailable)


async def test_a_cancelled_caller_shifts_no_replies(link: links.Link) -> None:
    tasks = [asyncio.ensure_future(link.run(("ECHO", str(n)))) for n in range(6)]
    await asyncio.sleep(0)
    for task in tasks[::2]:
        task.cancel()
    assert (await asyncio.gather(*tasks, return_exceptions=True))[1::2] == [[b"1"], [b"3"], [b"5"]]
    assert await link.run(("ECHO", "next")) == [b"next"]


async def test_a_command_that_waits_for_replicas_delays_no_other(link: links.Link) -> None:
    waiting = asyncio.ensure_future(link.run(("PING",), ("WAIT", 1, 2000)))
    await asyncio.sleep(0)
    async with asyncio.timeout(1):
        assert await link.run(("ECHO", "1")) == [b"1"]
    assert not waiting.done()
    waiting.cancel()


async def test_connections_that_were_cut_are_opened_again(link: links.Link) -> None:
    for _ in range(3):
        servers.answer_of(link.address.hosts[0][1], "CLIENT", "KILL", "TYPE", "normal")
        replies = await asyncio.gather(*(link.run(("ECHO", str(n)), ("CLIENT", "GETNAME")) for n in range(5)))
        assert replies == [[str(n).encode(), b"toolgraft"] for n in range(5)]


async def test_more_operations_than_connections_wait_for_these(link: links.Link) -> None:
    replies = await asyncio.gather(*(link.run(("ECHO", str(n))) for n in range(300)))
    assert replies == [[str(n).encode()] for n in range(300)]
    assert 1 < link.traffic.connections() <= links._CONNECTIONS


async def test_a_script_that_the_server_has_forgotten_is_sent_to_it(link: links.Link) -> None:
    script = links.Script("_redis_history.lua")
    keys = [b"a", b"b", b"c"]
    for _ in range(2):
        await link.run(("SCRIPT", "FLUSH"))
        assert await asyncio.gather(*(link.script(script, keys, ["none"]) for _ in range(3))) == [[[], None]] * 3


async def test_a_refused_password_appears_in_no_part_of_the_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server without AUTH repeats the beginning of what it was sent."""
    password = "s3cr3t" * 40
    monkeypatch.setenv("TOOLGRAFT_REDIS_PASSWORD", password)
    with servers.running(servers.program_under_test(), "--rename-command", "AUTH", "") as port:
        for user in ("", "me@"):
            with pytest.raises(StoreUnusable, match="ERR unknown command 'AUTH'") as error:
                await open_url(f"redis://{user}127.0.0.1:{port}", ttl=60).open()
            assert "s3cr3t" not in "".join(traceback.format_exception(error.value))
