"""What `/v1/gemini` refuses, and in which words: Google's."""

import asyncio

import pytest

from addon.core.framing.documents import Document
from addon.fake_gemini.server import StrictGemini
from tests.gateway.conftest import MODEL, House, until
from tests.gateway.test_gemini import TWO, WEATHER, answer, calls, text
from tests.loop.conftest import says

BAD: list[tuple[Document, str]] = [
    ({"input": "x"}, "model"),
    ({"model": "", "input": "x"}, "model"),
    ({"model": 3, "input": "x"}, "model"),
    ({"model": "a/../b", "input": "x"}, "model"),
    ({"model": MODEL}, "input"),
    ({"model": MODEL, "input": []}, "input"),
    ({"model": MODEL, "input": 7}, "input[0]"),
    ({"model": MODEL, "input": [{}]}, "input[0]"),
    ({"model": MODEL, "input": ["a", {"parts": ["b"]}]}, "input[1]"),
    ({"model": MODEL, "input": {"parts": []}}, "input[0].parts"),
    ({"model": MODEL, "input": "x", "tools": ["t"]}, "tools"),
    ({"model": MODEL, "input": "x", "toolConfig": "ANY"}, "toolConfig"),
    ({"model": MODEL, "input": "x", "generationConfig": []}, "generationConfig"),
    ({"model": MODEL, "input": "x", "systemInstruction": 1}, "systemInstruction"),
    ({"model": MODEL, "input": "x", "safetySettings": [1]}, "safetySettings"),
    ({"model": MODEL, "input": "x", "stream": "yes"}, "stream"),
    ({"model": MODEL, "input": "x", "conversation": ""}, "conversation"),
    ({"model": MODEL, "input": "x", "conversation": "a\nb"}, "conversation"),
    ({"model": MODEL, "input": "x", "conversation": {"name": "c"}}, "conversation"),
    ({"model": MODEL, "input": "x", "conversation": "c" * 257}, "conversation"),
    ({"model": MODEL, "input": "x", "previousResponseId": 1}, "previousResponseId"),
    ({"model": MODEL, "input": "x", "previousResponseId": "resp_none"}, "previous_response_id"),
    ({"model": MODEL, "input": "x", "conversation": "c", "previousResponseId": "r"}, "previous_response_id"),
    ({"model": MODEL, "input": "x", "temperature": 1}, "temperature"),
    ({"model": MODEL, "input": "x", "toolConfig": {}, "tool_config": {}}, "tool_config"),
    ({"model": MODEL, "input": {"functionResponse": 1}}, "functionResponse"),
    ({"model": MODEL, "input": {"functionResponse": {"name": "f", "response": "72"}}}, "functionResponse.response"),
    ({"model": MODEL, "input": {"functionResponse": {"response": {}}}}, "functionResponse"),
    ({"model": MODEL, "input": {"functionResponse": {"id": "x9", "name": "f", "response": {}}}}, "input"),
]


@pytest.mark.parametrize(("document", "field"), BAD)
async def test_a_wrong_field_is_named(house: House, document: Document, field: str) -> None:
    refused = (await house.ask("/v1/gemini", document, 400))["error"]
    assert (refused["code"], refused["status"]) == (400, "INVALID_ARGUMENT")
    assert refused["details"][0]["fieldViolations"][0]["field"] == field
    assert not house.outside.callers


@pytest.mark.parametrize("content", [b"{", b"[]", b"", b'{"model": NaN}'])
async def test_a_body_that_is_no_object_is_refused(house: House, content: bytes) -> None:
    refused = await house.http.post("/v1/gemini", content=content, headers={"content-type": "application/json"})
    assert (refused.status_code, refused.json()["error"]["status"]) == (400, "INVALID_ARGUMENT")


async def test_refusals_at_the_door_are_in_google_s_words_too(house: House) -> None:
    wrong_type = await house.http.post("/v1/gemini", content=b"{}", headers={"content-type": "text/plain"})
    assert (wrong_type.status_code, wrong_type.json()["error"]["code"]) == (415, 415)
    wrong_method = await house.http.get("/v1/gemini")
    assert (wrong_method.status_code, wrong_method.headers["allow"]) == (405, "POST")
    assert wrong_method.json()["error"]["code"] == 405
    nothing = await house.http.get("/v1/gemini/models")
    assert (nothing.status_code, nothing.json()["error"]["status"]) == (404, "NOT_FOUND")
    page = await house.http.post("/v1/gemini", json={}, headers={"origin": "https://evil.example"})
    assert (page.status_code, page.json()["error"]["status"]) == (403, "PERMISSION_DENIED")


async def test_a_session_has_a_name_that_fits(house: House) -> None:
    refused = await house.ask("/v1/gemini", {"model": MODEL, "input": "x"}, 400, x_graft_session="a b")
    assert "x-graft-session: 'a b' must be a name of the form" in refused["error"]["message"]


async def test_answers_to_calls_that_are_not_open_are_named(home: House, gemini: StrictGemini) -> None:
    (call,) = calls(await home.gemini("the weather in Oslo", tools=[WEATHER], conversation="c"))
    given = [answer(call, a=1), answer({"id": "x7", "name": "get_time"}), answer({"id": "x8", "name": "get_time"})]
    refused = await home.gemini(given, 400, conversation="c")
    assert "'x7', 'x8'" in refused["error"]["message"]
    assert repr(call["id"]) not in refused["error"]["message"]
    assert "1" in text(await home.gemini([answer(call, a=1)], conversation="c")), "nothing was changed"
    assert len(gemini.requests) == 2


async def test_words_before_the_answers_that_are_owed_are_refused(home: House, gemini: StrictGemini) -> None:
    one, other = calls(await home.gemini(TWO, tools=[WEATHER], conversation="c"))
    refused = await home.gemini("Well?", 400, conversation="c")
    assert f"get_weather ({one['id']}), get_time ({other['id']})" in refused["error"]["message"]
    refused = await home.gemini([answer(one, a=1), "Well?"], 400, conversation="c")
    assert one["id"] not in refused["error"]["message"]
    assert len(gemini.requests) == 1


async def test_the_upstream_s_refusal_is_the_caller_s_and_is_not_kept(home: House, gemini: StrictGemini) -> None:
    for stream in (False, True):
        refused = await home.gemini("Hi", 400, generationConfig={"temperatur": 1}, stream=stream, conversation="c")
        assert refused["error"]["message"] == gemini.requests[-1]["error"]
    await home.gemini("Hi", conversation="c")
    assert len(gemini.requests[-1]["body"]["contents"]) == 1


async def test_a_stream_that_breaks_off_ends_with_an_error_and_is_not_kept(house: House) -> None:
    upstream = house.upstream([says("a"), says("b")], [says("c"), {"error": {"code": 503, "message": "no"}}])
    broken = await house.gemini_stream("Hi", conversation="c")
    assert "no finishReason" in broken[-1]["error"]["message"]
    failed = await house.gemini_stream("Hi", conversation="c")
    assert (text(failed[0]), failed[-1]["error"]["message"]) == ("c", "no")
    upstream.rounds.append([says("d", finish="STOP")])
    await house.gemini_stream("Hi", conversation="c")
    assert len(upstream.bodies[-1]["contents"]) == 1


async def test_an_answer_that_says_nothing_is_not_kept(house: House) -> None:
    silent = {"candidates": [{"finishReason": "SAFETY", "index": 0}]}
    upstream = house.upstream([silent], [{"promptFeedback": {"blockReason": "SAFETY"}}], [says("a", finish="STOP")])
    assert (await house.gemini("one", conversation="c"))["candidates"] == silent["candidates"]
    assert (await house.gemini_stream("two", conversation="c"))[0]["promptFeedback"] == {"blockReason": "SAFETY"}
    await house.gemini("three", conversation="c")
    assert len(upstream.bodies[-1]["contents"]) == 1


async def test_one_request_of_a_conversation_at_a_time(house: House) -> None:
    released, done = asyncio.Event(), says("a", finish="STOP")
    upstream = house.upstream([released, done], [done], [done])
    first = asyncio.ensure_future(house.gemini("one", conversation="c"))
    await until(lambda: bool(upstream.bodies))
    refused = await house.gemini("two", 409, conversation="c")
    assert refused["error"]["status"] == "ABORTED"
    assert "conversation 'c'" in refused["error"]["message"]
    await house.gemini("elsewhere", conversation="d")
    released.set()
    await first
    await house.gemini("two", conversation={"id": "c"})
    assert [c["parts"][0]["text"] for c in upstream.bodies[-1]["contents"]] == ["one", "a", "two"]
