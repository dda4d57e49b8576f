"""Unmodified requests of the published client: their bodies are accepted, and so are the histories that it sends
back."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx2
import openai
from openai.types.responses import Response
from pydantic import BaseModel

from addon.core.dialects.responses.history import StoredCalls
from addon.core.dialects.responses.request import ResponsesRequest, read_request
from tests.core.dialects.responses.published import translated

CALL = {"functionCall": {"id": "g1", "name": "GetWeather", "args": {"city": "Tokyo"}}, "thoughtSignature": "c2ln"}
SUMMARY = {"reasoning": {"summary": "auto"}}


class GetWeather(BaseModel):
    """The weather of a city."""

    city: str
    days: int | None


class Sum(BaseModel):
    celsius: float


@contextmanager
def client(parts: list[dict[str, Any]], sent: list[ResponsesRequest]) -> Iterator[openai.OpenAI]:
    """A client that gets these parts as the answer to each request. `sent`: the parsed requests."""

    def answer(request: httpx2.Request) -> httpx2.Response:
        body = json.loads(request.content)
        sent.append(read_request(body))
        candidate = {"content": {"role": "model", "parts": parts}, "finishReason": "STOP"}
        done, _ = translated([{"candidates": [candidate], "usageMetadata": {"promptTokenCount": 1}}], **SUMMARY)
        return httpx2.Response(200, json=done.document())

    with (
        httpx2.Client(transport=httpx2.MockTransport(answer)) as http,
        openai.OpenAI(api_key="k", base_url="http://localhost/v1", http_client=http, max_retries=0) as made,
    ):
        yield made


def test_structured_output_and_tools_as_the_client_derives_them_from_models() -> None:
    sent: list[ResponsesRequest] = []
    tool = openai.pydantic_function_tool(GetWeather)["function"]
    with client([{"text": '{"celsius":21.5}'}], sent) as openai_client:
        response = openai_client.responses.parse(
            model="gemini-3-flash",
            input="How warm is it?",
            text_format=Sum,
            tools=[{"type": "function", "name": tool["name"], "parameters": tool["parameters"], "strict": True}],
            reasoning={"effort": "low", "summary": "auto"},
        )

    assert response.output_parsed == Sum(celsius=21.5)
    (wanted,) = sent
    assert wanted.generation_config["responseJsonSchema"]["required"] == ["celsius"]
    assert [declaration["name"] for tool in wanted.tools or [] for declaration in tool["functionDeclarations"]] == [
        "GetWeather"
    ]


def test_a_client_that_keeps_its_own_history_sends_the_output_items_back() -> None:
    sent: list[ResponsesRequest] = []
    parts: list[dict[str, Any]] = [{"text": "hm", "thought": True}, {"text": "Let me see."}, CALL]
    with client(parts, sent) as openai_client:
        first = openai_client.responses.create(model="gemini-3-flash", input="How warm is it?")
        outputs: list[Any] = [{"type": "function_call_output", "call_id": _call_id(first), "output": "21"}]
        question: Any = {"role": "user", "content": "How warm is it?"}
        for kept in (list(first.output), [item.model_dump() for item in first.output]):
            openai_client.responses.create(model="gemini-3-flash", input=[question, *kept, *outputs])

    for wanted in sent[1:]:
        (call_id,) = wanted.call_ids
        added = wanted.add_to(StoredCalls(calls={call_id: CALL}))
        assert added.contents == [
            {"role": "user", "parts": [{"text": "How warm is it?"}]},
            {"role": "model", "parts": [{"text": "Let me see."}, CALL]},
            {
                "role": "user",
                "parts": [
                    {"functionResponse": {"id": "g1", "name": "GetWeather", "response": {"result": "21"}}},
                ],
            },
        ]


def _call_id(response: Response) -> str:
    return next(item.call_id for item in response.output if item.type == "function_call")
