"""`/v1/responses`: conversations, functions of the client's, streams, and what is kept of it all."""

import json
from typing import Any

import pytest

from addon.core.framing.documents import Document
from addon.fake_gemini.server import StrictGemini
from tests.gateway.conftest import House
from tests.loop.conftest import call, says

WEATHER: Document = {
    "type": "function",
    "name": "get_weather",
    "description": "The weather of a city.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}
TIME: Document = {"type": "function", "name": "get_time", "parameters": {"type": "object", "properties": {}}}
TOOLS = [WEATHER, TIME]
TWO = 'call get_weather {"city": "Oslo"} and call get_time {}'


def calls(response: Document) -> list[Document]:
    return [item for item in response["output"] if item["type"] == "function_call"]


def text(response: Document) -> str:
    messages = [item for item in response["output"] if item["type"] == "message"]
    return "".join(part["text"] for item in messages for part in item["content"])


def output(call: Document, **result: Any) -> Document:
    return {"type": "function_call_output", "call_id": call["call_id"], "output": json.dumps(result)}


async def test_a_question_is_answered(home: House, gemini: StrictGemini) -> None:
    response = await home.respond("What is 2+2?")
    assert (response["object"], response["status"], text(response)) == ("response", "completed", "2 + 2 = 4.")
    (request,) = gemini.requests
    assert request["body"] == {"contents": [{"role": "user", "parts": [{"text": "What is 2+2?"}]}]}


async def test_a_call_comes_back_and_its_output_goes_in(home: House, gemini: StrictGemini) -> None:
    asked = await home.respond("What is the weather in Tokyo?", tools=TOOLS, conversation="trip")
    (made,) = calls(asked)
    assert (made["name"], made["arguments"]) == ("get_weather", '{"city":"Tokyo"}')
    answered = await home.respond([output(made, temp=72)], conversation={"id": "trip"})
    assert "72" in text(answered)
    assert [tool["name"] for tool in answered["tools"]] == ["get_weather", "get_time"]
    assert "thoughtSignature" in gemini.requests[1]["body"]["contents"][1]["parts"][0]
    assert (gemini.refused, gemini.dummy_signatures) == ([], 0)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("by", ["conversation", "previous_response_id", "items"])
async def test_ten_turns_with_functions_over_restarts(home: House, gemini: StrictGemini, stream: bool, by: str) -> None:
    last: Document = {}
    items: list[Document] = []

    async def ask(given: list[Document], **more: Any) -> Document:
        nonlocal last
        if by == "conversation":
            more["conversation"] = "long"
        elif by == "items":
            items.extend(given)
            given, more = items, {"tools": TOOLS, "store": False}
        elif last:
            more["previous_response_id"] = last["id"]
        last = (
            (await home.respond_stream(given, **more))[-1]["response"] if stream else await home.respond(given, **more)
        )
        items.extend(last["output"])
        await home.restart()
        return last

    for n in range(10):
        words = {"role": "user", "content": f"{TWO} then call get_time {{}}"}
        first = await ask([words], **({"tools": TOOLS} if n == 0 else {}))
        one, other = calls(first)
        (third,) = calls(await ask([output(other, hour=n), output(one, celsius=n)]))
        assert f'get_weather returned {{"celsius": {n}}}' in text(await ask([output(third, hour=n)]))
    assert (gemini.refused, gemini.dummy_signatures) == ([], 0)
    assert len(gemini.requests) == 30


async def test_a_stream_tells_each_thing_once(home: House) -> None:
    events = await home.respond_stream(f"say One moment {TWO}", tools=TOOLS)
    kinds = [event["type"] for event in events]
    assert kinds[:2] == ["response.created", "response.in_progress"]
    assert kinds[-1] == "response.completed"
    for once in ("response.created", "response.in_progress", "response.completed"):
        assert kinds.count(once) == 1
    assert kinds.count("response.function_call_arguments.done") == 2
    deltas = "".join(e["delta"] for e in events if e["type"] == "response.output_text.delta")
    assert deltas == text(events[-1]["response"]) == "One moment"


@pytest.mark.parametrize("stream", [False, True])
async def test_outputs_one_by_one_go_up_with_the_last(home: House, gemini: StrictGemini, stream: bool) -> None:
    async def ask(given: Any, **more: Any) -> Document:
        if stream:
            found: Document = (await home.respond_stream(given, conversation="c", **more))[-1]["response"]
            return found
        return await home.respond(given, conversation="c", **more)

    one, other = calls(await ask(TWO, tools=TOOLS))
    owed = await ask([output(other, hour=9)])
    assert [item["call_id"] for item in calls(owed)] == [one["call_id"]]
    assert len(gemini.requests) == 1, "nothing goes up before the last"
    await home.restart()
    assert 'get_time returned {"hour": 9}' in text(await ask([output(one, celsius=3)]))
    assert text(await ask("What is 1+1?")) == "1 + 1 = 2."
    assert not gemini.refused


async def test_one_by_one_by_the_id_of_the_response_before(home: House, gemini: StrictGemini) -> None:
    first = await home.respond(TWO, tools=TOOLS)
    one, other = calls(first)
    owed = await home.respond([output(other, hour=9)], previous_response_id=first["id"])
    last = await home.respond([output(one, celsius=3)], previous_response_id=owed["id"])
    assert 'get_time returned {"hour": 9}' in text(last)
    assert not gemini.refused


async def test_calls_alike_that_the_model_gave_no_ids_keep_their_own_outputs(house: House) -> None:
    alike = [call("get_weather", city="Oslo"), call("get_weather", city="Rome")]
    upstream = house.upstream([says(*alike, finish="STOP")], [says("done", finish="STOP")], [says("a", finish="STOP")])
    one, other = calls(await house.respond("Both?", tools=TOOLS, conversation="c"))
    await house.respond([output(other, city="Rome")], conversation="c")
    await house.respond([output(one, city="Oslo")], conversation="c")
    await house.respond("And now?", conversation="c")
    responses = [{"functionResponse": {"name": "get_weather", "response": {"city": c}}} for c in ("Oslo", "Rome")]
    for body in upstream.bodies[1:]:
        assert [body["contents"][2]] == [{"role": "user", "parts": responses}]
    assert len(upstream.bodies[-1]["contents"]) == 5


async def test_system_messages_of_earlier_requests_stay_in_force(home: House, gemini: StrictGemini) -> None:
    await home.respond([{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Hi"}], conversation="c")
    await home.respond("Hi", conversation="c", instructions="Be short.")
    instructions = [[part["text"] for part in r["body"]["systemInstruction"]["parts"]] for r in gemini.requests]
    assert instructions == [["Be kind."], ["Be short.", "Be kind."]]


async def test_a_response_is_shown_again_until_it_is_deleted(home: House) -> None:
    made = await home.respond("What is 2+2?", metadata={"a": "b"})
    path = f"/v1/responses/{made['id']}"
    assert (await home.http.get(path)).json() == made
    assert (await home.http.get(path, headers={"x-graft-session": "other"})).status_code == 404
    streamed = await home.http.get(f"{path}?stream=true")
    assert (streamed.status_code, streamed.json()["error"]["param"]) == (400, "stream")
    after = await home.respond("What is 1+1?", previous_response_id=made["id"])
    deleted = await home.http.delete(path)
    assert deleted.json() == {"id": made["id"], "object": "response", "deleted": True}
    for gone in (await home.http.get(path), await home.http.delete(path)):
        assert (gone.status_code, gone.json()["error"]["type"]) == (404, "invalid_request_error")
    refused = await home.respond("x", 400, previous_response_id=made["id"])
    assert refused["error"]["code"] == "previous_response_not_found"
    assert text(await home.respond("What is 3+3?", previous_response_id=after["id"])) == "3 + 3 = 6."


async def test_the_input_of_a_response_is_listed_as_long_as_it_is_there(home: House) -> None:
    first = await home.respond(TWO, tools=TOOLS, conversation="c")
    one, _ = calls(first)
    owed = await home.respond([output(one, n=1)], conversation="c")
    await home.restart()
    (item,) = (await home.http.get(f"/v1/responses/{owed['id']}/input_items")).json()["data"]
    assert item == {**output(one, n=1), "id": item["id"], "status": "completed"}
    path = f"/v1/responses/{first['id']}"
    (item,) = (await home.http.get(f"{path}/input_items?order=asc")).json()["data"]
    assert item["content"] == [{"type": "input_text", "text": TWO}]
    assert (await home.http.get(path)).json() == first
    refused = await home.http.get(f"{path}/input_items?limit=0")
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "limit")
    elsewhere = await home.http.get(f"{path}/input_items", headers={"x-graft-session": "other"})
    assert elsewhere.status_code == 404
    await home.http.delete(path)
    assert (await home.http.get(f"{path}/input_items")).status_code == 404


async def test_an_unstored_response_can_only_be_followed_by_outputs_of_its_calls(
    home: House, gemini: StrictGemini
) -> None:
    made = await home.respond("the weather in Oslo", tools=TOOLS, store=False)
    assert (await home.http.get(f"/v1/responses/{made['id']}")).status_code == 404
    refused = await home.respond("x", 400, previous_response_id=made["id"])
    assert refused["error"]["param"] == "previous_response_id"
    (one,) = calls(made)
    given = [{"role": "user", "content": "the weather in Oslo"}, *made["output"], output(one, celsius=3)]
    assert "3" in text(await home.respond(given, tools=TOOLS, store=False))
    assert (gemini.refused, gemini.dummy_signatures) == ([], 0)


async def test_a_conversation_may_pass_from_door_to_door(home: House, gemini: StrictGemini) -> None:
    assert calls(await home.respond("the weather in Oslo", tools=TOOLS, conversation="c"))
    answer = {"functionResponse": {"name": "get_weather", "response": {"celsius": 3}}}
    await home.gemini(answer, conversation="c")
    assert text(await home.respond("What is 2+2?", conversation="c")) == "2 + 2 = 4."
    assert (gemini.refused, gemini.dummy_signatures) == ([], 0)


async def test_a_long_wait_for_tools_is_bridged_by_a_comment(house: House) -> None:
    house.upstream([says({"text": "hm", "thought": True}), says("a", finish="STOP")])
    answer = await house.post("/v1/responses", {"model": "gemini-3-flash", "input": "Hi", "stream": True})
    assert "\n\n: keep-alive\n\n" in answer.text


@pytest.mark.parametrize("finish", ["MALFORMED_FUNCTION_CALL", "OTHER"])
async def test_an_answer_that_fails_is_told_and_not_kept(house: House, finish: str) -> None:
    end = says(finish=finish)
    upstream = house.upstream([end], [end], [end], [end], [says("a", finish="STOP")])
    assert (await house.respond("one", conversation="c"))["status"] == "failed"
    assert (await house.respond_stream("one", conversation="c"))[-1]["type"] == "response.failed"
    upstream.rounds[:] = [[says("a", finish="STOP")]]
    await house.respond("two", conversation="c")
    assert len(upstream.bodies[-1]["contents"]) == 1


@pytest.mark.parametrize("grafted", [True, False])
@pytest.mark.parametrize("stream", [True, False])
async def test_the_message_about_a_wrong_call_is_told_unless_the_tool_is_hidden(
    house: House, stream: bool, grafted: bool
) -> None:
    async def get_news() -> str:
        return "rain"

    if grafted:
        house.proxy.tools.add("get_news", get_news)
        await house.open()
    end = says(finish="MALFORMED_FUNCTION_CALL")
    end["candidates"][0]["finishMessage"] = "Malformed function call: get_news(x=1)"
    house.upstream([end], [end])
    asked = house.respond_stream("one") if stream else house.respond("one")
    response = json.dumps(await asked)
    assert "MALFORMED_FUNCTION_CALL" in response
    assert ("get_news(x=1)" in response) is not grafted


async def test_a_grafted_tool_is_run_beside_the_client_s_own(home: House, gemini: StrictGemini) -> None:
    async def get_news() -> str:
        return "rain"

    home.proxy.tools.add("get_news", get_news)
    await home.open()
    first = await home.respond(
        "call get_news {} then call get_time {} and call get_news {}", tools=TOOLS, conversation="c"
    )
    assert [one["name"] for one in calls(first)] == ["get_time"]
    last = await home.respond([output(calls(first)[0], hour=3)], conversation="c")
    assert text(last).count('get_news returned {"result": "rain"}.') == 2
    assert text(await home.respond("What is 1+1?", conversation="c")) == "1 + 1 = 2."
    assert (gemini.refused, gemini.dummy_signatures) == ([], 0)


@pytest.mark.parametrize("reason", ["STOP", "MAX_TOKENS"])
@pytest.mark.parametrize("stream", [False, True])
async def test_an_answer_without_content_can_be_continued(house: House, stream: bool, reason: str) -> None:
    empty = {"candidates": [{"finishReason": reason, "index": 0}]}
    upstream = house.upstream([empty], [says("a", finish="STOP")])
    if stream:
        silent = (await house.respond_stream("one"))[-1]["response"]
    else:
        silent = await house.respond("one")
    assert silent["output"] == []
    assert text(await house.respond("two", previous_response_id=silent["id"])) == "a"
    assert "one" in str(upstream.bodies[-1]["contents"])


@pytest.mark.parametrize("by", ["conversation", "previous_response_id"])
async def test_a_client_may_send_all_outputs_since_its_question(home: House, gemini: StrictGemini, by: str) -> None:
    """As the AI SDK does in a conversation: the question and the outputs of all steps, without the calls."""
    question = {"role": "user", "content": f"{TWO} then call get_time {{}} then call get_time {{}}"}
    given: list[Document] = [question]
    more: Document = {"conversation": "c"} if by == "conversation" else {}
    response = await home.respond(given, tools=TOOLS, **more)
    for n in range(3):
        given += [output(one, n=n) for one in calls(response)]
        before = {"previous_response_id": response["id"]} if by == "previous_response_id" else more
        response = await home.respond(given, **before)
    assert 'get_time returned {"n": 2}' in text(response)
    contents = gemini.requests[-1]["body"]["contents"]
    assert [content["role"] for content in contents] == ["user", "model"] * 3 + ["user"]
    assert (gemini.refused, gemini.dummy_signatures) == ([], 0)


async def test_an_earlier_output_may_not_be_changed(home: House) -> None:
    question = {"role": "user", "content": "call get_time {} then call get_time {}"}
    (first,) = calls(await home.respond([question], tools=TOOLS, conversation="c"))
    (second,) = calls(await home.respond([question, output(first, hour=1)], conversation="c"))
    given = [question, output(first, hour=2), output(second, hour=3)]
    error = (await home.respond(given, 400, conversation="c"))["error"]
    assert (error["param"], "differs" in error["message"]) == ("input[1].output", True)


async def test_thoughts_that_come_back_as_a_message_are_not_the_model_s_words(
    home: House, gemini: StrictGemini
) -> None:
    """As pydantic-ai does for models whose reasoning items it does not know."""

    async def get_news() -> str:
        return "rain"

    home.proxy.tools.add("get_news", get_news)
    await home.open()
    items: list[Document] = [
        {"role": "user", "content": "call get_time {} then call get_news {} then call get_time {}"}
    ]
    for thoughts in ("<think>\n\n</think>", "<think>\nThe news,\nthen the time.\n</think>\n"):
        (made,) = calls(await home.respond(items, tools=TOOLS, store=False))
        items += [made, {"role": "assistant", "content": thoughts}, output(made, hour=9)]
    assert "rain" in text(await home.respond(items, tools=TOOLS, store=False))
    assert not [
        part
        for content in gemini.requests[-1]["body"]["contents"]
        for part in content["parts"]
        if "think" in str(part.get("text"))
    ]
    assert (gemini.refused, gemini.dummy_signatures) == ([], 0)


async def test_a_stored_response_may_be_asked_for_with_what_it_includes(home: House) -> None:
    include = ["reasoning.encrypted_content", "message.output_text.logprobs"]
    response = await home.respond("What is 2+2?", include=include)
    path = f"/v1/responses/{response['id']}"
    found = await home.http.get(path, params={"include[]": include})
    assert found.json() == response
    refused = await home.http.get(path, params={"include": "file_search_call.results"})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "include")
