"""Chat completions through the graft and the loop, before the strict local Gemini: the ledger knows their turns."""

import asyncio
import logging
from typing import Any

import pytest

from addon.core.documents import Document, decode, encode
from addon.demo.server import StrictGemini
from addon.graft.exchange import Forward, Reply
from addon.loop.runner import Head, Runner
from addon.loop.upstream import Address, Upstream
from addon.surfaces import match
from store.models import Status, Toolset
from tests.loop.conftest import Proxy

PATH = "/v1beta/openai/chat/completions"
TARGET = match("POST", "generativelanguage.googleapis.com", PATH)
NOTE: Document = {"type": "function", "function": {"name": "note", "parameters": {"type": "object", "properties": {}}}}

STREAMS = pytest.mark.parametrize("stream", [False, True])


async def weather(place: str = "Oslo") -> Any:
    return {"place": place, "celsius": 3}


class Chat:
    """A chat of an OpenAI client: `messages` are its own."""

    def __init__(self, proxy: Proxy, *, stream: bool, **body: Any) -> None:
        self.proxy = proxy
        self.body = {"model": "gemini-3-flash-preview", "stream": stream, **body}
        self.messages: list[Document] = []

    async def say(self, text: str) -> str:
        self.messages.append({"role": "user", "content": text})
        message = await self.ask()
        self.messages.append(message)
        return str(message.get("content") or "")

    async def ask(self) -> Document:
        assert TARGET is not None
        scope = await self.proxy.grafter.scope("default")
        assert scope is not None
        body = encode({**self.body, "messages": self.messages})
        outcome = await self.proxy.grafter.request(TARGET, scope, body)
        if isinstance(outcome, Reply):
            return message_of(outcome.body)
        assert isinstance(outcome, Forward)
        assert outcome.exchange is not None
        headers = [(b"content-type", b"application/json"), (b"authorization", b"Bearer k")]
        address = Address("POST", f"{self.proxy.url}{PATH}", headers)
        upstream = Upstream(self.proxy.client, self.proxy.watcher)
        runner = Runner(self.proxy.grafter, self.proxy.executors, upstream, outcome.exchange, address, outcome.body)
        answer = b""
        async with asyncio.timeout(10):
            async for out in runner.output():
                if isinstance(out, Head):
                    assert out.status == 200
                else:
                    answer += out
        return message_of(answer)


def message_of(answer: bytes) -> Document:
    """The message of an answer, whole or streamed."""
    if not answer.startswith(b"data: "):
        message: Document = decode(answer)["choices"][0]["message"]
        return message
    *events, done, rest = answer.split(b"\n\n")
    assert (done, rest) == (b"data: [DONE]", b"")
    said: Document = {"role": "assistant", "content": ""}
    for event in events:
        for choice in decode(event.removeprefix(b"data: "))["choices"]:
            said["content"] += choice["delta"].get("content", "")
            calls = [{k: v for k, v in one.items() if k != "index"} for one in choice["delta"].get("tool_calls", [])]
            if calls:
                said["tool_calls"] = said.get("tool_calls", []) + calls
    return said


def told(gemini: StrictGemini) -> list[Any]:
    """The messages of the last request, in short."""
    return [
        [call["function"]["name"] for call in message["tool_calls"]] if "tool_calls" in message else message["content"]
        for message in gemini.requests[-1]["body"]["messages"]
    ]


def accepted(gemini: StrictGemini) -> bool:
    return gemini.refused == [] and gemini.dummy_signatures == 0


@pytest.fixture
async def tools(proxy: Proxy) -> None:
    proxy.tools.add("weather", weather)
    await proxy.open()


@pytest.mark.usefixtures("tools")
@STREAMS
async def test_ten_turns_of_tools_each_tell_all_before_them(proxy: Proxy, gemini: StrictGemini, stream: bool) -> None:
    chat = Chat(proxy, stream=stream)
    for n in range(10):
        step = " and ".join(f'call weather {{"place": "{n}{m}"}}' for m in range(1 + n % 3))
        await chat.say(f"say One moment. {step}" if n % 2 else step)
    assert told(gemini).count(["weather"]) == 4
    assert told(gemini).count(["weather"] * 2) == told(gemini).count(["weather"] * 3) == 3
    assert not any("tool_calls" in message for message in chat.messages)
    assert accepted(gemini)


@pytest.mark.usefixtures("tools")
@STREAMS
async def test_a_history_that_was_cut_at_its_front_is_known(proxy: Proxy, gemini: StrictGemini, stream: bool) -> None:
    chat = Chat(proxy, stream=stream)
    await chat.say("hello")
    await chat.say('call weather {"place": "Rome"}')
    chat.messages = [{"role": "system", "content": "Be brief."}, *chat.messages[2:]]
    assert "Rome" in await chat.say("repeat the results")
    assert told(gemini)[2] == ["weather"]
    assert accepted(gemini)


@pytest.mark.usefixtures("tools")
@STREAMS
async def test_an_answer_that_was_edited_is_the_client_s_own(proxy: Proxy, gemini: StrictGemini, stream: bool) -> None:
    chat = Chat(proxy, stream=stream)
    await chat.say('call weather {"place": "Rome"}')
    chat.messages[-1]["content"] = "Sunny."
    await chat.say("repeat the results")
    assert told(gemini)[1] == "Sunny."
    assert accepted(gemini)


@pytest.mark.usefixtures("tools")
@STREAMS
async def test_the_same_history_gives_the_same_bytes(proxy: Proxy, gemini: StrictGemini, stream: bool) -> None:
    chat = Chat(proxy, stream=stream)
    await chat.say('call weather {"place": "Rome"}')
    await chat.say("hello")
    before = gemini.requests[-1]["body"]["messages"]
    chat.messages = chat.messages[:-2]
    await chat.say("hello")
    assert gemini.requests[-1]["body"]["messages"] == before
    assert accepted(gemini)


@pytest.mark.usefixtures("tools")
@STREAMS
async def test_calls_of_tools_that_nothing_declares_are_told_in_words(
    proxy: Proxy, gemini: StrictGemini, stream: bool
) -> None:
    chat = Chat(proxy, stream=stream, tools=[NOTE])
    call = {"id": "x", "type": "function", "function": {"name": "note", "arguments": '{"a": 1}'}}
    chat.messages = [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "I note.", "tool_calls": [call], "name": "n"},
        {"role": "tool", "tool_call_id": "x", "content": "done"},
    ]
    await chat.say("hello")
    assert told(gemini)[1:3] == ['I note.\n[Called note with {"a":1}]', '[note returned {"result":"done"}]']
    assert gemini.requests[-1]["body"]["messages"][1]["name"] == "n"
    assert accepted(gemini)


@pytest.mark.usefixtures("tools")
@STREAMS
async def test_a_bare_placeholder_is_bound_to_its_step(proxy: Proxy, gemini: StrictGemini, stream: bool) -> None:
    await proxy.policy(delivery="placeholder")
    chat = Chat(proxy, stream=stream)
    await chat.say('call weather {"place": "Rome"}')
    (call,) = await proxy.calls()
    assert call.status is Status.PENDING
    await proxy.store.answer(call.call_id, result={"celsius": 9})
    chat.messages[-1]["content"] = "Tool call completed"
    assert "9" in await chat.say("repeat the results")
    assert told(gemini)[1:3] == [["weather"], '{"celsius":9}']
    assert accepted(gemini)


@pytest.mark.usefixtures("tools")
@STREAMS
async def test_a_passed_through_call_without_an_answer_gets_the_stored_one(
    proxy: Proxy, gemini: StrictGemini, stream: bool
) -> None:
    await proxy.policy(delivery="passthrough")
    chat = Chat(proxy, stream=stream)
    await chat.say('call weather {"place": "Rome"}')
    (call,) = await proxy.calls()
    await proxy.store.answer(call.call_id, result={"celsius": 9})
    assert "9" in await chat.say("repeat the results")
    answer = gemini.requests[-1]["body"]["messages"][2]
    assert answer == {"role": "tool", "tool_call_id": call.gemini_id, "content": '{"celsius":9}'}
    assert accepted(gemini)


@STREAMS
async def test_a_toolset_s_built_in_tools_are_left_out_with_a_warning(
    proxy: Proxy, gemini: StrictGemini, stream: bool, caplog: pytest.LogCaptureFixture
) -> None:
    await proxy.open()
    await proxy.store.put_toolset("default", Toolset(declarations=[{"name": "f"}], builtins=[{"googleSearch": {}}]))
    chat = Chat(proxy, stream=stream)
    with caplog.at_level(logging.WARNING, "toolgraft"):
        await chat.say("hello")
    assert "left out built-in tools" in caplog.text
    assert [one["function"]["name"] for one in gemini.requests[-1]["body"]["tools"]] == ["f"]
    assert accepted(gemini)


@pytest.mark.usefixtures("tools")
@STREAMS
async def test_what_is_no_chat_completion_is_passed_on_with_a_warning(
    proxy: Proxy, stream: bool, caplog: pytest.LogCaptureFixture
) -> None:
    assert TARGET is not None
    scope = await proxy.grafter.scope("default")
    assert scope is not None
    body = encode({"messages": [], "functions": [{"name": "f"}], "stream": stream})
    with caplog.at_level(logging.WARNING, "toolgraft"):
        assert await proxy.grafter.request(TARGET, scope, body) == Forward(body)
    assert "before there were tools" in caplog.text
