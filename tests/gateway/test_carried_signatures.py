"""Clients that keep their own history carry the model's signatures: the store may have forgotten everything."""

from typing import Any

import pytest

from addon.core.framing.documents import Document
from addon.fake_gemini.server import StrictGemini
from addon.gateway.sealing import Sealing
from store.backends.memory import MemoryStore
from tests.gateway.conftest import House
from tests.gateway.test_compaction import PATH as COMPACT
from tests.gateway.test_compaction import scripted
from tests.gateway.test_responses import TOOLS, TWO, calls, output, text

CARRIES: Document = {"include": ["reasoning.encrypted_content"], "store": False, "tools": TOOLS}


async def forget(house: House) -> None:
    """A new store with the secret of the old one: as if all records had expired."""
    secret = house.store.secret
    house.store = MemoryStore()
    await house.store.open()
    house.store.secret = secret
    await house.restart()


@pytest.mark.parametrize("stream", [False, True])
async def test_ten_turns_with_functions_and_no_records(home: House, gemini: StrictGemini, stream: bool) -> None:
    items: list[Document] = []

    async def ask(given: list[Document]) -> Document:
        items.extend(given)
        if stream:
            response: Document = (await home.respond_stream(items, **CARRIES))[-1]["response"]
        else:
            response = await home.respond(items, **CARRIES)
        items.extend(response["output"])
        await forget(home)
        return response

    for n in range(10):
        first = await ask([{"role": "user", "content": f"{TWO} then call get_time {{}}"}])
        one, other = calls(first)
        (third,) = calls(await ask([output(other, hour=n), output(one, celsius=n)]))
        assert f'get_weather returned {{"celsius": {n}}}' in text(await ask([output(third, hour=n)]))
    assert (gemini.refused, gemini.dummy_signatures) == ([], 0)
    sent = gemini.requests[-1]["body"]["contents"]
    parts = [part for content in sent if content["role"] == "model" for part in content["parts"]]
    assert sum("functionCall" in part and "id" in part["functionCall"] for part in parts) == 30
    assert sum("text" in part and "thoughtSignature" in part for part in parts) == 9


async def test_the_session_s_tools_beside_them(home: House, gemini: StrictGemini) -> None:
    async def get_news() -> str:
        return "rain"

    home.proxy.tools.add("get_news", get_news)
    await home.open()
    items: list[Document] = []
    for n in range(5):
        items.append({"role": "user", "content": "call get_news {} then call get_time {} then call get_news {}"})
        asked = await home.respond(items, **CARRIES)
        (made,) = calls(asked)
        items += [*asked["output"], output(made, hour=n)]
        answered = await home.respond(items, **CARRIES)
        assert "rain" in text(answered)
        items += answered["output"]
    assert (gemini.refused, gemini.dummy_signatures) == ([], 0)
    sent = gemini.requests[-1]["body"]["contents"]
    assert sum("functionCall" in part for content in sent for part in content["parts"]) == 15


async def test_another_session_gets_nothing_of_what_is_carried(home: House, gemini: StrictGemini) -> None:
    items: list[Document] = [{"role": "user", "content": "call get_time {}"}]
    asked = await home.respond(items, **CARRIES)
    (made,) = calls(asked)
    items += [*asked["output"], output(made, hour=1)]
    body = {"model": "gemini-3-flash", "input": items, **CARRIES}
    await home.ask("/v1/responses", body, x_graft_session="theirs")
    assert gemini.dummy_signatures == 1
    await home.ask("/v1/responses", body)
    assert gemini.dummy_signatures == 1


@pytest.mark.parametrize("part", ["signatures", "summary"])
async def test_sealed_content_opens_in_its_own_place_only(house: House, part: str) -> None:
    upstream = scripted(house)
    (summary,) = (await house.ask(COMPACT, {"model": "gemini-3-flash", "input": "Hi"}))["output"]
    hi: Any = {"role": "user", "content": "Hi"}
    if part == "summary":
        item: Document = {"type": "reasoning", "summary": [], "encrypted_content": summary["encrypted_content"]}
        await house.respond([hi, item])
        assert upstream.bodies[1]["contents"] == [{"role": "user", "parts": [{"text": "Hi"}]}]
        return
    item = {"type": "compaction", "encrypted_content": Sealing(house.store, "default").seal("{}", "signatures")}
    error = (await house.respond([item, hi], status=400))["error"]
    assert error["param"] == "input[0].encrypted_content"
