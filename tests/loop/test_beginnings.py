"""A client that has the beginning of a loop's answer may continue with it: it never gets calls of another chat."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx2
import pytest

from addon.core.framing.documents import encode
from addon.graft import late_writes
from addon.loop.runner import Head
from addon.loop.server import LoopServer
from addon.surfaces.incoming import Framing
from store.base import StoreUnavailable
from tests.contents import model, user
from tests.loop.conftest import Item, Proxy, Scripted, call, google_error, says, until
from tests.loop.retrying import responses
from tests.loop.test_chat import Chat

STREAMS = [Framing.SSE, Framing.ARRAY]
SURFACES = ["developer", "codeassist"]
ANOTHER = {"generationConfig": {"temperature": 0.5}}
"""Of another chat with the same words: its request has not the same bytes."""


def wrapped(surface: str, *items: Item) -> list[Any]:
    return [{"response": one} if surface == "codeassist" and isinstance(one, dict) else one for one in items]


async def begin(proxy: Proxy, framing: Framing, surface: str, when: bytes) -> None:
    """A client that asks, and hangs up when it has been sent this."""
    runner, played = await proxy.prepare([user("yes")], framing, surface=surface)
    answering = LoopServer().answer(runner)
    while when not in played.body and not answering.over:
        for piece in await answering.take():
            played.take(piece)
    if not answering.over:
        task = answering._task
        assert task is not None
        answering.cancel()
        await asyncio.wait({task})


async def goes_on(proxy: Proxy, surface: str, text: str) -> bool:
    """Whether a chat that goes on with this text is sent calls."""
    upstream = proxy.upstream(Scripted(wrapped(surface, says("ok", finish="STOP"))))
    await proxy.ask("yes", model(text), user("and now?"), surface=surface)
    (body,) = upstream.bodies
    return b"functionCall" in encode(body)


async def other_chat(proxy: Proxy, surface: str, *texts: str) -> None:
    """Another chat, that asks the same, and has a hidden call in an answer that says this."""
    step, *rest = [[says(text, call("send"), finish="STOP")] for text in texts[:-1]], says(texts[-1], finish="STOP")
    proxy.upstream(Scripted(*[wrapped(surface, *one) for one in step], wrapped(surface, *rest)))
    await proxy.ask("yes", framing=Framing.SSE, surface=surface, **ANOTHER)


@pytest.mark.parametrize("framing", STREAMS)
@pytest.mark.parametrize("surface", SURFACES)
async def test_beginnings_of_one_round(sender: Proxy, framing: Framing, surface: str) -> None:
    sender.upstream(Scripted(wrapped(surface, says("Done."), says(" I"), asyncio.Event())))
    await begin(sender, framing, surface, b" I")
    for text in ("Done.", "Done. I"):
        await other_chat(sender, surface, "", text)
        assert not await goes_on(sender, surface, text)
    await other_chat(sender, surface, "", "Done. I have")
    assert await goes_on(sender, surface, "Done. I have"), "that it cannot have"


@pytest.mark.parametrize("framing", STREAMS)
@pytest.mark.parametrize("surface", SURFACES)
async def test_beginnings_of_several_rounds(sender: Proxy, framing: Framing, surface: str) -> None:
    step = wrapped(surface, says("O"), says("K. "), says(call("send"), finish="STOP"))
    sender.upstream(Scripted(step, wrapped(surface, says("Do"), says("ne."), asyncio.Event())))
    await begin(sender, framing, surface, b"ne.")
    for texts in (("", "O"), ("", "OK."), ("OK. ", "Do"), ("OK. ", "Done.")):
        await other_chat(sender, surface, *texts)
        assert not await goes_on(sender, surface, "".join(texts))


@pytest.mark.parametrize("framing", STREAMS)
@pytest.mark.parametrize(
    "breaks",
    [
        [httpx2.ReadError("reset")],
        [says(call("send"), finish="STOP"), httpx2.ReadError("reset")],
        [google_error(503)],
        [b'data: {"functionCall": \r\n\r\n'],
    ],
    ids=["broken off", "broken off behind a call", "error", "unreadable"],
)
async def test_an_answer_that_breaks_off_upstream(sender: Proxy, framing: Framing, breaks: list[Item]) -> None:
    sender.upstream(Scripted([says("Done."), *breaks]))
    await begin(sender, framing, "developer", b"never")
    await other_chat(sender, "developer", "", "Done.")
    assert not await goes_on(sender, "developer", "Done.")


@pytest.mark.parametrize("framing", STREAMS)
async def test_an_error_in_a_later_round(sender: Proxy, framing: Framing) -> None:
    refused = httpx2.Response(400, content=encode(google_error(400)))
    sender.upstream(Scripted([says("Done.", call("send"), finish="STOP")], refused))
    await begin(sender, framing, "developer", b"never")
    await other_chat(sender, "developer", "", "Done.")
    assert not await goes_on(sender, "developer", "Done.")


async def test_a_client_that_was_sent_all_and_is_gone_has_all_of_it_or_a_beginning(sender: Proxy) -> None:
    sender.upstream(Scripted([says("O"), says("K. ", call("send"), finish="STOP")], [says("Done.", finish="STOP")]))
    runner, played = await sender.prepare([user("yes")], Framing.SSE)
    async for out in runner.output():
        played.take(out)
    await runner.settle_handover(False)
    assert await goes_on(sender, "developer", "OK. Done.")
    await other_chat(sender, "developer", "", "O")
    assert not await goes_on(sender, "developer", "O")


async def test_the_proxy_stops(sender: Proxy) -> None:
    sender.upstream(Scripted([says("Done."), asyncio.Event()]))
    runner, _ = await sender.prepare([user("yes")], Framing.SSE)
    loops = LoopServer()
    answering = loops.answer(runner)
    got: list[Head | bytes] = []
    while not any(isinstance(piece, bytes) for piece in got):
        got += await answering.take()
    await loops.stop()
    await other_chat(sender, "developer", "", "Done.")
    assert not await goes_on(sender, "developer", "Done.")


async def test_a_retry_that_says_more_is_found(sender: Proxy) -> None:
    step, answer = [says("Wait. ", call("send"), finish="STOP")], [says("Do"), says("ne.", finish="STOP")]
    sender.upstream(Scripted(step, [answer[0], asyncio.Event()], answer))
    runner, played = await sender.prepare([user("yes")], Framing.SSE)
    output = runner.output()

    async def read() -> None:
        async for out in output:
            played.take(out)

    reading = asyncio.ensure_future(read())
    await until(lambda: b"Do" in played.body)
    reading.cancel()
    await asyncio.wait({reading})
    await output.aclose()
    retry = await sender.ask("yes", framing=Framing.SSE)
    assert retry.text == "Wait. Done."
    assert await goes_on(sender, "developer", "Wait. Done.")
    assert not await goes_on(sender, "developer", "Wait. Do")


async def test_chat_completions(sender: Proxy) -> None:
    """Another language, whose events are all made by the proxy."""

    def delta(finish: str | None = None, **delta: Any) -> bytes:
        choice = {"index": 0, "delta": delta, "finish_reason": finish}
        return b"data: %b\n\n" % encode({"id": "x", "object": "chat.completion.chunk", "choices": [choice]})

    tool_call = {"index": 0, "id": "c1", "type": "function", "function": {"name": "send", "arguments": "{}"}}
    answers: list[list[bytes | Exception]] = [
        [delta(content="Done"), delta(content="."), httpx2.ReadError("reset")],
        [delta(tool_calls=[tool_call]), delta("tool_calls")],
        [delta(content="Done."), delta("stop")],
        [delta(content="ok"), delta("stop")],
    ]
    bodies: list[bytes] = []

    async def stream() -> AsyncIterator[bytes]:
        for piece in answers.pop(0):
            if isinstance(piece, Exception):
                raise piece
            yield piece
        yield b"data: [DONE]\n\n"

    async def answer(request: httpx2.Request) -> httpx2.Response:
        bodies.append(request.content)
        return httpx2.Response(200, headers={"content-type": "text/event-stream"}, content=stream())

    sender.transport = httpx2.MockTransport(answer)
    chat, another = Chat(sender, stream=True), Chat(sender, stream=True, temperature=0.5)
    with pytest.raises(httpx2.ReadError):
        await chat.say("yes")
    assert await another.say("yes") == "Done."
    chat.messages.append({"role": "assistant", "content": "Done."})
    assert await chat.say("and now?") == "ok"
    assert b"tool_calls" not in bodies[-1]


async def test_a_retry_that_says_what_the_client_was_sent_before_is_found(sender: Proxy) -> None:
    """Only the end was missing. The words are those of this turn in both cases."""
    step, answer = [says("Wait. ", call("send"), finish="STOP")], [says("Done."), says(finish="STOP")]
    sender.upstream(Scripted(step, [answer[0], asyncio.Event()], answer))
    await begin(sender, Framing.SSE, "developer", b"Done.")
    retry = await sender.ask("yes", framing=Framing.SSE)
    assert retry.text == "Wait. Done."
    assert await goes_on(sender, "developer", "Wait. Done.")


@pytest.mark.parametrize("ended", [True, False])
async def test_what_a_retry_says_otherwise_does_not_stand_for_the_words_that_the_client_has(
    sender: Proxy, ended: bool
) -> None:
    """The client asks again, and goes on from the answer before. That one may even have ended, unread."""
    step = [says("Wait. ", call("send"), finish="STOP")]
    end: Any = says(finish="STOP") if ended else asyncio.Event()
    sender.upstream(Scripted(step, [says("Done."), end], [says("Sent.", finish="STOP")]))
    if ended:
        runner, played = await sender.prepare([user("yes")], Framing.SSE)
        async for out in runner.output():
            played.take(out)
        await runner.settle_handover(False)
    else:
        await begin(sender, Framing.SSE, "developer", b"Done.")
    assert (await sender.ask("yes", framing=Framing.SSE)).text == "Wait. Sent."
    assert not await goes_on(sender, "developer", "Wait. Done.")
    assert await goes_on(sender, "developer", "Wait. Sent.")


async def test_a_client_that_has_all_but_the_end_goes_on_with_its_own_calls(sender: Proxy) -> None:
    step = [says("Wait. ", call("send"), finish="STOP")]
    sender.upstream(Scripted(step, [says("Done."), asyncio.Event()]))
    await begin(sender, Framing.SSE, "developer", b"Done.")
    upstream = sender.upstream(Scripted([says("ok", finish="STOP")]))
    await sender.ask("yes", model("Wait. Done."), user("and now?"))
    assert responses(upstream.bodies[-1]) == [{"result": "sent 1"}]
    await other_chat(sender, "developer", "Wait. ", "Done.")
    assert not await goes_on(sender, "developer", "Wait. Done."), "whose result it is is not known"


async def test_a_store_that_cannot_take_all_but_the_end_takes_it_later(
    sender: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = [says("Wait. ", call("send"), finish="STOP")]
    sender.upstream(Scripted(step, [says("Done."), asyncio.Event()]))
    save = sender.store.save_turn

    async def refuse_the_end(turn: Any, calls: Any = (), keys: Any = ()) -> None:
        if not calls and keys:
            raise StoreUnavailable("full")
        await save(turn, calls, keys)

    monkeypatch.setattr(sender.store, "save_turn", refuse_the_end)
    await begin(sender, Framing.SSE, "developer", b"Done.")
    monkeypatch.setattr(sender.store, "save_turn", save)
    assert not await goes_on(sender, "developer", "Wait. Done.")
    await until(lambda: not sender.executors.late_writes)
    assert await goes_on(sender, "developer", "Wait. Done.")
    await other_chat(sender, "developer", "Wait. ", "Done.")
    assert not await goes_on(sender, "developer", "Wait. Done."), "whose result it is is not known"


async def test_what_a_retry_has_continued_is_not_taken_later(sender: Proxy, monkeypatch: pytest.MonkeyPatch) -> None:
    """The store refuses the end of the answer that broke off until the retry has ended."""
    step, answer = [says("Wait. ", call("send"), finish="STOP")], [says("Done."), says(finish="STOP")]
    sender.upstream(Scripted(step, [answer[0], asyncio.Event()], answer))
    save, refused = sender.store.save_turn, list[str]()

    async def refuse_the_end(turn: Any, calls: Any = (), keys: Any = ()) -> None:
        if not calls and keys and len(refused) < 2:
            refused.append(turn.turn_id)
            raise StoreUnavailable("full")
        await save(turn, calls, keys)

    monkeypatch.setattr(late_writes, "_FIRST_PAUSE", 3600)
    monkeypatch.setattr(sender.store, "save_turn", refuse_the_end)
    await begin(sender, Framing.SSE, "developer", b"Done.")
    with pytest.raises(StoreUnavailable):
        await sender.executors.catch_up()
    retry = await sender.ask("yes", framing=Framing.SSE)
    assert retry.text == "Wait. Done."
    assert await goes_on(sender, "developer", "Wait. Done.")
    assert not sender.executors.late_writes
    (turn,) = await sender.turns()
    assert turn.delivered
