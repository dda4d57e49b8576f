"""Repeated requests in other formats than Gemini's, and at the front doors."""

import asyncio
import dataclasses
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from addon.core.framing.documents import Document, encode
from addon.fake_gemini.server import StrictGemini
from addon.graft.exchange import Forward
from addon.loop.runner import Head, Runner
from addon.loop.upstream import Address, Upstream
from addon.surfaces.incoming import Incoming
from addon.surfaces.registry import match
from addon.web.access import ANYONE
from tests.gateway.conftest import House
from tests.loop.conftest import Proxy, streamed

GOOGLE = "generativelanguage.googleapis.com"
CHAT = "/v1beta/openai/chat/completions"
INTERACTIONS = "/v1beta/interactions"
WORDS = 'say Wait. call send {"to": "Oslo"}'
ANSWER = 'Wait.send returned {"sent": "Oslo"}.'
ERROR = {"error": {"code": 400, "message": "m", "status": "INVALID_ARGUMENT"}}


class Refusing(httpx2.AsyncBaseTransport):
    """Refuses so many requests that tell the model a result."""

    def __init__(self, times: int) -> None:
        self.times = times
        self._there = httpx2.AsyncHTTPTransport()

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        marks = (b"functionResponse", b'"role":"tool"', b"function_result")
        body = await request.aread()
        if self.times and any(mark in body for mark in marks):
            self.times -= 1
            return httpx2.Response(400, content=streamed(encode(ERROR)))
        return await self._there.handle_async_request(request)

    async def aclose(self) -> None:
        await self._there.aclose()


@pytest.fixture
async def sender(proxy: Proxy, gemini: StrictGemini) -> AsyncIterator[Proxy]:
    async def send(to: str) -> Any:
        return {"sent": to}

    proxy.tools.add("send", send)
    await proxy.open()
    proxy.transport = Refusing(2)
    yield proxy
    await proxy.transport.aclose()


async def ask(proxy: Proxy, path: str, document: Document, sender: bytes = b"") -> bytes:
    """What the client gets; an error where the answer fails."""
    target, config = match("POST", GOOGLE, path), await proxy.grafter.session_config("default")
    assert target is not None
    assert config is not None
    incoming = Incoming(target, config.session, encode(document), asker="someone", sender=sender)
    outcome = await proxy.grafter.request(incoming, config)
    assert isinstance(outcome, Forward)
    assert outcome.exchange is not None
    headers = [(b"content-type", b"application/json"), (b"authorization", b"Bearer k"), (b"x-goog-api-key", b"k")]
    upstream = Upstream(lambda _: proxy.transport, proxy.watcher)
    address = Address("POST", f"{proxy.url}{path}", headers)
    runner = Runner(proxy.grafter, proxy.executors, upstream, outcome.exchange, address, outcome.body)
    answer = b""
    async with asyncio.timeout(10):
        async for out in runner.output():
            answer += b"" if isinstance(out, Head) else out
    await runner.settle_handover()
    return answer


def events(answer: bytes) -> list[Document]:
    lines = [line.removeprefix(b"data: ") for line in answer.split(b"\n") if line.startswith(b"data: ")]
    return [json.loads(line) for line in lines if line.strip() != b"[DONE]"]


# --- chat completions -----------------------------------------------------------------------------------------


def chat_text(answer: bytes) -> str:
    if not answer.startswith(b"data:"):
        return str(json.loads(answer)["choices"][0]["message"]["content"])
    return "".join(
        choice["delta"].get("content") or "" for event in events(answer) for choice in event.get("choices", [])
    )


@pytest.mark.parametrize("stream", [False, True])
async def test_chat_completions_go_on(sender: Proxy, gemini: StrictGemini, stream: bool) -> None:
    messages: list[Document] = [{"role": "user", "content": WORDS}]
    request: Document = {"model": "gemini-3-flash-preview", "stream": stream, "messages": messages}
    for _ in range(2):
        assert b"INVALID_ARGUMENT" in await ask(sender, CHAT, request)
    answer = await ask(sender, CHAT, request)
    text = chat_text(answer)
    assert text == ANSWER
    assert sender.tools.begun == ["send"]
    later_messages = [*messages, {"role": "assistant", "content": text}, {"role": "user", "content": "thanks"}]
    await ask(sender, CHAT, {**request, "messages": later_messages})
    roles = [message["role"] for message in gemini.requests[-1]["body"]["messages"]]
    assert roles.count("tool") == 1
    assert gemini.refused == []


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", [CHAT, INTERACTIONS])
async def test_another_user_who_asks_the_same_is_not_told_the_first_one_s_results(
    sender: Proxy, path: str, stream: bool
) -> None:
    words: Document = {"messages": [{"role": "user", "content": WORDS}]} if path == CHAT else {"input": WORDS}
    request: Document = {"model": "gemini-3-flash-preview", "stream": stream, **words}
    for user, begun in ((b"ann", 1), (b"bob", 2), (b"bob", 2), (b"ann", 2)):
        await ask(sender, path, request, user)
        assert sender.tools.begun == ["send"] * begun


# --- Interactions ---------------------------------------------------------------------------------------------


def interaction_text(answer: bytes) -> tuple[str, str]:
    """The text of an interaction, and its id."""
    if answer.startswith(b"{"):
        document = json.loads(answer)
        steps = [step for step in document["steps"] if step["type"] == "model_output"]
        return "".join(part["text"] for step in steps for part in step["content"]), document["id"]
    found = events(answer)
    kinds = [event["event_type"] for event in found]
    assert kinds.count("interaction.created") == kinds.count("interaction.completed") == 1
    assert kinds[0] == "interaction.created"
    text = "".join(event["delta"].get("text", "") for event in found if event["event_type"] == "step.delta")
    return text, found[kinds.index("interaction.completed")]["interaction"]["id"]


@pytest.mark.parametrize("stream", [False, True])
async def test_interactions_go_on(sender: Proxy, gemini: StrictGemini, stream: bool) -> None:
    request: Document = {"model": "gemini-3-flash-preview", "input": WORDS, "stream": stream}
    for _ in range(2):
        assert b"INVALID_ARGUMENT" in (await ask(sender, INTERACTIONS, request)).upper()
    text, name = interaction_text(await ask(sender, INTERACTIONS, request))
    assert text == ANSWER
    assert sender.tools.begun == ["send"]
    more = {**request, "input": "repeat the results", "previous_interaction_id": name}
    assert "Oslo" in interaction_text(await ask(sender, INTERACTIONS, more))[0]
    assert gemini.refused == []


# --- the front doors ------------------------------------------------------------------------------------------


@pytest.fixture
async def home(tmp_path: Path, gemini: StrictGemini) -> AsyncIterator[House]:
    async def send(to: str) -> Any:
        return {"sent": to}

    house = House(state=tmp_path, upstream=gemini.url)
    house.proxy.tools.add("send", send)
    await house.open()
    house.proxy.transport = Refusing(2)
    yield house
    await house.close()


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("conversation", [None, "c"])
async def test_a_response_goes_on(home: House, gemini: StrictGemini, stream: bool, conversation: str | None) -> None:
    more: Any = {"conversation": conversation} if conversation else {}
    for _ in range(2):
        failed = await home.post("/v1/responses", {"model": "gemini-3-flash", "input": WORDS, "stream": stream, **more})
        assert "error" in failed.text
    if stream:
        text = "".join(event.get("delta", "") for event in await home.respond_stream(WORDS, **more) if "delta" in event)
    else:
        answer = await home.respond(WORDS, **more)
        text = answer["output"][0]["content"][0]["text"]
    assert text == ANSWER
    assert home.proxy.tools.begun == ["send"]
    assert gemini.refused == []


@pytest.mark.parametrize("stream", [False, True])
async def test_gemini_s_own_door_goes_on(home: House, gemini: StrictGemini, stream: bool) -> None:
    asked: Document = {"model": "gemini-3-flash", "input": WORDS, "conversation": "c", "stream": stream}
    for _ in range(2):
        assert "INVALID_ARGUMENT" in (await home.post("/v1/gemini", asked)).text
    ask: Any = home.gemini_stream if stream else home.gemini
    found = await ask(WORDS, conversation="c")
    documents = found if isinstance(found, list) else [found]
    parts = [part for one in documents for part in one["candidates"][0]["content"]["parts"]]
    assert "".join(part.get("text", "") for part in parts) == ANSWER
    assert home.proxy.tools.begun == ["send"]
    assert gemini.refused == []


@pytest.mark.parametrize("what", ["user", "program", "token"])
@pytest.mark.parametrize("path", ["/v1/gemini", "/v1/responses"])
async def test_at_a_door_another_user_runs_calls_of_its_own(
    home: House, monkeypatch: pytest.MonkeyPatch, path: str, what: str
) -> None:
    asked: Document = {"model": "gemini-3-flash", "input": WORDS}
    assert "error" in (await home.post(path, asked)).text
    if what == "token":
        monkeypatch.setattr("addon.web.guard.ANYONE", dataclasses.replace(ANYONE, token="another"))
    headers = {"user": {"x_user": "bob"}, "program": {"user_agent": "curl/8"}}.get(what, {})
    assert isinstance(home.proxy.transport, Refusing)
    home.proxy.transport.times = 0
    answer = await home.post(path, asked, **headers)
    assert answer.status_code == 200, answer.text
    assert home.proxy.tools.begun == ["send"] * 2
