"""`/v1/gemini`: conversations, streams and functions of the client's."""

from typing import Any

import pytest

from addon.core.framing.documents import Document
from addon.fake_gemini.server import StrictGemini
from tests.gateway.conftest import MODEL, House
from tests.loop.conftest import says

WEATHER: Document = {
    "functionDeclarations": [
        {
            "name": "get_weather",
            "description": "The weather of a city.",
            "parameters": {"type": "OBJECT", "properties": {"city": {"type": "STRING"}}, "required": ["city"]},
        },
        {"name": "get_time", "description": "The hour.", "parameters": {"type": "OBJECT", "properties": {}}},
    ]
}
TWO = 'call get_weather {"city": "Oslo"} and call get_time {}'


def parts(document: Document) -> list[Document]:
    found: list[Document] = document["candidates"][0]["content"]["parts"]
    return found


def text(*documents: Document) -> str:
    return "".join(part.get("text", "") for one in documents for part in parts(one) if not part.get("thought"))


def calls(*documents: Document) -> list[Document]:
    return [part["functionCall"] for one in documents for part in parts(one) if "functionCall" in part]


def answer(call: Document, **response: Any) -> Document:
    return {"functionResponse": {"id": call["id"], "name": call["name"], "response": response}}


async def test_a_question_is_answered(home: House, gemini: StrictGemini) -> None:
    answered = await home.gemini("What is 2+2?")
    assert text(answered) == "2 + 2 = 4."
    assert answered["candidates"][0]["finishReason"] == "STOP"
    (request,) = gemini.requests
    assert request["path"] == f"/v1beta/models/{MODEL}:generateContent"
    assert request["body"] == {"contents": [{"role": "user", "parts": [{"text": "What is 2+2?"}]}]}
    assert not gemini.refused


async def test_a_call_comes_back_and_its_answer_goes_in(home: House, gemini: StrictGemini) -> None:
    asked = await home.gemini("What is the weather in Tokyo?", tools=[WEATHER], conversation="trip")
    (call,) = calls(asked)
    assert (call["name"], call["args"]) == ("get_weather", {"city": "Tokyo"})
    answered = await home.gemini([answer(call, temp=72)], conversation="trip")
    assert "72" in text(answered)
    assert gemini.requests[1]["body"]["contents"][1] == asked["candidates"][0]["content"], "signature and all"
    assert gemini.requests[1]["body"]["tools"] == [WEATHER], "the conversation's"
    assert (gemini.refused, gemini.dummy_signatures) == ([], 0)


@pytest.mark.parametrize("stream", [False, True])
async def test_ten_turns_with_functions_over_restarts(home: House, gemini: StrictGemini, stream: bool) -> None:
    async def ask(given: Any, **more: Any) -> list[Document]:
        if stream:
            return await home.gemini_stream(given, conversation="long", **more)
        return [await home.gemini(given, conversation="long", **more)]

    for n in range(10):
        first = await ask(f"{TWO} then call get_time {{}}", **({"tools": [WEATHER]} if n == 0 else {}))
        await home.restart()
        one, other = calls(*first)
        second = await ask([answer(other, hour=n), answer(one, celsius=n)])
        await home.restart()
        (third,) = calls(*second)
        last = await ask([answer(third, hour=n)])
        assert f'get_weather returned {{"celsius": {n}}}' in text(*last)
    assert (gemini.refused, gemini.dummy_signatures) == ([], 0)
    assert len(gemini.requests) == 30


async def test_a_stream_is_events_of_one_response(home: House) -> None:
    events = await home.gemini_stream("What is 2+2?")
    assert text(*events) == "2 + 2 = 4."
    assert len({event["responseId"] for event in events}) == 1
    assert events[-1]["candidates"][0]["finishReason"] == "STOP"


async def test_answers_one_by_one_go_up_with_the_last(home: House, gemini: StrictGemini) -> None:
    one, other = calls(await home.gemini(TWO, tools=[WEATHER], conversation="c"))
    owed = await home.gemini([answer(other, hour=9)], conversation="c")
    assert calls(owed) == [one]
    assert "thoughtSignature" in parts(owed)[0]
    assert len(gemini.requests) == 1, "nothing goes up before the last"
    await home.restart()
    assert 'get_time returned {"hour": 9}' in text(await home.gemini([answer(one, celsius=3)], conversation="c"))
    answers = gemini.requests[1]["body"]["contents"][2]["parts"]
    assert [part["functionResponse"]["name"] for part in answers] == ["get_weather", "get_time"]
    assert text(await home.gemini("What is 1+1?", conversation="c")) == "1 + 1 = 2."
    assert not gemini.refused


async def test_an_answer_goes_on_from_the_one_before_by_its_id(home: House, gemini: StrictGemini) -> None:
    first = await home.gemini(TWO, tools=[WEATHER])
    one, other = calls(first)
    given = [answer(one, celsius=1), answer(other, hour=2)]
    for spelling in ("previousResponseId", "previous_response_id"):
        second = await home.gemini(given, **{spelling: first["responseId"]})
        assert '{"celsius": 1}' in text(second), "one may go on from an answer twice"
    assert not gemini.refused


@pytest.mark.parametrize(
    "given",
    [
        "What is 2+2?",
        {"text": "What is 2+2?"},
        ["What is", {"text": " 2+2?"}],
        {"parts": {"text": "What is 2+2?"}},
        [{"role": "user", "parts": [{"text": "What is 2+2?"}]}],
        [{"role": "user", "parts": ["Hi"]}, {"role": "model", "parts": ["Hello"]}, {"parts": ["What is 2+2?"]}],
    ],
)
async def test_input_is_a_text_or_parts_or_contents(home: House, given: Any) -> None:
    assert text(await home.gemini(given)) == "2 + 2 = 4."


async def test_both_spellings_fit_and_all_members_go_up(home: House, gemini: StrictGemini) -> None:
    more: Document = {
        "tool_config": {"function_calling_config": {"mode": "ANY", "allowed_function_names": ["get_time"]}},
        "system_instruction": "Be short.",
        "generation_config": {"temperature": 0.5},
        "safety_settings": [{"category": "HARM_CATEGORY_HARASSMENT", "threshold": "BLOCK_NONE"}],
    }
    answered = await home.gemini("Hi", tools=[WEATHER], **more)
    assert [call["name"] for call in calls(answered)] == ["get_time"]
    body = gemini.requests[0]["body"]
    assert body["systemInstruction"] == {"parts": [{"text": "Be short."}]}
    assert body["generationConfig"] == {"temperature": 0.5}
    assert body["safetySettings"] == more["safety_settings"]


async def test_tools_that_are_given_again_stand_in_for_those_before(home: House, gemini: StrictGemini) -> None:
    await home.gemini("Hi", tools=[WEATHER], conversation="c")
    await home.gemini("What is the weather in Oslo?", tools=[], conversation="c")
    await home.gemini("What is the weather in Oslo?", conversation="c")
    assert [request["body"].get("tools") for request in gemini.requests] == [[WEATHER], None, None]


async def test_structured_output_goes_up_as_it_is_whatever_tools_the_session_has(
    home: House, gemini: StrictGemini
) -> None:
    await home.proxy.declare({"name": "get_news"})
    config = {"responseMimeType": "application/json", "responseSchema": {"type": "OBJECT", "properties": {}}}
    for stream in (False, True):
        ask = home.gemini_stream if stream else home.gemini
        assert await ask("Hi", generationConfig=config)
        assert "tools" not in gemini.requests[-1]["body"]
    assert not gemini.refused


async def test_sessions_do_not_share_conversations(home: House, gemini: StrictGemini) -> None:
    asked = {"model": MODEL, "conversation": "c"}
    await home.ask("/v1/gemini", {**asked, "input": "one"}, x_graft_session="a")
    await home.ask("/v1/gemini", {**asked, "input": "two"}, x_graft_session="b")
    assert len(gemini.requests[1]["body"]["contents"]) == 1


@pytest.mark.parametrize("reason", ["STOP", "MAX_TOKENS"])
@pytest.mark.parametrize("stream", [False, True])
async def test_an_answer_without_content_can_be_continued(house: House, stream: bool, reason: str) -> None:
    empty = {"candidates": [{"finishReason": reason, "index": 0}]}
    upstream = house.upstream([empty], [says("a", finish="STOP")])
    silent = (await house.gemini_stream("one"))[-1] if stream else await house.gemini("one")
    answered = await house.gemini("two", previousResponseId=silent["responseId"])
    assert text(answered) == "a"
    assert "one" in str(upstream.bodies[-1]["contents"])
