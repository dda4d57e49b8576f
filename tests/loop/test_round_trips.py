"""How often a request waits for a shared store: each exchange with it is a round trip through the network."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from addon.core.framing.documents import Document, decode, encode
from addon.fake_gemini.server import StrictGemini
from addon.graft.capture import Capture
from addon.surfaces.base import Framing
from store.factory import open_url
from store.models import Toolset
from tests.contents import model, user
from tests.loop.conftest import Proxy, call, says
from tests.store import servers

pytestmark = pytest.mark.e2e


@pytest.fixture
async def proxy() -> AsyncIterator[Proxy]:
    store: Any = open_url(servers.new_url(), ttl=1000.0)
    yield Proxy(store=store)
    await store.close()


async def weather(place: str) -> Document:
    return {"place": place, "celsius": 21}


LOOP = 'call weather {"place": "Oslo"}'
HIDDEN = "call lookup {}"


@pytest.mark.parametrize(
    ("words", "most"),
    [
        # the session, and the note of the answer
        pytest.param(["hello"], [2], id="nothing new"),
        pytest.param(["hello", "thanks", "bye"], [2, 2, 2], id="a chat without calls"),
        # the session, the turn with its call; that the client has it
        pytest.param([HIDDEN], [3], id="a captured call"),
        # the session, the turn with its call, the result, the whole turn; that the client has it
        pytest.param([LOOP], [5], id="a loop of one step"),
        # the session, the ledger; the note of the answer
        pytest.param([LOOP, "thanks", "bye"], [5, 3, 3], id="a chat with hidden calls"),
        pytest.param([LOOP, LOOP], [5, 6], id="two loops"),
    ],
)
async def test_a_request_waits_for_a_shared_store_as_seldom_as_possible(
    proxy: Proxy, gemini: StrictGemini, words: list[str], most: list[int]
) -> None:
    proxy.tools.add("weather", weather)
    await proxy.open()
    store: Any = proxy.store
    await store.put_toolset("default", Toolset(declarations=[{"name": "lookup"}]))
    await proxy.grafter.session_config("default")  # reads the tools, which are kept
    await store.look_up("default", keys=[b"none"])  # the server keeps the scripts
    await store.save_plain("other", [b"none"])
    history: list[Document] = []
    trips = []
    for text in words:
        before = store.link.round_trips
        history.append(user(text))
        played = await proxy.ask(*history)
        history.append(model(played.text))
        trips.append(store.link.round_trips - before)
    assert all(one <= limit for one, limit in zip(trips, most, strict=True)), trips
    assert gemini.refused == []


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
    assert trips <= 2, "the session; the turn with its call"
    (known,) = await proxy.calls()
    await broken.settle(False)
    retry, second, _ = await ask()
    await retry.settle(True)
    (kept,) = await proxy.calls()
    assert kept.call_id == known.call_id
    _, third, _ = await ask()
    assert len(await proxy.calls()) == 2, "the client has the answer: another one is another call"
    assert first == second != third
