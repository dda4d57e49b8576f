"""A repeated request to a front door gets the stored answer if its client did not have it, and its tools do not run
again; a client that has its answer starts a new request."""

import asyncio
import itertools
import json
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import httpx2
import pytest

from addon.core.framing.documents import Document
from addon.gateway.gemini import merge_documents
from addon.graft import late_writes
from addon.web.access import ANYONE
from store.backends.memory import MemoryStore
from store.base import NotDurable, StoreUnavailable, TakeOverUnknown, Traffic
from tests.gateway.conftest import MODEL, URL, House
from tests.loop.conftest import call, says

PATHS = ["/v1/gemini", "/v1/responses"]
STEP, DONE = [says(call("send", "c1"), finish="STOP")], [says("do"), says("ne", finish="STOP", usageMetadata={})]
WHOLE = [says("do", "ne", finish="STOP", usageMetadata={})]

type Send = Callable[[Any], Awaitable[None]]


class Lost(Exception):
    """The connection broke before the end of the answer was written."""


class Line:
    """The way to a house: `sent` is what was written, and `last` is asked before the last piece is."""

    def __init__(self, house: House, last: Callable[[], Awaitable[None]]) -> None:
        self.house = house
        self.sent = b""
        self._last = last

    async def __call__(self, scope: Any, receive: Any, send: Send) -> None:
        async def noted(message: Any) -> None:
            if message["type"] == "http.response.body" and not message.get("more_body"):
                self.sent += message.get("body", b"")
                await self._last()
            self.sent += message.get("body", b"") if message.get("more_body") else b""
            await send(message)

        await self.house.app(scope, receive, noted)

    async def post(self, path: str, document: Document, **headers: str) -> httpx2.Response:
        async with httpx2.AsyncClient(transport=httpx2.ASGITransport(self), base_url=URL) as client:
            return await client.post(path, json=document, headers=headers)


async def lose() -> None:
    raise Lost


async def lost(house: House, path: str, document: Document, **headers: str) -> bytes:
    """Ask, and lose the connection when the answer is complete; the bytes that it has."""
    line = Line(house, lose)
    with pytest.raises(Lost):
        await line.post(path, document, **headers)
    return line.sent


async def die(house: House) -> None:
    """The proxy is gone, as far as the store knows, and another one in its place."""
    await house.store.drop("this")
    house.proxy.executors.proxy_id = "next"
    await house.store.hold("next", 3600)


@pytest.fixture
async def sender(house: House) -> House:
    """With a tool, `send`."""
    await house.proxy.close()
    return await with_tool(house)


async def with_tool(house: House) -> House:
    async def send() -> str:
        return "sent"

    house.proxy.tools.add("send", send)
    await house.open()
    return house


@pytest.fixture
async def syncing(sender: House, monkeypatch: pytest.MonkeyPatch) -> asyncio.Event:
    """Set when the first flush has begun, which comes to no end."""
    has_begun, sync = asyncio.Event(), sender.store.sync

    async def slow() -> None:
        monkeypatch.setattr(sender.store, "sync", sync)
        has_begun.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(sender.store, "sync", slow)
    return has_begun


def begun(house: House) -> int:
    """How often the tool was run."""
    return len(house.proxy.tools.begun)


def rounds(house: House, *, stream: bool, times: int = 1) -> Any:
    return house.upstream(*[STEP, DONE if stream else WHOLE] * times)


def whole_answer(path: str, body: bytes, *, stream: bool) -> Document:
    """The whole answer: of a stream what it comes to."""
    text = body.decode()
    if not stream:
        found: Document = json.loads(text)
        return found
    events = [json.loads(line.removeprefix("data: ")) for line in text.splitlines() if line.startswith("data: ")]
    if path == "/v1/responses":
        assert [event["sequence_number"] for event in events] == list(range(len(events)))
        assert [event["type"] for event in events][:2] == ["response.created", "response.in_progress"]
        response: Document = events[-1]["response"]
        return response
    parts = [part for event in events for one in event["candidates"] for part in one["content"]["parts"]]
    return {**events[-1], "candidates": parts}


def asked(stream: bool, conversation: str | None, **more: Any) -> Document:
    return {"model": MODEL, "input": "x", "stream": stream, "conversation": conversation, **more}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("conversation", ["chat", None])
async def test_an_answer_that_was_lost_on_its_way_is_given_to_the_retry_once(
    sender: House, conversation: str | None, path: str, stream: bool
) -> None:
    upstream = rounds(sender, stream=stream, times=2)
    document = asked(stream, conversation)
    first = whole_answer(path, await lost(sender, path, document), stream=stream)
    retry = await sender.post(path, document)
    assert whole_answer(path, retry.content, stream=stream) == first
    assert (begun(sender), len(upstream.bodies)) == (1, 2)
    second = whole_answer(path, (await sender.post(path, document)).content, stream=stream)
    assert second != first
    assert (begun(sender), len(upstream.bodies)) == (2, 4)
    words = [part.get("text") for content in upstream.bodies[-1]["contents"] for part in content["parts"]]
    assert words.count("x") == (2 if conversation else 1), "the turn is there once"


async def test_an_answer_whose_response_is_deleted_while_the_retry_takes_it_is_made_anew(
    sender: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    rounds(sender, stream=False, times=3)
    document = asked(False, "chat")
    first = json.loads(await lost(sender, "/v1/responses", document))
    await sender.respond("y", conversation="chat")  # goes on with it, so that the record stays
    take_answer = sender.store.take_answer

    async def deleting(*arguments: Any, **options: Any) -> Any:
        found = await take_answer(*arguments, **options)
        await sender.store.delete_response("default", first["id"])
        return found

    monkeypatch.setattr(sender.store, "take_answer", deleting)
    answer = (await sender.post("/v1/responses", document)).json()
    assert (answer["status"], answer["id"] == first["id"]) == ("completed", False)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", PATHS)
async def test_a_proxy_that_died_before_its_client_had_the_answer_gives_it_to_the_retry(
    sender: House, path: str, stream: bool
) -> None:
    upstream = rounds(sender, stream=stream)
    never, reached = asyncio.Event(), asyncio.Event()

    async def hang() -> None:
        reached.set()
        await never.wait()

    line, document = Line(sender, hang), asked(stream, "chat")
    asking = asyncio.ensure_future(line.post(path, document))
    async with asyncio.timeout(5):
        await reached.wait()
    await die(sender)
    retry = await sender.post(path, document)
    assert whole_answer(path, retry.content, stream=stream) == whole_answer(path, line.sent, stream=stream)
    assert (begun(sender), len(upstream.bodies)) == (1, 2)
    asking.cancel()
    await asyncio.wait([asking])


@pytest.mark.parametrize("path", PATHS)
async def test_the_same_request_beside_one_whose_answer_is_on_its_way_is_a_request_of_its_own(
    sender: House, path: str
) -> None:
    rounds(sender, stream=False, times=2)
    never, reached = asyncio.Event(), asyncio.Event()

    async def hang() -> None:
        reached.set()
        await never.wait()

    asking = asyncio.ensure_future(Line(sender, hang).post(path, asked(False, None)))
    async with asyncio.timeout(5):
        await reached.wait()
    await sender.post(path, asked(False, None))
    assert begun(sender) == 2
    never.set()
    assert (await asking).status_code == 200


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("what", ["words", "key", "session", "door", "token", "user", "program", "tried with a key"])
async def test_only_the_same_request_of_the_same_asker_gets_the_earlier_answer(
    sender: House, monkeypatch: pytest.MonkeyPatch, path: str, what: str
) -> None:
    rounds(sender, stream=False, times=2)
    await lost(sender, path, asked(False, None))
    other = next(one for one in PATHS if one != path) if what == "door" else path
    if what == "token":
        monkeypatch.setattr("addon.web.guard.ANYONE", replace(ANYONE, token="another"))
    headers = {
        "key": {"x-goog-api-key": "another"},
        "session": {"x-graft-session": "two"},
        "user": {"x-openwebui-user-id": "another"},
        "program": {"user-agent": "another"},
        "tried with a key": {"idempotency-key": "another"},
    }.get(what, {})
    answer = await sender.http.post(
        other, json=asked(False, None) | ({"input": "y"} if what == "words" else {}), headers=headers
    )
    assert answer.status_code == 200, answer.text
    assert begun(sender) == 2


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("whole", [True, False])
async def test_an_answer_is_the_client_s_when_the_operating_system_has_taken_it_and_not_when_it_was_written(
    sender: House, path: str, whole: bool
) -> None:
    rounds(sender, stream=False, times=2)

    async def flushed() -> bool:
        return whole

    async def app(scope: Any, receive: Any, send: Send) -> None:
        await sender.app(scope | {"state": {"flushed": flushed}}, receive, send)

    async with httpx2.AsyncClient(transport=httpx2.ASGITransport(app), base_url=URL) as client:
        first = await client.post(path, json=asked(False, None))
    retried = await sender.post(path, asked(False, None))
    assert (retried.content == first.content) is not whole
    assert begun(sender) == (2 if whole else 1)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", PATHS)
async def test_the_turn_of_a_stored_response_is_delivered_before_the_client_has_its_end(
    sender: House, path: str, stream: bool
) -> None:
    """The conversation holds the turn, so a proxy that dies now leaves nothing to be continued."""
    rounds(sender, stream=stream)
    delivered: list[bool] = []

    async def look() -> None:
        delivered.extend(turn.delivered for turn in (await sender.store.turns("default")).items)

    await Line(sender, look).post(path, asked(stream, "chat"))
    assert delivered == [True]


@pytest.mark.parametrize("path", PATHS)
async def test_a_kept_answer_is_given_when_it_is_on_disk(
    sender: House, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    """The flush may have failed for which the first client did not get it."""
    rounds(sender, stream=False)
    first = await lost(sender, path, asked(False, None))
    sync = sender.store.sync

    async def failing() -> None:
        monkeypatch.setattr(sender.store, "sync", sync)
        raise NotDurable("the disk has failed")

    monkeypatch.setattr(sender.store, "sync", failing)
    refused = await sender.post(path, asked(False, None))
    assert refused.status_code == 503
    assert "the change was made, but the disk or all replicas have failed" in refused.text
    assert (await sender.post(path, asked(False, None))).content == first
    assert begun(sender) == 1


@pytest.mark.parametrize("path", PATHS)
async def test_an_answer_that_was_lost_longer_ago_than_the_window_is_not_given(sender: House, path: str) -> None:
    rounds(sender, stream=False, times=2)
    await lost(sender, path, asked(False, None))
    uptime = sender.store.uptime
    sender.store.uptime = lambda: uptime() + 61
    await sender.store.hold("this", 3600)
    await sender.post(path, asked(False, None))
    assert begun(sender) == 2


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", PATHS)
async def test_a_client_that_hangs_up_while_its_answer_is_flushed_to_disk_gets_it_when_it_asks_again(
    sender: House, syncing: asyncio.Event, path: str, stream: bool
) -> None:
    upstream, left = rounds(sender, stream=stream), asyncio.Event()
    document = asked(stream, "chat")
    body, given = json.dumps(document).encode(), itertools.count()

    async def receive() -> Any:
        if next(given):
            await left.wait()
            return {"type": "http.disconnect"}
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: Any) -> None:
        pass

    request = httpx2.Request("POST", URL + path, content=body, headers={"content-type": "application/json"})
    scope = {"type": "http", "method": "POST", "path": path, "root_path": "", "query_string": b""}
    asking = asyncio.ensure_future(
        sender.app({**scope, "headers": [(k.lower(), v) for k, v in request.headers.raw]}, receive, send)
    )
    async with asyncio.timeout(5):
        await syncing.wait()
    left.set()
    async with asyncio.timeout(5):
        await asking
    assert [turn.delivered for turn in (await sender.store.turns("default")).items] == [True], "with its response"
    retry = await sender.http.send(request)
    assert "ne" in retry.text
    assert retry.status_code == 200
    assert (begun(sender), len(upstream.bodies)) == (1, 2)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", PATHS)
async def test_a_proxy_that_ends_while_an_answer_is_flushed_to_disk_leaves_it_to_the_retry(
    sender: House, syncing: asyncio.Event, path: str, stream: bool
) -> None:
    upstream = rounds(sender, stream=stream)
    asking = asyncio.ensure_future(sender.post(path, asked(stream, "chat")))
    async with asyncio.timeout(5):
        await syncing.wait()
    sender.app.stop()
    assert stream or (await asking).status_code == 503
    await asyncio.wait([asking])
    await sender.restart()
    retry = await sender.post(path, asked(stream, "chat"))
    assert retry.status_code == 200
    assert "ne" in retry.text
    assert len(upstream.bodies) == 2


@pytest.mark.parametrize("path", PATHS)
async def test_an_answer_whose_proxy_died_while_it_was_flushed_to_disk_is_given_once(
    sender: House, syncing: asyncio.Event, path: str
) -> None:
    """What its tools have done is given with it, and to nobody else."""
    upstream = rounds(sender, stream=False, times=2)
    asking = asyncio.ensure_future(sender.post(path, asked(False, None)))
    async with asyncio.timeout(5):
        await syncing.wait()
    await die(sender)
    assert (await sender.post(path, asked(False, None))).status_code == 200
    assert (begun(sender), len(upstream.bodies)) == (1, 2)
    assert (await sender.post(path, asked(False, None))).status_code == 200
    assert (begun(sender), len(upstream.bodies)) == (2, 4)
    assert upstream.bodies[2] == upstream.bodies[0], "it begins again"
    asking.cancel()
    await asyncio.wait([asking])


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", PATHS)
async def test_a_retry_after_a_failed_flush_requests_the_last_round_again(
    sender: House, monkeypatch: pytest.MonkeyPatch, path: str, stream: bool
) -> None:
    """What was refused is not in the conversation any more, and its tools have run."""
    last = DONE if stream else WHOLE
    upstream = sender.upstream(STEP, last, last, STEP, last)
    sync = sender.store.sync

    async def failing() -> None:
        monkeypatch.setattr(sender.store, "sync", sync)
        raise StoreUnavailable("the disk is full")

    monkeypatch.setattr(sender.store, "sync", failing)
    failed = await sender.post(path, asked(stream, "chat"))
    assert "the response could not be safely stored" in failed.text
    retry = await sender.post(path, asked(stream, "chat"))
    assert "completed" in retry.text or "STOP" in retry.text
    assert (begun(sender), len(upstream.bodies)) == (1, 3)
    assert "functionResponse" in str(upstream.bodies[2]), "the last round, with the result of the tool that has run"
    await sender.post(path, asked(stream, "chat"))
    assert (begun(sender), len(upstream.bodies)) == (2, 5)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("conversation", ["chat", None])
async def test_an_answer_that_is_not_to_be_stored_is_lost_without_its_tools_running_again(
    sender: House, conversation: str | None, stream: bool
) -> None:
    """In a conversation the answer is kept until it is handed over. Else the loop goes on, with its tools' results."""
    last = DONE if stream else WHOLE
    upstream = sender.upstream(STEP, last, *([] if conversation else [last]), STEP, last)
    document = asked(stream, conversation, store=False)
    await lost(sender, "/v1/responses", document)
    retry = await sender.post("/v1/responses", document)
    assert retry.status_code == 200
    assert "done" in retry.text
    assert (begun(sender), len(upstream.bodies)) == (1, 2 if conversation else 3)
    await sender.post("/v1/responses", document)
    assert begun(sender) == 2


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("conversation", ["chat", None])
async def test_calls_of_an_answer_that_was_lost_keep_their_ids(
    house: House, conversation: str | None, stream: bool
) -> None:
    house.upstream([says("Wait.", call("own", "c1", n=1), finish="STOP")])
    tool = {"type": "function", "name": "own", "parameters": {"type": "object", "properties": {}}}
    document = asked(stream, conversation, tools=[tool], store=False)
    first = whole_answer("/v1/responses", await lost(house, "/v1/responses", document), stream=stream)
    retry = whole_answer("/v1/responses", (await house.post("/v1/responses", document)).content, stream=stream)
    assert retry == first
    assert [item["type"] for item in retry["output"]] == ["message", "function_call"]


async def test_results_that_were_taken_are_not_asked_for_twice(house: House) -> None:
    """Where calls are still open nothing goes upstream: what is owed is told again."""
    house.upstream([says(call("own", "c1", n=1), call("own", "c2", n=2), finish="STOP")])
    tools = [{"functionDeclarations": [{"name": "own"}]}]
    await house.gemini("x", tools=tools, conversation="chat")
    given = {"functionResponse": {"id": "c1", "name": "own", "response": {"n": 1}}}
    document = {"model": MODEL, "input": given, "conversation": "chat"}
    first = json.loads(await lost(house, "/v1/gemini", document))
    assert await house.ask("/v1/gemini", document) == first
    (owed,) = first["candidates"][0]["content"]["parts"]
    assert owed["functionCall"]["id"] == "c2"


async def test_a_response_that_was_deleted_is_not_given(sender: House) -> None:
    rounds(sender, stream=False, times=2)
    first = json.loads(await lost(sender, "/v1/responses", asked(False, None)))
    assert (await sender.http.delete(f"/v1/responses/{first['id']}")).status_code == 200
    retry = await sender.respond("x", stream=False, conversation=None)
    assert retry["id"] != first["id"]
    assert begun(sender) == 2


@pytest.mark.parametrize("path", PATHS)
async def test_an_answer_is_handed_over_however_often_it_was_lost_before(sender: House, path: str) -> None:
    rounds(sender, stream=False)
    answers = [await lost(sender, path, asked(False, "chat")) for _ in range(3)]
    assert (await sender.post(path, asked(False, "chat"))).content == answers[0]
    assert len(set(answers)) == 1
    assert begun(sender) == 1


def test_the_documents_of_a_stream_are_joined_for_each_candidate() -> None:
    stream: list[Document] = [
        {"candidates": [{"content": {"role": "model", "parts": [{"text": "a"}]}, "index": 1}], "modelVersion": "m"},
        {"candidates": [{"content": {"role": "model", "parts": [{"text": "b", "thought": True}]}}]},
        {"candidates": [{"finishReason": "STOP", "index": 0}, {"finishReason": "SAFETY", "index": 1}]},
        {"usageMetadata": {"totalTokenCount": 3}},
    ]
    first = {
        "content": {"role": "model", "parts": [{"text": "b", "thought": True}]},
        "finishReason": "STOP",
        "index": 0,
    }
    second = {"content": {"role": "model", "parts": [{"text": "a"}]}, "finishReason": "SAFETY", "index": 1}
    whole = {"candidates": [first, second], "modelVersion": "m", "usageMetadata": {"totalTokenCount": 3}}
    assert merge_documents(stream) == whole
    assert merge_documents([whole]) is whole
    assert merge_documents([{"promptFeedback": {"blockReason": "SAFETY"}}, {"modelVersion": "m"}]) == {
        "promptFeedback": {"blockReason": "SAFETY"},
        "modelVersion": "m",
    }


@pytest.mark.parametrize("path", PATHS)
async def test_an_answer_that_was_lost_while_the_store_failed_is_given_once_it_works(
    sender: House, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    mark, refused = sender.store.mark_not_handed_over, list[str]()

    async def refuse_once(session: str, response_id: str) -> None:
        if not refused:
            refused.append(response_id)
            raise StoreUnavailable("full")
        await mark(session, response_id)

    monkeypatch.setattr(late_writes, "_FIRST_PAUSE", 3600)
    monkeypatch.setattr(sender.store, "mark_not_handed_over", refuse_once)
    rounds(sender, stream=False)
    await lost(sender, path, asked(False, "c"))
    assert refused
    assert (await sender.post(path, asked(False, "c"))).status_code == 200
    assert begun(sender) == 1


@pytest.mark.parametrize("path", PATHS)
async def test_an_answer_whose_taking_was_not_confirmed_is_given_back(
    sender: House, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    take, taken = sender.store.take_answer, list[str]()

    async def cut_once(*arguments: Any, **named: Any) -> Any:
        found = await take(*arguments, **named)
        if found is not None and not taken:
            taken.append(found[0])
            raise TakeOverUnknown("cut", found[0])
        return found

    monkeypatch.setattr(late_writes, "_FIRST_PAUSE", 0.001)
    monkeypatch.setattr(sender.store, "take_answer", cut_once)
    rounds(sender, stream=False)
    await lost(sender, path, asked(False, "c"))
    assert (await sender.post(path, asked(False, "c"))).status_code == 503
    assert taken
    assert (await sender.post(path, asked(False, "c"))).status_code == 200
    assert begun(sender) == 1


class Server(MemoryStore):
    """A store that has a server, which may lose the latest writes."""

    def __init__(self) -> None:
        super().__init__()
        self.traffic = Traffic()

    def lose_marks(self) -> None:
        assert self._db
        self._db.execute("UPDATE unsent SET broke_off = NULL")
        assert self.on_reconnected is not None
        self.on_reconnected()


@pytest.mark.parametrize("path", PATHS)
async def test_an_answer_is_given_although_the_server_has_lost_that_its_client_has_none(path: str) -> None:
    """Otherwise the retry would be a request of its own, and its conversation would have the turn twice."""
    store = Server()
    house = await with_tool(House(store))
    try:
        rounds(house, stream=False, times=2)
        await lost(house, path, asked(False, "c"))
        store.lose_marks()
        assert (await house.post(path, asked(False, "c"))).status_code == 200
        assert begun(house) == 1
        store.lose_marks()
        assert (await house.post(path, asked(False, "c"))).status_code == 200
        assert begun(house) == 2, "the client has the answer"
    finally:
        await house.close()
