"""The strict server's Interactions API: refusals, stored interactions, and the form of answers."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx2
import pytest

from addon.fake_gemini.server import StrictGemini
from tests.plain_http import NO_TLS

Json = dict[str, Any]

MODEL = "gemini-3-flash-preview"
TOOL: Json = {
    "type": "function",
    "name": "get_weather",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}
PATH = "/v1beta/interactions"


@contextlib.asynccontextmanager
async def served() -> AsyncIterator[httpx2.AsyncClient]:
    async with (
        StrictGemini() as server,
        httpx2.AsyncClient(verify=NO_TLS, base_url=server.url, headers={"x-goog-api-key": "k"}, timeout=10) as client,
    ):
        yield client


async def create(client: httpx2.AsyncClient, status: int = 200, **body: Any) -> Json:
    answer = await client.post(PATH, json={"model": MODEL, **body})
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/json"
    document: Json = answer.json()
    return document


def result(call_id: str, **more: Any) -> Json:
    return {"type": "function_result", "call_id": call_id, "name": "get_weather", "result": {"sky": "blue"}, **more}


def calls(interaction: Json) -> list[str]:
    return [step["id"] for step in interaction["steps"] if step["type"] == "function_call"]


async def test_an_answer_has_the_recorded_members() -> None:
    async with served() as client:
        answer = await create(client, input="say hello")
    assert list(answer) == ["id", "status", "usage", "created", "updated", "service_tier", "steps", "object", "model"]
    assert answer["id"].startswith("v1_")
    assert answer["status"] == "completed"
    assert [step["type"] for step in answer["steps"]] == ["thought", "model_output"]


async def test_a_conversation_goes_on_by_id_with_the_results_of_its_calls() -> None:
    async with served() as client:
        first = await create(client, input="The weather in Paris and Tokyo", tools=[TOOL])
        one, two = calls(first)
        second = await create(
            client, input=[result(one), result(two)], tools=[TOOL], previous_interaction_id=first["id"]
        )
        third = await create(client, input="repeat the results", previous_interaction_id=second["id"])
        assert (await client.get(f"{PATH}/{second['id']}")).json() == second
        assert (await client.delete(f"{PATH}/{second['id']}")).json() == {}
        await create(client, 404, input="hi", previous_interaction_id=second["id"])
    assert first["status"] == "requires_action"
    assert second["status"] == "completed"
    assert third["steps"][-1]["content"][0]["text"].count("blue") == 2


async def test_a_history_of_the_clients_own_is_checked_by_its_signatures() -> None:
    words = {"type": "user_input", "content": [{"type": "text", "text": "The weather in Paris"}]}
    async with served() as client:
        first = await create(client, input=[words], tools=[TOOL], store=False)
        history = [words, *first["steps"], result(calls(first)[0])]
        second = await create(client, input=history, tools=[TOOL], store=False)
        refused = await create(client, 400, input=[history[0], *history[2:]], tools=[TOOL], store=False)
    assert "id" not in first
    assert "blue" in second["steps"][-1]["content"][0]["text"]
    assert "thought_signature" in refused["error"]["message"]


async def test_a_stream_is_framed_as_recorded() -> None:
    async with served() as client:
        answer = await client.post(
            PATH, json={"model": MODEL, "input": "The weather in Paris", "tools": [TOOL], "stream": True}
        )
    assert answer.headers["content-type"] == "text/event-stream"
    *frames, done, rest = answer.text.split("\n\n")
    assert (done, rest) == ("event: done\ndata: [DONE]", "")
    kinds = [frame.splitlines()[0].removeprefix("event: ") for frame in frames]
    step = ["step.start", "step.delta", "step.stop"]
    assert kinds == ["interaction.created", "interaction.status_update", *step, *step, "interaction.completed"]
    documents = [json.loads(frame.splitlines()[1].removeprefix("data: ")) for frame in frames]
    assert [document["event_type"] for document in documents] == kinds
    assert documents[5]["step"]["arguments"] == {}
    assert documents[6]["delta"] == {"arguments": '{"city":"Paris"}', "type": "arguments_delta"}
    assert documents[-1]["interaction"]["status"] == "requires_action"


REFUSED: dict[str, tuple[Json, str]] = {
    "an unknown member": ({"input": "hi", "tool_config": {}}, "Unknown parameter 'tool_config'."),
    "no input": ({}, "Missing required parameter 'input'."),
    "an empty input": ({"input": []}, "Invalid input"),
    "an unknown step": ({"input": [{"type": "user_input"}, {"type": "nothing"}]}, "Invalid step type 'nothing'"),
    "a step of too much": (
        {"input": [{"type": "user_input", "role": "user"}]},
        "Unknown parameter 'role' at 'input[0]'.",
    ),
    "contents as Gemini has them": ({"input": [{"role": "user", "parts": []}]}, "Invalid content at 'input[0]'."),
    "a tool as Gemini has it": ({"input": "hi", "tools": [{"functionDeclarations": []}]}, "Invalid tool type"),
    "a declaration in Gemini's words": (
        {"input": "hi", "tools": [{**TOOL, "parametersJsonSchema": {}}]},
        "Unknown parameter 'parametersJsonSchema' at 'tools[0]'.",
    ),
    "a schema in Gemini's words": (
        {"input": "hi", "tools": [{**TOOL, "parameters": {"type": "object", "properties": {"a": {"type": "STRING"}}}}]},
        "Invalid schema type 'STRING' at 'tools[0].parameters.properties.a'.",
    ),
    "a bad name": ({"input": "hi", "tools": [{**TOOL, "name": "1"}]}, "Invalid function name."),
    "a choice of nothing": (
        {"input": "hi", "generation_config": {"tool_choice": "any"}},
        "without function_declarations",
    ),
    "a choice in Gemini's words": (
        {"input": "hi", "tools": [TOOL], "generation_config": {"tool_choice": {"mode": "ANY"}}},
        "Invalid value for parameter 'tool_choice'",
    ),
    "an unknown setting": (
        {"input": "hi", "generation_config": {"toolConfig": {}}},
        "Unknown parameter 'toolConfig' at 'generation_config'.",
    ),
    "a result of no call": ({"input": [result("nobody")]}, "No function call found for call_id 'nobody'"),
    "an agent": ({"agent": "deep-research", "input": "hi"}, "not served here"),
}


@pytest.mark.parametrize(("body", "message"), REFUSED.values(), ids=REFUSED)
async def test_is_refused(body: Json, message: str) -> None:
    async with served() as client:
        refused = await create(client, 400, **body)
    assert refused["error"]["code"] == "invalid_request"
    assert message in refused["error"]["message"]


async def test_every_call_must_be_answered_once_and_in_order() -> None:
    async with served() as client:
        first = await create(client, input="The weather in Paris and Tokyo", tools=[TOOL])
        one, two = calls(first)
        words = {"type": "user_input", "content": [{"type": "text", "text": "and then?"}]}
        for given in (
            "and then?",
            [result(one)],
            [result(two), result(one)],
            [result(one), words, result(two)],
            [result(one, name="other"), result(two)],
        ):
            await create(client, 400, input=given, tools=[TOOL], previous_interaction_id=first["id"])


async def test_without_a_key_nothing_is_served() -> None:
    async with StrictGemini() as server, httpx2.AsyncClient(verify=NO_TLS, base_url=server.url) as client:
        answer = await client.post(PATH, json={"model": MODEL, "input": "hi"})
    assert answer.status_code == 403
    assert answer.json()["error"]["code"] == "permission_denied"
