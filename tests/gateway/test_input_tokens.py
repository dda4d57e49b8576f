"""The tokens of a request, as Gemini counts them."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from openai.types.responses import InputTokenCountResponse

from addon.core.framing.documents import encode
from addon.fake_gemini.server import StrictGemini
from store.models import Toolset
from tests.gateway.conftest import MODEL, House
from tests.loop.conftest import google_error

PATH = "/v1/responses/input_tokens"
TOOL: Any = {"type": "function", "name": "locate", "parameters": {"type": "object", "properties": {}}}


@pytest.fixture
async def home(tmp_path: Path, gemini: StrictGemini) -> AsyncIterator[House]:
    house = House(state=tmp_path, upstream=gemini.url)
    await house.open()
    yield house
    await house.close()


async def count(house: House, given: Any, **more: Any) -> int:
    answer = await house.ask(PATH, {"model": MODEL, "input": given, **more})
    return InputTokenCountResponse.model_validate(answer, strict=True).input_tokens


async def test_history_instructions_tools_and_added_items_count(home: House, gemini: StrictGemini) -> None:
    alone = await count(home, "hello")
    counts = [
        await count(home, "hello", instructions="Be brief, and friendly."),
        await count(home, "hello", tools=[TOOL]),
    ]
    await home.respond("one two three four five", conversation="c")
    counts.append(await count(home, "hello", conversation="c"))
    await home.ask("/v1/conversations/c/items", {"items": [{"role": "user", "content": "six seven eight"}]})
    assert await count(home, "hello", conversation="c") > counts[-1] > alone
    await home.store.put_toolset(
        "default", Toolset(declarations=[{"name": "of_the_session", "description": "A tool."}])
    )
    counts.append(await count(home, "hello"))
    assert all(one > alone for one in counts), (alone, counts)
    assert len((await home.http.get("/v1/conversations/c/items")).json()["data"]) == 3, "nothing is stored"
    assert gemini.refused == []


async def test_a_bad_request_is_named(home: House) -> None:
    answer = await home.post(PATH, {"model": MODEL, "input": []})
    assert (answer.status_code, answer.json()["error"]["type"]) == (400, "invalid_request_error")
    answer = await home.post(PATH, {"model": MODEL, "input": "x", "previous_response_id": "resp_none"})
    assert answer.json()["error"]["code"] == "previous_response_not_found"


async def test_gemini_s_refusal_and_an_answer_without_a_count_are_errors(house: House) -> None:
    refusal = encode(google_error(429, "RESOURCE_EXHAUSTED"))
    house.upstream(httpx2.Response(429, content=refusal), httpx2.Response(200, content=b"[]"))
    for status in (429, 502):
        answer = await house.post(PATH, {"model": MODEL, "input": "x"})
        assert answer.status_code == status
        assert answer.json()["error"]["message"]
