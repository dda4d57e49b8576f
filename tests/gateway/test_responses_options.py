"""Options of `/v1/responses` that Gemini has under another name, names for models, and leniency."""

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx2
import pytest

from addon.core.framing.documents import Document
from addon.fake_gemini.server import StrictGemini
from addon.setting_types import ModelAlias, parse_model_alias
from tests.gateway.conftest import MODEL, House
from tests.gateway.test_compatible import Lists
from tests.gateway.test_responses import TOOLS, calls, output, text
from tests.loop.conftest import google_error, says

ALIASES = [parse_model_alias(one) for one in ("gpt-5=gemini-3-flash", "team/fast=models/gemini-2.5-flash")]

type Houses = Callable[..., Awaitable[House]]


async def test_gemini_gets_them_under_its_own_names(home: House, gemini: StrictGemini) -> None:
    given: Any = {
        "stop": ["END"],
        "top_logprobs": 2,
        "service_tier": "flex",
        "text": {"verbosity": "low"},
        "instructions": "Speak English.",
        "prompt_cache_key": "k",
        "tools": TOOLS,
        "tool_choice": {"type": "allowed_tools", "tools": [{"type": "function", "name": "get_time"}]},
    }
    response = await home.respond("What is 2+2?", **given)
    assert gemini.refused == []
    body = gemini.requests[-1]["body"]
    assert body["generationConfig"] == {"stopSequences": ["END"], "responseLogprobs": True, "logprobs": 2}
    assert body["serviceTier"] == "flex"
    assert [part["text"] for part in body["systemInstruction"]["parts"]] == [
        "Speak English.",
        "Answer as briefly as you can.",
    ]
    assert body["toolConfig"]["functionCallingConfig"] == {"mode": "VALIDATED", "allowedFunctionNames": ["get_time"]}
    assert response["text"]["verbosity"] == "low"
    assert response["tool_choice"]["mode"] == "auto"
    assert (response["service_tier"], response["prompt_cache_key"]) == ("flex", "k")


@pytest.fixture
async def houses(tmp_path: Path) -> AsyncIterator[Houses]:
    """Opens houses with these options."""
    opened: list[House] = []

    async def open_house(**options: Any) -> House:
        opened.append(house := House(state=tmp_path, **options))
        await house.open()
        return house

    yield open_house
    for house in opened:
        await house.close()


async def test_a_name_stands_for_its_model(houses: Houses, gemini: StrictGemini) -> None:
    house = await houses(upstream=gemini.url, model_aliases=ALIASES)
    response = await house.respond("What is 2+2?", model="gpt-5", reasoning={"effort": "low"})
    assert (response["model"], text(response)) == ("gemini-3-flash", "2 + 2 = 4.")
    chat = {"model": "team/fast", "messages": [{"role": "user", "content": "What is 2+2?"}]}
    completion = await house.ask("/v1/chat/completions", chat)
    assert completion["choices"][0]["message"]["content"] == "2 + 2 = 4."
    assert gemini.requests[-1]["body"]["model"] == "models/gemini-2.5-flash"
    compacted = await house.ask("/v1/responses/compact", {"model": "gpt-6", "input": "Hi"}, status=404)
    assert "gpt-6" in compacted["error"]["message"]


async def test_the_list_of_models_has_the_names(houses: Houses) -> None:
    house = await houses(upstream="http://gemini.test", model_aliases=ALIASES)
    house.proxy.upstream(Lists())
    listed = (await house.http.get("/v1/models")).json()["data"]
    google = {"object": "model", "owned_by": "google"}
    assert listed == [
        {"id": "models/gemini-3-flash", **google},
        {"id": "gpt-5", **google},
        {"id": "team/fast", **google},
    ]


async def test_a_model_is_shown_under_the_name_that_was_asked_for(houses: Houses, gemini: StrictGemini) -> None:
    house = await houses(upstream=gemini.url, model_aliases=ALIASES)
    model = (await house.http.get("/v1/models/team/fast")).json()
    assert (model["id"], model["display_name"]) == ("team/fast", "gemini-2.5-flash")
    missing = await house.http.get("/v1/models/gpt-9")
    assert missing.status_code == 404


@pytest.mark.parametrize(
    ("given", "word"),
    [("gpt-5", "NAME=MODEL"), ("=m", "NAME=MODEL"), ("a b=m", "NAME=MODEL"), ("a=b/c", "model's name"), ("a=", "name")],
)
def test_a_wrong_alias_is_refused(given: str, word: str) -> None:
    with pytest.raises(ValueError, match=word):
        parse_model_alias(given)


def test_an_alias_is_a_name_and_a_model() -> None:
    assert parse_model_alias("gpt-5=gemini-3-flash") == ModelAlias("gpt-5", "gemini-3-flash")


WANTS: Document = {
    "moderation": {"model": "m"},
    "é\r\nx": 1,
    "reasoning": {"mode": "pro"},
    "tools": [{"type": "mcp", "server_url": "https://x"}, *TOOLS],
}


@pytest.mark.parametrize("stream", [False, True])
async def test_what_gemini_does_not_have_is_ignored_and_listed(
    houses: Houses, gemini: StrictGemini, stream: bool
) -> None:
    house = await houses(upstream=gemini.url, lenient="on")
    answer = await house.post("/v1/responses", {"model": MODEL, "input": "What is 2+2?", "stream": stream, **WANTS})
    assert answer.status_code == 200, answer.text
    assert "2 + 2 = 4." in answer.text
    assert answer.headers["x-graft-ignored"] == "%C3%A9%0D%0Ax, moderation, tools[0], reasoning.mode"
    names = [tool["name"] for tool in gemini.requests[-1]["body"]["tools"][0]["functionDeclarations"]]
    assert names == ["get_weather", "get_time"]
    plain = await house.post("/v1/responses", {"model": MODEL, "input": "Hi", "stream": stream})
    assert "x-graft-ignored" not in plain.headers
    wrong = await house.respond("Hi", 400, temperature=9)
    assert wrong["error"]["param"] == "temperature"


async def test_what_is_ignored_when_tokens_are_counted_is_listed_too(houses: Houses, gemini: StrictGemini) -> None:
    house = await houses(upstream=gemini.url, lenient="on")
    answer = await house.post("/v1/responses/input_tokens", {"model": MODEL, "input": "Hi", **WANTS})
    assert answer.status_code == 200, answer.text
    assert answer.headers["x-graft-ignored"] == "%C3%A9%0D%0Ax, moderation, tools[0], reasoning.mode"


@pytest.mark.parametrize(
    ("given", "param", "code"),
    [
        ({"background": "yes"}, "background", "invalid_type"),
        ({"moderation": {"model": "m"}}, "moderation", "unsupported_parameter"),
        ({"reasoning": {"effort": "xhigh"}}, "reasoning.effort", "unsupported_value"),
        ({"tools": [{"type": "code_interpreter"}]}, "tools[0].type", "unsupported_value"),
        ({"no_such": 1}, "no_such", "unknown_parameter"),
        ({"temperature": 9}, "temperature", "invalid_value"),
    ],
)
async def test_a_refusal_has_openai_s_code_and_stores_nothing(
    home: House, gemini: StrictGemini, given: Document, param: str, code: str
) -> None:
    error = (await home.respond("Hi", 400, conversation="c", **given))["error"]
    assert (error["type"], error["param"], error["code"]) == ("invalid_request_error", param, code)
    assert gemini.requests == []
    assert await home.store.conversation("default", "c") is None


async def test_log_probabilities_of_an_answer(house: House) -> None:
    document = says("4", finish="STOP")
    document["candidates"][0]["logprobsResult"] = {"chosenCandidates": [{"token": "4", "logProbability": -0.1}]}
    house.upstream([document])
    response = await house.respond("2+2?", include=["message.output_text.logprobs"])
    (found,) = response["output"][0]["content"][0]["logprobs"]
    assert (found["token"], found["logprob"], json.dumps(found["bytes"])) == ("4", -0.1, "[52]")


def too_long() -> httpx2.Response:
    error = google_error(400, "INVALID_ARGUMENT")
    error["error"]["message"] = "The input token count (3000) exceeds the maximum number of tokens allowed (1000)."
    return httpx2.Response(400, json=error)


@pytest.mark.parametrize("stream", [False, True])
async def test_the_oldest_turns_of_a_history_that_is_too_long_are_left_out(house: House, stream: bool) -> None:
    upstream = house.upstream(
        [says("Well, " * 50, finish="STOP")], [says("b", finish="STOP")], too_long(), [says("c", finish="STOP")]
    )
    for words in ("one", "two"):
        await house.respond(words, conversation="c")
    given: Any = {"truncation": "auto", "conversation": "c"}
    response = (
        (await house.respond_stream("three", **given))[-1]["response"]
        if stream
        else await house.respond("three", **given)
    )
    assert (response["truncation"], text(response)) == ("auto", "c")
    sizes = [len(body["contents"]) for body in upstream.bodies]
    assert sizes == [1, 3, 5, 3]
    assert upstream.bodies[-1]["contents"][0]["parts"] == [{"text": "two"}]
    assert len(await house.store.history("default", response["id"])) == 3, "the conversation keeps all of it"
    upstream.rounds = [[says("d", finish="STOP")]]
    assert text(await house.respond("three", **given)) == "d", "the answer was delivered, so this is a new request"


@pytest.mark.parametrize(
    ("given", "rounds"), [({}, 1), ({"truncation": "disabled"}, 1), ({"truncation": "auto"}, 1)], ids=str
)
async def test_an_input_that_cannot_be_shorter_is_refused(house: House, given: Document, rounds: int) -> None:
    upstream = house.upstream(too_long())
    error = (await house.respond("one", 400, **given))["error"]
    assert "maximum number of tokens" in error["message"]
    assert len(upstream.bodies) == rounds


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("most", [1, 2, 3])
async def test_the_session_s_tools_are_called_so_often_and_no_more(
    home: House, gemini: StrictGemini, stream: bool, most: int
) -> None:
    runs: list[int] = []

    async def get_news(n: int) -> str:
        runs.append(n)
        return f"news {n}"

    home.proxy.tools.add("get_news", get_news, {"type": "object", "properties": {"n": {"type": "integer"}}})
    await home.open()
    words = 'call get_news {"n": 1} and call get_news {"n": 2} then call get_news {"n": 3} then call get_news {"n": 4}'
    given: Any = {"max_tool_calls": most}
    response = (
        (await home.respond_stream(words, **given))[-1]["response"] if stream else await home.respond(words, **given)
    )
    assert response["max_tool_calls"] == most
    assert response["status"] == "completed"
    assert sorted(runs) == list(range(1, most + 1))
    assert "news 1" in text(response)
    assert gemini.refused == []
    last = gemini.requests[-1]["body"]["toolConfig"]["functionCallingConfig"]
    assert last == {"mode": "NONE"}


async def test_google_search_beside_functions(home: House, gemini: StrictGemini) -> None:
    tools = [{"type": "web_search"}, *TOOLS]
    response = await home.respond("call get_time {}", tools=tools, conversation="c")
    assert [tool["type"] for tool in response["tools"]] == ["web_search", "function", "function"]
    body = gemini.requests[-1]["body"]
    assert body["tools"][1] == {"googleSearch": {}}
    assert body["toolConfig"] == {"includeServerSideToolInvocations": True}
    (made,) = calls(response)
    answered = await home.respond([output(made, hour=9)], conversation="c")
    assert [tool["type"] for tool in answered["tools"]] == ["function", "function", "web_search"]
    assert gemini.requests[-1]["body"]["tools"] == body["tools"]
    assert gemini.refused == []
