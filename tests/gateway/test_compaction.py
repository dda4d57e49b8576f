"""`/v1/responses/compact`: a summary stands for the messages, and nobody but the proxy can read or make one."""

import json

import pytest
from openai.types.responses import CompactedResponse

from addon.core.framing.documents import Document
from addon.fake_gemini.server import StrictGemini
from tests.gateway.conftest import MODEL, House, Scripted
from tests.gateway.test_responses import TOOLS, calls, output
from tests.loop.conftest import says

PATH = "/v1/responses/compact"
SAID = [{"role": "user", "content": "We launch on Tuesday."}, {"role": "assistant", "content": "Understood."}]


def scripted(house: House, summary: str = "They launch on Tuesday.") -> Scripted:
    return house.upstream([says(json.dumps({"summary": summary}))], [says("On Tuesday.")])


async def test_the_next_request_gives_the_model_the_summary(house: House) -> None:
    upstream = scripted(house)
    found = await house.ask(PATH, {"model": MODEL, "input": SAID, "instructions": "Be brief.", "prompt_cache_key": "k"})
    compacted = CompactedResponse.model_validate(found)
    (item,) = compacted.output
    assert item.type == "compaction"
    assert "Tuesday" not in json.dumps(found)
    asked = upstream.bodies[0]
    assert [content["role"] for content in asked["contents"]] == ["user", "model", "user"]
    assert asked["systemInstruction"] == {"parts": [{"text": "Be brief."}]}
    assert asked["generationConfig"]["responseJsonSchema"]["required"] == ["summary"]
    await house.respond([*found["output"], {"role": "user", "content": "When?"}])
    (content,) = upstream.bodies[1]["contents"]
    assert content["role"] == "user"
    assert content["parts"][0]["text"].endswith("They launch on Tuesday.")
    assert content["parts"][1] == {"text": "When?"}


async def test_a_stored_history_with_calls_is_compacted_without_tools(home: House, gemini: StrictGemini) -> None:
    asked = await home.respond("What is the weather in Tokyo?", tools=TOOLS)
    (made,) = calls(asked)
    answered = await home.respond([output(made, temp=72)], previous_response_id=asked["id"])
    found = await home.ask(PATH, {"model": MODEL, "previous_response_id": answered["id"]})
    assert found["object"] == "response.compaction"
    assert not gemini.requests[-1]["body"].get("tools")
    assert gemini.refused == []
    assert found["usage"]["total_tokens"] > 0
    assert (await home.http.get(f"/v1/responses/{found['id']}")).status_code == 404


async def test_the_session_s_tools_take_no_part(home: House, gemini: StrictGemini) -> None:
    async def get_news() -> str:
        raise AssertionError("nobody asked for it")

    home.proxy.tools.add("get_news", get_news)
    await home.open()
    found = await home.ask(PATH, {"model": MODEL, "input": "call get_news {}"})
    assert found["object"] == "response.compaction"
    assert not gemini.requests[-1]["body"].get("tools")
    assert len(gemini.requests) == 1


async def test_input_items_show_a_compaction_item_as_it_was_given(house: House) -> None:
    scripted(house)
    (item,) = (await house.ask(PATH, {"model": MODEL, "input": SAID}))["output"]
    response = await house.respond([item, {"role": "user", "content": "When?"}])
    listed = (await house.http.get(f"/v1/responses/{response['id']}/input_items?order=asc")).json()["data"]
    assert listed[0] == item


@pytest.mark.parametrize("change", ["", "x", "gAAAAA", "é"])
async def test_a_made_up_summary_is_refused(house: House, change: str) -> None:
    item = {"type": "compaction", "id": "cmp_1", "encrypted_content": change}
    error = (await house.respond([item, {"role": "user", "content": "When?"}], status=400))["error"]
    assert error["param"] == "input[0].encrypted_content"
    assert "/v1/responses/compact" in error["message"]


async def test_another_store_does_not_open_it(house: House) -> None:
    scripted(house)
    (item,) = (await house.ask(PATH, {"model": MODEL, "input": SAID}))["output"]
    other = House(state=house.proxy.settings.state)
    await other.open()
    error = (await other.respond([item, {"role": "user", "content": "When?"}], status=400))["error"]
    assert error["param"] == "input[0].encrypted_content"
    await other.close()


async def test_another_session_does_not_open_it(house: House) -> None:
    """Its client could have the model repeat what it cannot read itself."""
    upstream = scripted(house)
    (item,) = (await house.ask(PATH, {"model": MODEL, "input": SAID}))["output"]
    given = [item, {"role": "user", "content": "When?"}]
    asked = {"model": MODEL, "input": given}
    for path in ("/v1/responses", PATH):
        error = (await house.ask(path, asked, status=400, x_graft_session="theirs"))["error"]
        assert error["param"] == "input[0].encrypted_content"
    assert len(upstream.bodies) == 1
    assert await house.respond(given)


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"input": SAID}, "model"),
        ({"model": MODEL}, "input"),
        ({"model": MODEL, "input": ""}, "input"),
        ({"model": MODEL, "input": SAID, "stream": True}, "stream"),
        ({"model": MODEL, "input": 1}, "input"),
        ({"model": MODEL, "input": [{"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}]}, None),
        ({"model": MODEL, "input": []}, "input"),
    ],
)
async def test_what_is_wrong_is_named(house: House, body: Document, param: str | None) -> None:
    error = (await house.ask(PATH, body, status=400))["error"]
    assert param is None or error["param"] == param, error
    assert error["type"] == "invalid_request_error"


@pytest.mark.parametrize("answer", ["no JSON", "{}", '{"summary": " "}', '{"summary": 1}', "[]"])
async def test_an_answer_without_a_summary_is_an_error(house: House, answer: str) -> None:
    house.upstream([says(answer)])
    error = (await house.ask(PATH, {"model": MODEL, "input": SAID}, status=502))["error"]
    assert error["message"] == "toolgraft: the model wrote no summary"
