"""How often a request waits for a shared store: each exchange with it is a round trip through the network."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from addon.core.framing.documents import Document
from addon.fake_gemini.server import StrictGemini
from store.factory import open_url
from store.models import Toolset
from tests.contents import model, user
from tests.loop.conftest import Proxy
from tests.store import servers


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
    await store.look_up("default", keys=[b"none"])  # the server keeps the script
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
