"""Chat completions by the published `openai` client: which tools its requests have, and what stays as it was."""

import json
from typing import Any

import httpx2
import openai
import pytest

from tests.e2e.completions import KEY, MODEL, NOTE, WEATHER, Chat, Json, accepted, by_reverse
from tests.e2e.proxies import DECLARATIONS, Proxy, Session, new_session
from tests.e2e.upstreams import Gemini


def test_stripped_tools_are_neither_sent_nor_named(proxy: Proxy, session: Session, gemini: Gemini) -> None:
    tools = [NOTE, WEATHER]
    chat = Chat("sync", by_reverse(proxy, session), tools=tools, tool_choice="required", parallel_tool_calls=False)
    chat.say("What is 2+2?")
    sent = gemini.last["body"]
    assert [tool["function"]["name"] for tool in sent["tools"]] == [one["name"] for one in DECLARATIONS]
    assert sent["tools"][0]["function"]["parameters"] == {
        "type": "object",
        "properties": {"city": {"type": "string"}},
        "required": ["city"],
    }
    assert "tool_choice" not in sent
    session.tools([])
    chat.say("What is 2+3?")
    assert not {"tools", "tool_choice", "parallel_tool_calls"} & gemini.last["body"].keys()
    assert accepted(gemini)


@pytest.mark.parametrize(
    ("config", "choice"),
    [
        ({"functionCallingConfig": {"mode": "ANY"}}, "required"),
        ({"functionCallingConfig": {"mode": "NONE"}}, "none"),
        (
            {"functionCallingConfig": {"mode": "ANY", "allowedFunctionNames": ["get_time"]}},
            {"type": "function", "function": {"name": "get_time"}},
        ),
    ],
)
def test_the_toolset_s_choice_goes_with_its_tools(
    proxy: Proxy, session: Session, gemini: Gemini, config: Json, choice: Any
) -> None:
    session.tools(tool_config=config)
    chat = Chat("sync", by_reverse(proxy, session))
    chat.say("hello")
    assert gemini.last["body"]["tool_choice"] == choice
    assert accepted(gemini)


def test_a_loop_that_is_forced_to_call_is_so_once(looper: Proxy, bare: Session, gemini: Gemini) -> None:
    bare.policy(client_tools="keep", max_rounds=3)
    chat = Chat("stream", by_reverse(looper, bare), tools=[NOTE], tool_choice="required")
    assert chat.say('call weather {"city": "Oslo"}') == 'weather returned {"city": "Oslo", "celsius": 4}.'
    assert [request["body"]["tool_choice"] for request in gemini.requests] == ["required", "auto"]
    assert "12" in chat.say("call hour {} forever")
    assert [request["body"].get("tool_choice") for request in gemini.requests][2:] == ["required", "auto", "none"]
    assert accepted(gemini)


@pytest.mark.parametrize(
    "options",
    [
        {"response_format": {"type": "json_object"}},
        {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object"}}}},
    ],
)
def test_a_request_that_cannot_use_functions_gets_none(
    looper: Proxy, bare: Session, gemini: Gemini, options: Json
) -> None:
    chat = Chat("sync", by_reverse(looper, bare), **options)
    json.loads(chat.say("a title for this"))
    assert "tools" not in gemini.last["body"]
    assert accepted(gemini)


def test_several_choices_each_have_a_placeholder_of_their_own(looper: Proxy, bare: Session, gemini: Gemini) -> None:
    base = by_reverse(looper, bare)
    with openai.OpenAI(api_key=KEY, max_retries=0, **base) as client:
        words: Any = [{"role": "user", "content": 'call weather {"city": "Oslo"}'}]
        made = client.chat.completions.create(model=MODEL, messages=words, n=2)
    first, second = (choice.message.content for choice in made.choices)
    assert first is not None
    assert first.startswith("Tool call completed: weather [turn_")
    assert first != second
    assert len(gemini.requests) == 1
    assert accepted(gemini)


@pytest.mark.parametrize(
    ("options", "key", "error", "words", "stream"),
    [
        ({"model": "gemini-9-none"}, KEY, openai.NotFoundError, "is not found", False),
        ({"temperature": 5}, KEY, openai.BadRequestError, "temperature must be in the range", True),
        ({"extra_body": {"google": {}}}, KEY, openai.BadRequestError, 'Unknown name "google"', False),
        ({}, "invalid", openai.BadRequestError, "API key not valid", True),
    ],
)
def test_a_refusal_of_the_service_is_raised_as_the_client_s_own_error(
    looper: Proxy, bare: Session, options: Json, key: str, error: type[openai.APIStatusError], words: str, stream: bool
) -> None:
    with openai.OpenAI(api_key=key, max_retries=0, **by_reverse(looper, bare)) as client:
        request: Any = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}], **options}
        with pytest.raises(error) as caught:
            client.chat.completions.create(stream=stream, **request)
    body: Any = caught.value.body
    assert words in body[0]["error"]["message"], "as the endpoint gives it, in a list"


def test_a_session_without_tools_and_other_paths_are_not_touched(looper: Proxy, gemini: Gemini) -> None:
    base = by_reverse(looper, new_session(looper, tools=False))["base_url"]
    got = httpx2.get(f"{base}/files", headers={"authorization": f"Bearer {KEY}"})
    assert got.status_code == 404, "the strict server has no such page, and was asked"
    assert gemini.last["path"] == "/v1beta/openai/files"


def test_vertex_speaks_it_too(looper: Proxy, bare: Session, gemini: Gemini) -> None:
    base = f"{looper.url}/@{bare.name}/v1/projects/p/locations/us-central1/endpoints/openapi"
    with openai.OpenAI(api_key=KEY, base_url=base, max_retries=0) as client:
        words: Any = [{"role": "user", "content": 'call weather {"city": "Oslo"}'}]
        made = client.chat.completions.create(model=f"google/{MODEL}", messages=words)
    assert made.choices[0].message.content == 'weather returned {"city": "Oslo", "celsius": 4}.'
    assert [call["surface"] for call in bare.calls()] == ["chat"]
    assert accepted(gemini)
