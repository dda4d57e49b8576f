"""Chats of the published `openai` client."""

import asyncio
import json
from collections.abc import Iterable
from typing import Any

import httpx2
import openai

from tests.e2e.proxies import Proxy, Session
from tests.e2e.upstreams import Gemini

MODEL = "gemini-3-flash-preview"

KEY = "a-secret-key"

WEATHER: Any = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather of a city.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}

NOTE: Any = {"type": "function", "function": {"name": "note", "parameters": {"type": "object", "properties": {}}}}

Json = dict[str, Any]


def by_reverse(proxy: Proxy, session: Session) -> Json:
    return {"base_url": f"{proxy.url}/@{session.name}/v1beta/openai"}


class Chat:
    """A chat of a program that keeps the messages, and adds the answers unchanged."""

    def __init__(self, kind: str, way: Json, **options: Any) -> None:
        self.kind = kind
        self.way = way
        self.options = options
        self.messages: list[Any] = []
        self.chunks: list[Any] = []

    def say(self, text: str) -> str:
        self.messages.append({"role": "user", "content": text})
        return self.ask()

    def ask(self) -> str:
        message = asyncio.run(self._ask_async()) if self.kind.startswith("async") else self._ask()
        self.messages.append(message)
        return str(message.get("content") or "")

    def answer(self, **results: Any) -> str:
        """Answer the calls of the last message, like a client."""
        for call in self.messages[-1]["tool_calls"]:
            result = results[call["function"]["name"]]
            self.messages.append({"role": "tool", "tool_call_id": call["id"], "content": json.dumps(result)})
        return self.ask()

    @property
    def _request(self) -> Any:
        return {"model": MODEL, "messages": self.messages, **self.options}

    def _ask(self) -> Json:
        way = dict(self.way)
        trust, proxy = way.pop("trust", True), way.pop("proxy", None)
        with (
            httpx2.Client(verify=trust, proxy=proxy, trust_env=False) as http,
            openai.OpenAI(api_key=KEY, max_retries=0, http_client=http, **way) as client,
        ):
            if self.kind == "sync":
                return _dumped(client.chat.completions.create(**self._request))
            self.chunks = list(client.chat.completions.create(stream=True, **self._request))
            return _joined(self.chunks)

    async def _ask_async(self) -> Json:
        way = dict(self.way)
        trust, proxy = way.pop("trust", True), way.pop("proxy", None)
        async with (
            httpx2.AsyncClient(verify=trust, proxy=proxy, trust_env=False) as http,
            openai.AsyncOpenAI(api_key=KEY, max_retries=0, http_client=http, **way) as client,
        ):
            if self.kind == "async":
                return _dumped(await client.chat.completions.create(**self._request))
            self.chunks = [chunk async for chunk in await client.chat.completions.create(stream=True, **self._request)]
            return _joined(self.chunks)


def _dumped(completion: Any) -> Json:
    (choice,) = completion.choices
    message: Json = choice.message.model_dump()
    assert choice.finish_reason == ("tool_calls" if message.get("tool_calls") else "stop")
    assert completion.id
    return message


def _joined(chunks: Iterable[Any]) -> Json:
    """The message of a stream's chunks."""
    message: Json = {"role": "assistant", "content": ""}
    ends: list[str] = []
    ids = set()
    for chunk in chunks:
        assert chunk.object == "chat.completion.chunk"
        ids.add((chunk.id, chunk.created))
        for choice in chunk.choices:
            assert not ends, "an answer ends once"
            delta = choice.delta.model_dump(exclude_none=True)
            message["content"] += delta.get("content", "")
            for call in delta.get("tool_calls", []):
                call.pop("index", None)
                message.setdefault("tool_calls", []).append(call)
            if "extra_content" in delta:
                message["extra_content"] = delta["extra_content"]
            ends += [choice.finish_reason] if choice.finish_reason else []
    assert len(ends) == len(ids) == 1
    return message


def accepted(gemini: Gemini) -> bool:
    return gemini.errors == [] and gemini.dummy_signatures == 0


def summary_of(gemini: Gemini) -> list[tuple[str, Any]]:
    """The messages of the last request: texts, names of calls, results."""
    messages = gemini.last["body"]["messages"]
    return [
        ("calls", [call["function"]["name"] for call in message["tool_calls"]])
        if message.get("tool_calls")
        else (message["role"], message.get("content"))
        for message in messages
    ]


def chunk(delta: Json, finish: str | None = None) -> Json:
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    return {"id": "c1", "object": "chat.completion.chunk", "created": 7, "model": MODEL, "choices": [choice]}
