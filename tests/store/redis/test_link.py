"""One connection for all commands: they share a write, and each caller gets its own replies."""

import asyncio
import time
import traceback
from collections.abc import AsyncIterator

import pytest

from store.backends import _redis_link as links
from store.backends import _redis_url as urls
from store.backends import _redis_wire as wires
from store.base import StoreUnavailable, StoreUnusable
from store.factory import open_url
from tests.store import servers

pytestmark = pytest.mark.e2e


@pytest.fixture
async def link() -> AsyncIterator[links.Link]:
    link = links.Link(urls.read(servers.new_url(), {}))
    link.connect()
    await link.run(("PING",))
    yield link
    await link.close()


async def test_commands_of_one_turn_of_the_event_loop_share_a_write(link: links.Link) -> None:
    before = link.round_trips
    replies = await asyncio.gather(*(link.run(("ECHO", str(n)), ("PING",)) for n in range(50)))
    assert replies == [[str(n).encode(), b"PONG"] for n in range(50)]
    assert link.round_trips - before == 1


async def test_what_nobody_waits_for_goes_with_the_next_commands_and_before_them(link: links.Link) -> None:
    async def note(number: int) -> None:
        await link.next_trip()
        await link.run(("RPUSH", "noted", number))

    before = link.round_trips
    noting = [asyncio.ensure_future(note(number)) for number in range(3)]
    await asyncio.sleep(0)
    assert link.round_trips == before
    (noted,) = await link.run(("LRANGE", "noted", 0, -1))
    assert noted == [b"0", b"1", b"2"]
    assert link.round_trips - before == 1
    async with asyncio.timeout(5):
        await asyncio.gather(*noting, note(3))  # alone after a moment
    noting = [asyncio.ensure_future(note(4))]
    await asyncio.sleep(0)
    await link.close()
    await noting[0]


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


async def test_a_connection_that_is_cut_is_opened_anew_and_its_commands_are_sent_once_more(link: links.Link) -> None:
    for _ in range(3):
        (number,) = await link.run(("CLIENT", "ID"))
        _, *answers = await asyncio.gather(
            link.run(("CLIENT", "KILL", "ID", number, "SKIPME", "no")), *(link.run(("ECHO", str(n))) for n in range(5))
        )
        assert answers == [[str(n).encode()] for n in range(5)]
        assert await link.run(("CLIENT", "ID"), ("CLIENT", "GETNAME")) == [number + 1, b"toolgraft"]


async def test_a_server_that_does_not_answer_costs_a_time_out_and_the_connection(
    link: links.Link,
) -> None:
    wire = await wires.Wire.open("127.0.0.1", link.address.hosts[0][1], patience=0.1)
    silent, later = wire.send([("BLPOP", "none", 0)]), wire.send([("PING",)])
    for waiter in (silent, later):
        with pytest.raises(TimeoutError):
            await waiter
    assert not wire.is_open
    with pytest.raises(wires.Cut):
        await wire.exchange([("PING",)])


async def test_a_blocked_event_loop_is_not_taken_for_a_server_that_does_not_answer(link: links.Link) -> None:
    wire = await wires.Wire.open("127.0.0.1", link.address.hosts[0][1], patience=0.1)
    for _ in range(3):
        answer = wire.send([("PING",)])
        time.sleep(0.3)  # noqa: ASYNC251 - the commands are not even sent
        assert await answer == [b"PONG"]
    silent = wire.send([("BLPOP", "none", 0)])
    time.sleep(0.3)  # noqa: ASYNC251
    async with asyncio.timeout(5):
        with pytest.raises(TimeoutError, match="no answer for"):
            await silent
    assert not wire.is_open


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
            with pytest.raises(StoreUnusable, match="ERR the server refuses AUTH") as error:
                await open_url(f"redis://{user}127.0.0.1:{port}", ttl=60).open()
            assert "s3cr3t" not in "".join(traceback.format_exception(error.value))
