"""The strict local Gemini's OpenAI-compatible endpoint: its answers and refusals."""

from collections.abc import AsyncIterator
from typing import Any

import httpx2
import pytest

from addon.fake_gemini.server import StrictGemini
from tests.plain_http import NO_TLS

MODEL = "gemini-3-flash-preview"
PATH = "/v1beta/openai/chat/completions"
TOOL = {"type": "function", "function": {"name": "f", "description": "d", "parameters": {"type": "object"}}}

Json = dict[str, Any]


@pytest.fixture
async def server() -> AsyncIterator[StrictGemini]:
    async with StrictGemini() as server:
        yield server


async def ask(server: StrictGemini, *messages: Json, path: str = PATH, **more: Any) -> httpx2.Response:
    headers = {"authorization": more.pop("authorization", "Bearer k")}
    body = {"model": MODEL, "messages": messages, "tools": [TOOL], **more}
    async with httpx2.AsyncClient(verify=NO_TLS, base_url=server.url, trust_env=False) as client:
        return await client.post(path, json={k: v for k, v in body.items() if v is not None}, headers=headers)


def user(text: str) -> Json:
    return {"role": "user", "content": text}


async def called(server: StrictGemini) -> Json:
    got = await ask(server, user('call f {"a": 1}'))
    message: Json = got.json()["choices"][0]["message"]
    return message


async def test_a_call_and_its_answer(server: StrictGemini) -> None:
    message = await called(server)
    (call,) = message["tool_calls"]
    assert (call["function"], call["type"]) == ({"name": "f", "arguments": '{"a": 1}'}, "function")
    assert call["id"].startswith("function-call-")
    answer = {"role": "tool", "tool_call_id": call["id"], "content": '{"b": 2}'}
    got = (await ask(server, user('call f {"a": 1}'), message, answer)).json()
    assert got["object"] == "chat.completion"
    assert got["choices"][0]["message"]["content"] == 'f returned {"b": 2}.'
    assert got["choices"][0]["finish_reason"] == "stop"
    assert server.dummy_signatures == 0


async def test_a_stream_says_stop_even_behind_calls_and_ends_with_done(server: StrictGemini) -> None:
    got = await ask(server, user("call f {}"), stream=True, stream_options={"include_usage": True})
    assert got.headers["content-type"] == "text/event-stream"
    *events, done, rest = got.text.split("\n\n")
    assert (done, rest) == ("data: [DONE]", "")
    assert '"finish_reason":"stop"' in events[-1]
    assert '"usage"' in events[-1]
    assert '"index":0' in events[0]
    assert '"finish_reason"' not in events[0]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"extra_content": None}, "missing a thought_signature"),
        ({"extra_content": {"google": {"thought_signature": "c2k="}}}, "thought signature"),
        ({"id": "another"}, "thought signature"),
        ({"function": {"name": "f", "arguments": '{"a": 2}'}}, "thought signature"),
        ({"function": {"name": "f", "arguments": "{"}}, "a JSON object is due"),
        ({"type": "custom"}, "only calls of functions"),
        ({"later": 1}, "Unknown name \"later\" at 'messages[1].tool_calls[0]'"),
    ],
)
async def test_a_call_that_is_not_echoed_as_it_was_is_refused(server: StrictGemini, change: Json, words: str) -> None:
    message = await called(server)
    call = {k: v for k, v in {**message["tool_calls"][0], **change}.items() if v is not None}
    answer = {"role": "tool", "tool_call_id": call["id"], "content": "1"}
    got = await ask(server, user('call f {"a": 1}'), {**message, "tool_calls": [call]}, answer)
    assert got.status_code == 400
    assert words.lower() in got.json()[0]["error"]["message"].lower()


@pytest.mark.parametrize(
    ("messages", "words"),
    [
        ([], "contents is not specified"),
        ([{"role": "wizard", "content": "a"}], "Invalid role"),
        ([{"role": ["user"], "content": "a"}], "Invalid role"),
        ([user("a"), {"role": "tool", "tool_call_id": "x", "content": "1"}], "Name cannot be empty"),
        ([user("a"), {"role": "assistant", "content": "b"}], "end with a user role"),
        ([{**user("a"), "later": 1}], "Unknown name \"later\" at 'messages[0]'"),
        ([{"role": "user", "content": [{"type": "video"}]}], "content part type"),
        ([{"role": "user", "content": [{"type": "image_url", "image_url": True}]}], "content part type"),
    ],
)
async def test_messages_that_are_refused(server: StrictGemini, messages: list[Json], words: str) -> None:
    got = await ask(server, *messages)
    assert got.status_code == 400
    assert words in got.json()[0]["error"]["message"]


@pytest.mark.parametrize(
    ("more", "code", "words"),
    [
        ({"google": {}}, 400, 'Unknown name "google": Cannot find field.'),
        ({"n": "2"}, 400, "Invalid value at 'n'"),
        ({"model": "gpt-4"}, 404, "is not found"),
        ({"tools": [{"type": "web_search"}]}, 400, "tool type"),
        ({"tools": [{**TOOL, "later": 1}]}, 400, "Unknown name \"later\" at 'tools[0]'"),
        ({"tools": [TOOL, TOOL]}, 400, "Duplicate function declaration"),
        ({"tools": None, "tool_choice": "required"}, 400, "without function_declarations"),
        ({"tool_choice": {"type": "function", "function": {"name": "g"}}}, 400, "not in function_declarations"),
        ({"tool_choice": "sometimes"}, 400, "tool_choice"),
        ({"extra_body": {"google": {"later": 1}}}, 400, "extra_body.google"),
        ({"authorization": ""}, 400, "Authorization header"),
        ({"authorization": "Bearer invalid"}, 400, "API key not valid"),
    ],
)
@pytest.mark.parametrize("stream", [None, True])
async def test_requests_that_are_refused(
    server: StrictGemini, more: Json, code: int, words: str, stream: bool | None
) -> None:
    got = await ask(server, user("hi"), stream=stream, **more)
    assert got.status_code == code
    (error,) = got.json()
    assert words in error["error"]["message"]


async def test_vertex_has_it_under_a_path_of_its_own(server: StrictGemini) -> None:
    path = "/v1/projects/p/locations/global/endpoints/openapi/chat/completions"
    got = await ask(server, user("call f {}"), path=path, model=f"google/{MODEL}")
    assert got.json()["choices"][0]["finish_reason"] == "tool_calls"
