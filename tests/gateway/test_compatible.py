"""`/v1/chat/completions`, `/v1/embeddings` and `/v1/models`."""

import asyncio
import json
from typing import Any

import httpx2
import pytest
from openai.types import CreateEmbeddingResponse
from openai.types.chat import ChatCompletion, ChatCompletionChunk, ChatCompletionMessageFunctionToolCall

from addon.core.framing.documents import Document
from addon.fake_gemini.server import StrictGemini
from store.models import Toolset
from tests.gateway.conftest import KEY, MODEL, House, Scripted, until

CHAT = "/v1/chat/completions"
LIST = {"object": "list", "data": [{"id": "models/gemini-3-flash", "object": "model", "owned_by": "google"}]}
NOTE: Document = {
    "type": "function",
    "function": {"name": "note", "parameters": {"type": "object", "properties": {"text": {"type": "string"}}}},
}


def asks(*texts: str, **more: Any) -> Document:
    return {"model": MODEL, "messages": [{"role": "user", "content": text} for text in texts], **more}


def chunks(answer: httpx2.Response) -> list[ChatCompletionChunk]:
    events = [line.removeprefix("data: ") for line in answer.text.splitlines() if line]
    assert events.pop() == "[DONE]"
    return [ChatCompletionChunk.model_validate_json(event) for event in events]


async def test_a_question_is_answered(home: House, gemini: StrictGemini) -> None:
    completion = ChatCompletion.model_validate(await home.ask(CHAT, asks("What is 2+2?")))
    assert completion.choices[0].message.content == "2 + 2 = 4."
    assert gemini.refused == []
    (request,) = home.outside.requests
    assert request.url == f"{gemini.url}/v1beta/openai/chat/completions"
    assert (b"authorization", f"Bearer {KEY}".encode()) in request.headers


async def test_a_stream_is_the_endpoint_s(home: House) -> None:
    answer = await home.post(CHAT, asks("What is 2+2?", stream=True))
    assert answer.headers["content-type"].startswith("text/event-stream")
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks(answer) if chunk.choices)
    assert text == "2 + 2 = 4."


@pytest.mark.parametrize("stream", [False, True])
async def test_the_proxy_runs_the_session_s_tools(home: House, gemini: StrictGemini, stream: bool) -> None:
    async def get_weather(city: str) -> dict[str, Any]:
        return {"celsius": -3, "city": city}

    properties = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
    home.proxy.tools.add("get_weather", get_weather, properties)
    await home.open()
    answer = await home.post(CHAT, asks("What is the weather in Oslo?", stream=stream))
    assert answer.status_code == 200, answer.text
    assert "-3" in answer.text
    assert "tool_calls" not in answer.text
    assert len(gemini.requests) == 2
    assert gemini.refused == []


async def test_the_client_s_own_functions_come_back(home: House) -> None:
    first = await home.ask(CHAT, asks('call note {"text": "x"}', tools=[NOTE]))
    calls = ChatCompletion.model_validate(first).choices[0].message.tool_calls
    assert calls is not None
    (call,) = calls
    assert isinstance(call, ChatCompletionMessageFunctionToolCall)
    assert (call.function.name, json.loads(call.function.arguments)) == ("note", {"text": "x"})
    result = {"role": "tool", "tool_call_id": call.id, "content": '{"ok": true}'}
    messages = [*asks('call note {"text": "x"}')["messages"], first["choices"][0]["message"], result]
    last = ChatCompletion.model_validate(await home.ask(CHAT, {"model": MODEL, "messages": messages, "tools": [NOTE]}))
    assert last.choices[0].message.content


def joined(answer: httpx2.Response, *, stream: bool) -> Document:
    """The message of an answer, as a client keeps it that knows only OpenAI's members."""
    if not stream:
        found = answer.json()["choices"][0]["message"]
        calls = found.get("tool_calls", [])
    else:
        deltas = [json.loads(line[6:])["choices"] for line in answer.text.splitlines() if line.startswith("data: {")]
        found = {"content": "".join(one[0]["delta"].get("content") or "" for one in deltas if one)}
        calls = [call for one in deltas if one for call in one[0]["delta"].get("tool_calls", [])]
    message: Document = {"role": "assistant", "content": found.get("content")}
    plain = [{"id": call["id"], "type": "function", "function": call["function"]} for call in calls]
    return message | ({"tool_calls": plain} if plain else {})


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_drops_signatures_has_them_all_the_same(
    home: House, gemini: StrictGemini, stream: bool
) -> None:
    messages: list[Document] = []
    for n in range(10):
        messages.append({"role": "user", "content": 'call note {"text": "x"} and call note {} then call note {}'})
        for _ in range(3):
            given = {"model": MODEL, "messages": messages, "tools": [NOTE], "stream": stream}
            answer = await home.post(CHAT, given)
            assert answer.status_code == 200, answer.text
            messages.append(message := joined(answer, stream=stream))
            messages += [
                {"role": "tool", "tool_call_id": call["id"], "content": json.dumps({"n": n})}
                for call in message.get("tool_calls", ())
            ]
        assert "note returned" in messages[-1]["content"]
        await home.restart()
    assert (gemini.refused, gemini.dummy_signatures) == ([], 0)


async def test_a_call_that_never_had_a_signature_gets_the_documented_dummy(home: House, gemini: StrictGemini) -> None:
    call = {"id": "call_1", "type": "function", "function": {"name": "note", "arguments": "{}"}}
    messages = [
        {"role": "user", "content": "call note {}"},
        {"role": "assistant", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": "{}"},
    ]
    await home.ask(CHAT, {"model": MODEL, "messages": messages, "tools": [NOTE]})
    assert (gemini.refused, gemini.dummy_signatures) == ([], 1)


@pytest.mark.parametrize(
    "messages",
    [None, "x", [], [1], [{"role": "assistant", "tool_calls": 1}], [{"role": "assistant", "tool_calls": [1, {}]}]],
)
async def test_odd_messages_are_refused(home: House, messages: Any) -> None:
    """By the proxy or by the endpoint: in OpenAI's form."""
    answer = await home.post(CHAT, {"model": MODEL, "messages": messages, "tools": [NOTE]})
    assert answer.status_code == 400
    assert set(answer.json()["error"]) == {"message", "type", "param", "code"}


@pytest.mark.parametrize("stream", [False, True])
async def test_an_error_of_the_endpoint_has_openai_s_form(home: House, stream: bool) -> None:
    error = (await home.ask(CHAT, asks("hi", temperature=5, stream=stream), status=400))["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert "temperature" in error["message"]


@pytest.mark.parametrize("path", [CHAT, "/v1/embeddings"])
@pytest.mark.parametrize("body", [[], {}, {"model": 1}, {"model": "a/../b"}, {"model": "gemini 3"}])
async def test_a_wrong_model_is_refused_at_the_door(house: House, path: str, body: Any) -> None:
    error = (await house.ask(path, body, status=400))["error"]
    assert error["type"] == "invalid_request_error"


async def test_an_upstream_that_cannot_be_reached(house: House) -> None:
    house.proxy.upstream(Down())
    for answer in (
        await house.post(CHAT, asks("hi")),
        await house.post("/v1/embeddings", {"model": "gemini-embedding-001", "input": "hi"}),
        await house.http.get("/v1/models"),
    ):
        assert answer.status_code == 502
        assert "cannot be reached" in answer.json()["error"]["message"]


async def test_a_client_that_hangs_up_ends_its_stream(house: House) -> None:
    upstream = house.upstream([asyncio.Event()])
    task = asyncio.ensure_future(house.post(CHAT, asks("hi")))
    await until(lambda: len(upstream.bodies) == 1)
    assert house.app.api.active_requests == 1
    task.cancel()
    await asyncio.wait({task})
    await until(lambda: house.app.api.active_requests == 0)


async def test_embeddings_pass_through(home: House, gemini: StrictGemini) -> None:
    found = await home.ask("/v1/embeddings", {"model": "gemini-embedding-001", "input": ["a", "b"], "dimensions": 128})
    response = CreateEmbeddingResponse.model_validate(found)
    assert [len(one.embedding) for one in response.data] == [128, 128]
    assert response.data[0].embedding != response.data[1].embedding
    error = (await home.ask("/v1/embeddings", {"model": "no-model", "input": "a"}, status=404))["error"]
    assert "no-model" in error["message"]


async def test_models_are_gemini_s(home: House) -> None:
    listed = (await home.http.get("/v1/models")).json()
    assert listed["object"] == "list"
    first = listed["data"][0]
    assert {"id", "object", "owned_by"} <= set(first)
    for name in (first["id"], first["id"].removeprefix("models/")):
        assert (await home.http.get(f"/v1/models/{name}")).json() == first
    assert (await home.http.get("/v1/models/gemini-9-none")).status_code == 404
    assert (await home.http.get("/v1/models/a b")).status_code == 400


async def test_the_list_of_models_is_kept_for_each_key(house: House) -> None:
    house.proxy.upstream(upstream := Lists())
    for key in ("one", "one", "two", "one"):
        answer = await house.http.get("/v1/models", headers={"x-goog-api-key": key})
        assert answer.json() == LIST
    assert upstream.keys == ["Bearer one", "Bearer two"]


class Down(Scripted):
    async def __call__(self, request: httpx2.Request) -> httpx2.Response:
        raise httpx2.ConnectError("refused")


class Lists(Scripted):
    """An upstream that has models."""

    def __init__(self) -> None:
        super().__init__()
        self.keys: list[str] = []

    async def __call__(self, request: httpx2.Request) -> httpx2.Response:
        self.keys.append(request.headers["authorization"])
        return httpx2.Response(200, json=LIST)


@pytest.mark.parametrize(
    ("path", "named"),
    [
        ("/v1/responses/x/y/z", "/v1/responses/compact"),
        ("/v1/chat", "/v1/chat/completions"),
        ("/v1/chat/complete", "/v1/chat/completions"),
        ("/v1/embeddings/x", "/v1/embeddings"),
        ("/v1/conversations/x/things", "/v1/conversations/{conversation_id}/items"),
    ],
)
async def test_an_unknown_path_has_openai_s_form_and_names_what_is_there(house: House, path: str, named: str) -> None:
    error = (await house.ask(path, {}, status=404))["error"]
    assert named in error["message"]
    assert error["type"] == "invalid_request_error"


async def test_a_session_s_toolset_is_grafted(house: House) -> None:
    await house.store.put_toolset(
        "default", Toolset(declarations=[{"name": "by_hand", "parameters": {"type": "OBJECT"}}])
    )
    upstream = house.upstream([{"choices": [{"index": 0, "message": {"role": "assistant", "content": "Hi."}}]}])
    await house.ask(CHAT, asks("hi"))
    assert [tool["function"]["name"] for tool in upstream.bodies[0]["tools"]] == ["by_hand"]
