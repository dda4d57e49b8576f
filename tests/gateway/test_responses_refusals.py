"""What `/v1/responses` refuses, and in which words: OpenAI's."""

import asyncio
from typing import Any

import httpx2
import pytest

from addon.core.framing.documents import Document
from addon.fake_gemini.server import StrictGemini
from store.base import ConversationMoved, StoreUnavailable
from tests.gateway.conftest import MODEL, House, until
from tests.gateway.test_responses import TOOLS, TWO, calls, output
from tests.loop.conftest import google_error, says

OUTPUT = {"type": "function_call_output", "call_id": "call_none", "output": "1"}
BAD: list[tuple[Document, str | None]] = [
    ({"input": "x"}, "model"),
    ({"model": 3, "input": "x"}, "model"),
    ({"model": "a/../b", "input": "x"}, "model"),
    ({"model": MODEL}, "input"),
    ({"model": MODEL, "input": 7}, "input"),
    ({"model": MODEL, "input": [OUTPUT]}, "input[0].call_id"),
    ({"model": MODEL, "input": [{"type": False, "role": "user", "content": "x"}]}, "input[0].type"),
    ({"model": MODEL, "input": [{"type": "reasoning", "summary": [], "content": ["x"]}]}, "input[0].content[0]"),
    ({"model": MODEL, "input": "x", "tools": [{"type": "code_interpreter"}]}, "tools[0].type"),
    ({"model": MODEL, "input": "x", "tool_choice": {"type": "function", "name": "f"}}, "tool_choice"),
    ({"model": MODEL, "input": "x", "temperature": 7}, "temperature"),
    ({"model": MODEL, "input": "x", "background": True, "store": False}, "background"),
    ({"model": MODEL, "input": "x", "parallel_tool_calls": "no"}, "parallel_tool_calls"),
    ({"model": MODEL, "input": "x", "stream": "yes"}, "stream"),
    ({"model": MODEL, "input": "x", "conversation": ""}, "conversation"),
    ({"model": MODEL, "input": "x", "conversation": {"name": "c"}}, "conversation.name"),
    ({"model": MODEL, "input": "x", "conversation": "c", "previous_response_id": "r"}, "previous_response_id"),
    ({"model": MODEL, "input": "x", "previous_response_id": "resp_none"}, "previous_response_id"),
    ({"model": MODEL, "input": "x", "contents": []}, "contents"),
]


@pytest.mark.parametrize(("document", "param", "stream"), [(*case, number % 2 == 1) for number, case in enumerate(BAD)])
async def test_a_wrong_field_is_named(house: House, document: Document, param: str, stream: bool) -> None:
    refused = (await house.ask("/v1/responses", {"stream": stream} | document, 400))["error"]
    assert set(refused) == {"message", "type", "param", "code"}
    assert (refused["type"], refused["param"]) == ("invalid_request_error", param)
    assert refused["code"]
    assert not house.outside.callers


@pytest.mark.parametrize("path", ["/v1/responses", "/v1/responses/compact", "/v1/responses/input_tokens"])
@pytest.mark.parametrize("content", [b"{", b"[]", b"", b'{"model": NaN}'])
async def test_a_body_that_is_no_object_is_refused(house: House, content: bytes, path: str) -> None:
    refused = await house.http.post(path, content=content, headers={"content-type": "application/json"})
    error = refused.json()["error"]
    assert (refused.status_code, error["type"], error["param"]) == (400, "invalid_request_error", None)


async def test_refusals_at_the_door_are_in_openai_s_words_too(house: House) -> None:
    http = house.http
    for answer, status in [
        (await http.post("/v1/responses", content=b"{}", headers={"content-type": "text/plain"}), 415),
        (await http.get("/v1/responses"), 405),
        (await http.get("/v1/responses/x/input_items"), 404),
        (await http.post("/v1/responses", json={}, headers={"origin": "https://evil.example"}), 403),
        (await http.post("/v1/responses", json={}, headers={"host": "evil.example"}), 403),
        (await http.get("/v1/responses/x?after=1"), 400),
        (await http.post("/v1/chat/completions", json={"messages": []}), 400),
        (await http.get("/v1/models/a b"), 400),
        (await http.get("/v1/models", headers={"x-graft-session": "a b"}), 400),
    ]:
        assert answer.status_code == status
        assert set(answer.json()["error"]) == {"message", "type", "param", "code"}
        assert answer.json()["error"]["message"]
        if status in (400, 404):
            assert answer.json()["error"]["code"]


async def test_unknown_and_missing_outputs_are_named(home: House, gemini: StrictGemini) -> None:
    one, other = calls(await home.respond(TWO, tools=TOOLS, conversation="c"))
    more = [{**OUTPUT, "call_id": "call_a"}, {**OUTPUT, "call_id": "call_b"}]
    refused = await home.respond([output(one, a=1), *more], 400, conversation="c")
    assert "call_a, call_b" in refused["error"]["message"]
    assert one["call_id"] not in refused["error"]["message"]
    refused = await home.respond("Well?", 400, conversation="c")
    assert f"{one['call_id']}, {other['call_id']}" in refused["error"]["message"]
    refused = await home.respond([output(one, a=1), {"role": "user", "content": "Well?"}], 400, conversation="c")
    assert other["call_id"] in refused["error"]["message"]
    assert len(gemini.requests) == 1
    assert (await home.respond([output(one, a=1), output(other, b=2)], conversation="c"))["status"] == "completed"


async def test_an_output_that_was_given_one_by_one_may_come_again_but_not_change(home: House) -> None:
    one, other = calls(await home.respond(TWO, tools=TOOLS, conversation="c"))
    await home.respond([output(one, a=1)], conversation="c")
    assert [item["call_id"] for item in calls(await home.respond([output(one, a=1)], conversation="c"))] == [
        other["call_id"]
    ]
    refused = await home.respond([output(one, a=2)], 400, conversation="c")
    assert one["call_id"] in refused["error"]["message"]
    last = await home.respond([output(one, a=1), output(other, b=2)], conversation="c")
    assert last["output"][0]["content"][0]["text"] == 'get_weather returned {"a": 1}. get_time returned {"b": 2}.'


async def test_the_upstream_s_refusal_is_the_caller_s_and_is_not_kept(house: House) -> None:
    refusal = google_error(429, "RESOURCE_EXHAUSTED")
    upstream = house.upstream(*[httpx2.Response(429, json=refusal) for _ in range(2)])
    refused = await house.respond("one", 429, conversation="c")
    assert refused["error"]["message"] == "of the upstream"
    *_, last = await house.respond_stream("one", conversation="c")
    assert (last["type"], last["response"]["error"]) == (
        "response.failed",
        {"code": "rate_limit_exceeded", "message": "of the upstream"},
    )
    upstream.rounds.append([says("a", finish="STOP")])
    await house.respond("one", conversation="c")
    assert len(upstream.bodies[-1]["contents"]) == 1


async def test_a_stream_that_breaks_off_fails_and_is_not_kept(house: House) -> None:
    upstream = house.upstream([says("a"), says("b")], [says("c"), google_error(503)])
    *_, last = await house.respond_stream("one", conversation="c")
    assert last["type"] == "response.failed"
    assert "no finishReason" in last["response"]["error"]["message"]
    *_, last = await house.respond_stream("one", conversation="c")
    assert (last["type"], last["response"]["error"]["message"]) == ("response.failed", "of the upstream")
    upstream.rounds.append([says("d", finish="STOP")])
    await house.respond("one", conversation="c")
    assert len(upstream.bodies[-1]["contents"]) == 1


async def test_one_request_of_a_conversation_at_a_time(house: House) -> None:
    released, done = asyncio.Event(), says("a", finish="STOP")
    upstream = house.upstream([released, done], [done])
    first = asyncio.ensure_future(house.respond("one", conversation="c"))
    await until(lambda: bool(upstream.bodies))
    for stream in (False, True):
        refused = await house.respond("two", 409, conversation="c", stream=stream)
        assert (refused["error"]["code"], refused["error"]["param"]) == ("conversation_locked", "conversation")
    released.set()
    await first
    await house.respond("two", conversation="c")


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (ConversationMoved("c", "resp_x", None), 409, "conversation_locked"),
        (StoreUnavailable("the disk is full"), 503, None),
        (RuntimeError("a mistake"), 500, None),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_an_answer_that_cannot_be_stored_is_an_error(
    house: House, monkeypatch: pytest.MonkeyPatch, error: Exception, status: int, code: str | None, stream: bool
) -> None:
    async def add_response(*_: Any, **__: Any) -> None:
        raise error

    house.upstream([says("a", finish="STOP")])
    monkeypatch.setattr(house.store, "add_response", add_response)
    if stream:
        *_, last = await house.respond_stream("one", conversation="c")
        assert (last["type"], last["code"]) == ("error", code)
        assert "the disk" not in last["message"]
        assert "a mistake" not in last["message"]
    else:
        answer = await house.post("/v1/responses", {"model": MODEL, "input": "one", "conversation": "c"})
        assert (answer.status_code, answer.json()["error"]["code"]) == (status, code)
        retries = None if code is None else "false"
        assert answer.headers.get("x-should-retry") == retries, "its tools may have run"
