"""Chat completions through the graft and the loop, before the strict local Gemini: the ledger knows their turns."""

import asyncio
import logging
from typing import Any

import httpx2
import pytest

from addon.core.framing.documents import Document, decode, encode
from addon.fake_gemini.server import StrictGemini
from addon.graft.exchange import Forward, Reply
from addon.loop.runner import Head, Runner
from addon.loop.upstream import Address, Upstream
from addon.surfaces.incoming import Incoming
from addon.surfaces.registry import match
from store.models import Status, Toolset
from tests.loop.conftest import Proxy, Scripted

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
        self.answer = b""  # the last, as it came

    async def say(self, text: str) -> str:
        self.messages.append({"role": "user", "content": text})
        message = await self.ask()
        self.messages.append(message)
        return str(message.get("content") or "")

    async def ask(self) -> Document:
        assert TARGET is not None
        config = await self.proxy.grafter.session_config("default")
        assert config is not None
        body = encode({**self.body, "messages": self.messages})
        outcome = await self.proxy.grafter.request(Incoming(TARGET, config.session, body), config)
        if isinstance(outcome, Reply):
            return message_of(outcome.body)
        assert isinstance(outcome, Forward)
        assert outcome.exchange is not None
        headers = [(b"content-type", b"application/json"), (b"authorization", b"Bearer k")]
        address = Address("POST", f"{self.proxy.url}{PATH}", headers)
        upstream = Upstream(lambda _: self.proxy.transport, self.proxy.watcher)
        runner = Runner(self.proxy.grafter, self.proxy.executors, upstream, outcome.exchange, address, outcome.body)
        self.answer = b""
        async with asyncio.timeout(10):
            async for out in runner.output():
                if isinstance(out, Head):
                    assert out.status == 200
                else:
                    self.answer += out
        await runner.settle_handover()
        return message_of(self.answer)


def message_of(answer: bytes) -> Document:
    """The message of an answer, whole or streamed."""
    if not answer.startswith(b"data: "):
        message: Document = decode(answer)["choices"][0]["message"]
        return message
    *events, done, rest = answer.split(b"\n\n")
    assert (done, rest) == (b"data: [DONE]", b"")
    reply: Document = {"role": "assistant", "content": ""}
    for event in events:
        for choice in decode(event.removeprefix(b"data: "))["choices"]:
            reply["content"] += choice["delta"].get("content", "")
            calls = [{k: v for k, v in one.items() if k != "index"} for one in choice["delta"].get("tool_calls", [])]
            if calls:
                reply["tool_calls"] = reply.get("tool_calls", []) + calls
    return reply


def sent_messages(gemini: StrictGemini) -> list[Any]:
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
    assert sent_messages(gemini).count(["weather"]) == 4
    assert sent_messages(gemini).count(["weather"] * 2) == sent_messages(gemini).count(["weather"] * 3) == 3
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
    assert sent_messages(gemini)[2] == ["weather"]
    assert accepted(gemini)


@pytest.mark.usefixtures("tools")
@STREAMS
async def test_an_answer_that_was_edited_is_the_client_s_own(proxy: Proxy, gemini: StrictGemini, stream: bool) -> None:
    chat = Chat(proxy, stream=stream)
    await chat.say('call weather {"place": "Rome"}')
    chat.messages[-1]["content"] = "Sunny."
    await chat.say("repeat the results")
    assert sent_messages(gemini)[1] == "Sunny."
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
    assert sent_messages(gemini)[1:3] == ['I note.\n[Called note with {"a":1}]', '[note returned {"result":"done"}]']
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
    await proxy.store.answer(call.session, call.call_id, result={"celsius": 9})
    chat.messages[-1]["content"] = "Tool call completed"
    assert "9" in await chat.say("repeat the results")
    assert sent_messages(gemini)[1:3] == [["weather"], '{"celsius":9}']
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
    await proxy.store.answer(call.session, call.call_id, result={"celsius": 9})
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
async def test_a_body_that_is_no_chat_completion_passes_with_a_warning(
    proxy: Proxy, stream: bool, caplog: pytest.LogCaptureFixture
) -> None:
    assert TARGET is not None
    config = await proxy.grafter.session_config("default")
    assert config is not None
    body = encode({"messages": [], "functions": [{"name": "f"}], "stream": stream})
    with caplog.at_level(logging.WARNING, "toolgraft"):
        assert await proxy.grafter.request(Incoming(TARGET, config.session, body), config) == Forward(body)
    assert "functions is the older form, before tools" in caplog.text


@pytest.mark.usefixtures("tools")
@STREAMS
async def test_a_client_sees_the_last_prompt_and_all_output_in_its_own_counts(proxy: Proxy, stream: bool) -> None:
    call = {"id": "c", "type": "function", "function": {"name": "weather", "arguments": "{}"}}
    reply = "delta" if stream else "message"
    one: Document = {"choices": [{"index": 0, reply: {"tool_calls": [call]}, "finish_reason": "tool_calls"}]}
    two: Document = {"choices": [{"index": 0, reply: {"content": "It rains."}, "finish_reason": "stop"}]}
    kind = "text/event-stream" if stream else "application/json"

    def answer(document: Document, prompt: int, output: int, reasoning: int) -> httpx2.Response:
        usage = {"prompt_tokens": prompt, "completion_tokens": output, "total_tokens": prompt + output}
        details = {"reasoning_tokens": reasoning}
        body = encode({"id": "x", **document, "usage": {**usage, "completion_tokens_details": details}})
        return httpx2.Response(200, headers={"content-type": kind}, content=b"data: %b\n\n" % body if stream else body)

    proxy.upstream(Scripted(answer(one, 100, 20, 5), answer(two, 150, 30, 6)))
    chat = Chat(proxy, stream=stream)
    assert await chat.say("hello") == "It rains."
    body = chat.answer.removesuffix(b"\n\ndata: [DONE]\n\n").rpartition(b"data: ")[2]
    usage = decode(body)["usage"]
    assert usage["completion_tokens_details"] == {"reasoning_tokens": 11}
    assert [usage[name] for name in ("prompt_tokens", "completion_tokens", "total_tokens")] == [150, 50, 200]
    (turn,) = await proxy.turns()
    assert [one["promptTokenCount"] for one in turn.usage] == [100, 150]
