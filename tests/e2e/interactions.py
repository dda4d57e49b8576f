"""Conversations of google-genai's interactions client."""

import asyncio
import json
from typing import Any

import pytest

from tests.e2e.proxies import Proxy, Session

Json = dict[str, Any]

MODEL = "gemini-3-flash-preview"

KEY = "a-secret-key"

NOTE: Any = {"type": "function", "name": "note", "parameters": {"type": "object", "properties": {}}}

BOTH = 'call get_weather {"city": "Oslo"} and call get_time {}'

FORMS = pytest.mark.parametrize("kind", ["sync", "stream"])


class Interactions:
    """A conversation of a program, which keeps only the last id."""

    def __init__(self, kind: str, url: str, **options: Any) -> None:
        self.kind = kind
        self.url = url
        self.options = options
        self.id: str | None = None
        self.events: list[Any] = []
        self.answer: Any = None

    def say(self, given: Any, **options: Any) -> str:
        """Returns the text of the answer. The next request continues from its id."""
        request = {"model": MODEL, "input": given, **self.options, **options}
        if self.id is not None:
            request["previous_interaction_id"] = self.id
        self.answer = asyncio.run(self._ask_async(request)) if self.kind.startswith("async") else self._ask(request)
        self.id = self.answer["id"]
        return text_of(self.answer)

    @property
    def calls(self) -> list[Json]:
        return [step for step in self.answer["steps"] if step["type"] == "function_call"]

    def results(self, result: Any) -> list[Json]:
        """The client's results for its calls."""
        return [
            {"type": "function_result", "call_id": call["id"], "name": call["name"], "result": result}
            for call in self.calls
        ]

    def _client(self) -> Any:
        return client_of(self.url)

    def _ask(self, request: Json) -> Json:
        with self._client() as client:
            if self.kind == "sync":
                return dict(client.interactions.create(**request).model_dump())
            self.events = list(client.interactions.create(stream=True, **request))
            return joined(self.events)

    async def _ask_async(self, request: Json) -> Json:
        async with self._client().aio as client:
            if self.kind == "async":
                return dict((await client.interactions.create(**request)).model_dump())
            self.events = [event async for event in await client.interactions.create(stream=True, **request)]
            return joined(self.events)


def client_of(url: str) -> Any:
    from google import genai
    from google.genai import types

    return genai.Client(api_key=KEY, http_options=types.HttpOptions(base_url=url))


def joined(events: list[Any]) -> Json:
    """The interaction of a stream's events: one beginning, steps one after the other, one end."""
    first, *others, last = [event.model_dump() for event in events]
    assert first["event_type"] == "interaction.created"
    assert last["event_type"] == "interaction.completed"
    assert first["interaction"]["id"] == last["interaction"]["id"]
    steps: list[Json] = []
    is_open = False
    for event in others:
        match event["event_type"]:
            case "interaction.status_update":
                assert event["interaction_id"] == first["interaction"]["id"]
            case "step.start":
                assert not is_open
                assert event["index"] == len(steps)
                is_open = True
                steps.append({**event["step"], "text": "", "pieces": ""})
            case "step.delta":
                assert is_open
                assert event["index"] == len(steps) - 1
                steps[-1]["text"] += event["delta"].get("text", "")
                steps[-1]["pieces"] += event["delta"].get("arguments", "")
            case "step.stop":
                assert is_open
                assert event["index"] == len(steps) - 1
                is_open = False
            case kind:
                pytest.fail(f"an event of its own: {kind}")
    assert not is_open
    for step in steps:
        if step["type"] == "model_output":
            step["content"] = [{"type": "text", "text": step["text"]}]
        if step["pieces"]:
            step["arguments"] = json.loads(step["pieces"])
    return {**last["interaction"], "steps": steps}


def text_of(interaction: Json) -> str:
    steps = [step for step in interaction["steps"] if step["type"] == "model_output"]
    return "".join(content["text"] for step in steps for content in step["content"])


def at(proxy: Proxy, session: Session, kind: str, **options: Any) -> Interactions:
    return Interactions(kind, f"{proxy.url}/@{session.name}", **options)
