"""How often a request waits for a shared store: each exchange with it is a round trip through the network."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from addon.core.framing.documents import Document, decode, encode
from addon.fake_gemini.server import StrictGemini
from addon.graft.machine_shell import Capture
from addon.surfaces.incoming import Framing
from store.factory import open_url
from store.models import Toolset
from tests.contents import model, user
from tests.loop.conftest import Proxy, call, says
from tests.store import servers

pytestmark = pytest.mark.e2e


@pytest.fixture
def url() -> str:
    return servers.new_url()


@pytest.fixture
async def proxy(url: str) -> AsyncIterator[Proxy]:
    store: Any = open_url(url, ttl=1000.0)
    yield Proxy(store=store)
    await store.close()


async def weather(place: str) -> Document:
    return {"place": place, "celsius": 21}


LOOP = 'call weather {"place": "Oslo"}'
HIDDEN = "call lookup {}"


@pytest.mark.parametrize(
    ("words", "most"),
    [
        # the session; the note of the answer, for which it does not wait
        pytest.param(["hello"], [2], id="nothing new"),
        pytest.param(["hello", "thanks", "bye"], [2, 2, 2], id="a chat without calls"),
        # the session, the turn with its call (read and written); that the client has it, for which it does not wait
        pytest.param([HIDDEN], [4], id="a captured call"),
        # the session, the turn with its call, the result, the whole turn; that the client has it
        pytest.param([LOOP], [8], id="a loop of one step"),
        # the session, the ledger; the note of the answer
        pytest.param([LOOP, "thanks", "bye"], [8, 4, 4], id="a chat with hidden calls"),
        # the session, the ledger; the open call, and the ledger once more; the turn with its call
        pytest.param([HIDDEN, HIDDEN], [4, 8], id="a call after one that is open"),
        pytest.param([LOOP, LOOP], [8, 10], id="two loops"),
    ],
)
async def test_a_request_waits_for_a_shared_store_as_seldom_as_possible(
    proxy: Proxy, gemini: StrictGemini, words: list[str], most: list[int]
) -> None:
    trips = await chat(proxy, words)
    assert all(one <= limit for one, limit in zip(trips, most, strict=True)), trips
    assert gemini.refused == []


@pytest.mark.usefixtures("gemini")
async def test_the_writes_of_other_processes_cost_a_request_no_round_trip(proxy: Proxy, url: str) -> None:
    other = open_url(url, ttl=1000.0)
    await other.open()
    writes = iter(range(100))

    async def write() -> None:
        await other.save_plain("default", [b"%d" % next(writes)])

    # long enough to be remembered, and with another answer each time
    trips = await chat(proxy, [LOOP, "thanks " * 400, *(f"thanks, {number}" for number in range(8))], write)
    await other.close()
    assert trips[0] <= 8
    assert max(trips[1:]) <= 4, trips  # what it has looked up before still holds


async def nothing() -> None: ...


async def chat(proxy: Proxy, words: list[str], between: Callable[[], Awaitable[None]] = nothing) -> list[int]:
    """The round trips of each request of a chat. `between`: run before each of them."""
    proxy.tools.add("weather", weather)
    await proxy.open()
    store: Any = proxy.store
    await store.put_toolset("default", Toolset(declarations=[{"name": "lookup"}]))
    await proxy.grafter.session_config("default")  # reads the tools, which are kept
    await store.look_up("default", keys=[b"none"])  # the server keeps the scripts
    await store.save_plain("other", [b"none"])
    history: list[Document] = []
    trips, settling = [], []
    for text in words:
        await between()
        before = store.link.round_trips
        history.append(user(text))
        runner, played = await proxy.prepare(history)
        async for out in runner.output():
            played.take(out)
        settling.append(asyncio.ensure_future(runner.settle_handover()))  # as the proxy does it
        history.append(model(played.text))
        await asyncio.sleep(0)  # the next request comes later
        trips.append(store.link.round_trips - before)
    await asyncio.wait(settling)
    return trips


async def test_a_whole_answer_is_captured_without_a_loop_and_a_repeated_request_goes_on_with_its_calls(
    proxy: Proxy,
) -> None:
    await proxy.open()
    await proxy.policy(delivery="placeholder")
    await proxy.declare({"name": "lookup"})
    store: Any = proxy.store
    target, _ = proxy.target(Framing.JSON, "developer", "gemini-3-flash-preview")
    answered = encode(says(call("lookup"), finish="STOP"))

    async def ask() -> tuple[Capture, Document, int]:
        before = store.link.round_trips
        sent = await proxy.forwarded({"contents": [user("x")]}, target)
        assert sent.exchange is not None
        capture = Capture(proxy.grafter, sent.exchange, "application/json")
        visible = await capture.whole(answered)
        assert isinstance(visible, bytes)
        return capture, decode(visible), store.link.round_trips - before

    await proxy.grafter.session_config("default")
    broken, first, trips = await ask()
    assert trips <= 3, "the session; the turn with its call, read and written"
    (known,) = await proxy.calls()
    await broken.settle(False)
    retry, second, _ = await ask()
    await retry.settle(True)
    (kept,) = await proxy.calls()
    assert kept.call_id == known.call_id
    _, third, _ = await ask()
    assert len(await proxy.calls()) == 2, "the client has the answer: another one is another call"
    assert first == second != third


async def test_a_note_is_sent_before_the_answer_ends(proxy: Proxy) -> None:
    """A kill of the process takes no note of a session whose turns could be mistaken for each other."""
    await proxy.open()
    store: Any = proxy.store
    await store.save_plain("default", [b"the server keeps the script"])
    before = store.link.round_trips
    await proxy.grafter.plain_notes.add("default", [b"key"], b"")
    assert store.link.round_trips - before == 1


async def test_a_request_has_the_session_s_tools_of_now_whatever_was_expected(proxy: Proxy) -> None:
    await proxy.open()
    target, _ = proxy.target(Framing.JSON, "developer", "gemini-3-flash-preview")
    body: Document = {"contents": [user("x"), model("y"), user("z")]}
    for names in (["one"], ["two"], ["two"], []):
        toolset = Toolset(declarations=[{"name": name} for name in names]) if names else None
        await proxy.store.put_toolset("default", toolset)
        sent = await proxy.forwarded(body, target)
        if names:
            assert [one["name"] for one in decode(sent.body)["tools"][0]["functionDeclarations"]] == names
        else:
            assert (decode(sent.body), sent.exchange, sent.noted) == (body, None, None)
    assert proxy.grafter.session_configs.expected("default") is None
