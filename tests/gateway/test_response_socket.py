"""`/v1/responses` over a WebSocket, with a real client and a real server."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from addon.control.app import ControlApp, create_app
from addon.core.framing.documents import Document
from addon.fake_gemini.server import StrictGemini
from addon.gateway import response_socket
from addon.web.server import Bounds, ControlServer, bind
from store.base import StoreUnavailable
from tests.core.dialects.responses.published import event_of, response_of
from tests.gateway.conftest import MODEL, House, until
from tests.gateway.test_responses import TOOLS, calls, output, text
from tests.loop.conftest import says


@asynccontextmanager
async def serving(app: ControlApp, bounds: Bounds | None = None) -> AsyncIterator[str]:
    """The WebSocket's URL."""
    server = ControlServer(app, bind("127.0.0.1", 0), bounds=bounds or Bounds())
    await server.start()
    try:
        yield server.url.replace("http://", "ws://") + "/v1/responses"
    finally:
        async with asyncio.timeout(10):
            await server.stop()


class Client:
    def __init__(self, socket: ClientConnection) -> None:
        self.socket = socket

    async def send(self, given: Any, **more: Any) -> None:
        await self.socket.send(json.dumps({"type": "response.create", "model": MODEL, "input": given, **more}))

    async def message(self) -> Document:
        async with asyncio.timeout(10):
            found: Document = json.loads(await self.socket.recv())
        return found

    async def response(self) -> Document:
        """The next response. Checks its events against the published types."""
        sequence = 0
        while True:
            event = await self.message()
            assert event["type"] != "error", event
            assert event["sequence_number"] == sequence
            event_of(event)
            sequence += 1
            if event["type"] in ("response.completed", "response.failed", "response.incomplete"):
                response_of(event["response"])
                found: Document = event["response"]
                return found

    async def ask(self, given: Any, **more: Any) -> Document:
        await self.send(given, **more)
        return await self.response()

    async def refused(self, given: Any, **more: Any) -> Document:
        await self.send(given, **more)
        return await self.error()

    async def error(self) -> Document:
        message = await self.message()
        assert message["type"] == "error", message
        assert set(message["error"]) == {"message", "type", "param", "code"}
        return message


@pytest.fixture
async def client(home: House) -> AsyncIterator[Client]:
    async with serving(home.app) as url, connect(url) as socket:
        yield Client(socket)


async def test_each_message_is_answered_by_the_events_of_a_response(client: Client, gemini: StrictGemini) -> None:
    first = await client.ask("What is 2+2?")
    second = await client.ask("What is 3+3?")
    assert (text(first), text(second)) == ("2 + 2 = 4.", "3 + 3 = 6.")
    assert len(gemini.requests) == 2


async def test_messages_that_come_together_are_answered_one_after_the_other(client: Client) -> None:
    for n in (2, 3, 4):
        await client.send(f"What is {n}+{n}?")
    assert [text(await client.response()) for _ in range(3)] == ["2 + 2 = 4.", "3 + 3 = 6.", "4 + 4 = 8."]


@pytest.mark.parametrize("store", [False, True])
async def test_a_response_is_continued_stored_or_not(client: Client, gemini: StrictGemini, store: bool) -> None:
    asked = await client.ask("What is the weather in Tokyo?", tools=TOOLS, store=store)
    (made,) = calls(asked)
    answered = await client.ask([output(made, temp=72)], previous_response_id=asked["id"], store=store)
    assert "72" in text(answered)
    await client.ask("Thanks.", previous_response_id=answered["id"], store=store)
    roles = [content["role"] for content in gemini.requests[-1]["body"]["contents"]]
    assert roles == ["user", "model", "user", "model", "user"]
    assert (gemini.refused, gemini.dummy_signatures) == ([], 0)


async def test_what_was_not_stored_is_stored_whole_when_it_is_continued(client: Client, home: House) -> None:
    first = await client.ask("My name is Ada.", store=False)
    second = await client.ask("And yours?", previous_response_id=first["id"], store=True)
    roles = [content["role"] for content in (await home.store.response("default", second["id"])).contents]
    assert roles == ["user", "model", "user", "model"]


async def test_another_connection_cannot_continue_what_is_not_stored(home: House) -> None:
    async with serving(home.app) as url:
        async with connect(url) as socket:
            first = await Client(socket).ask("My name is Ada.", store=False)
        async with connect(url) as socket:
            error = await Client(socket).refused("Hi.", previous_response_id=first["id"], store=False)
            assert (error["status"], error["error"]["code"]) == (400, "previous_response_not_found")
            assert (await Client(socket).ask("Hi."))["status"] == "completed"


async def test_after_a_failure_a_response_that_is_not_stored_is_gone(client: Client) -> None:
    first = await client.ask("My name is Ada.", store=False)
    unknown = [{"type": "function_call_output", "call_id": "call_x", "output": "1"}]
    error = await client.refused(unknown, previous_response_id=first["id"], store=False)
    assert error["error"]["param"] == "input[0].call_id"
    error = await client.refused("Hi.", previous_response_id=first["id"], store=False)
    assert error["error"]["code"] == "previous_response_not_found"


async def test_only_the_failure_of_what_continues_a_response_makes_it_go(client: Client) -> None:
    stored, own = await client.ask("Hi."), await client.ask("My name is Ada.", store=False)
    unknown = [{"type": "function_call_output", "call_id": "call_x", "output": "1"}]
    await client.refused(unknown, previous_response_id=stored["id"], store=False)
    await client.refused(unknown, store=False)
    assert (await client.ask("Hi.", previous_response_id=own["id"], store=False))["status"] == "completed"


async def test_a_response_whose_calls_could_not_be_stored_is_not_continued(
    client: Client, home: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fails(*given: Any, **more: Any) -> None:
        raise StoreUnavailable("no space left")

    own = await client.ask("My name is Ada.", store=False)
    with monkeypatch.context() as broken:
        broken.setattr(home.store, "add_response", fails)
        await client.send("What is the weather in Tokyo?", tools=TOOLS, store=False)
        messages = [await client.message()]
        while messages[-1]["type"] != "error":
            messages.append(await client.message())
    lost = messages[0]["response"]["id"]
    error = await client.refused("Hi.", previous_response_id=lost, store=False)
    assert error["error"]["code"] == "previous_response_not_found"
    assert (await client.ask("Hi.", previous_response_id=own["id"], store=False))["status"] == "completed"


@pytest.mark.parametrize(
    ("message", "param"),
    [
        ("no JSON", None),
        ("[]", "type"),
        ('{"type": "response.cancel"}', "type"),
        ('{"model": "gemini-3-flash", "input": "hi"}', "type"),
        ('{"type": "response.create", "input": "hi"}', "model"),
        ('{"type": "response.create", "model": "gemini-3-flash", "input": "hi", "stream": true}', "stream"),
        ('{"type": "response.create", "model": "gemini-3-flash", "input": "hi", "background": false}', "background"),
        (b'{"type": "response.create", "model": "gemini-3-flash"}', "input"),
        (b"\xff\xfe", None),
    ],
)
async def test_what_is_wrong_is_named_and_the_connection_goes_on(
    client: Client, message: str | bytes, param: str | None
) -> None:
    await client.socket.send(message)
    error = await client.error()
    assert (error["status"], error["error"]["type"]) == (400, "invalid_request_error")
    assert error["error"]["param"] == param
    assert (await client.ask("What is 2+2?"))["status"] == "completed"


async def test_a_response_ends_when_its_client_hangs_up(house: House) -> None:
    upstream = house.upstream([says("begun"), asyncio.Event()])
    async with serving(house.app) as url:
        async with connect(url) as socket:
            await Client(socket).send("hi")
            await until(lambda: len(upstream.bodies) == 1)
            assert house.app.api.active_requests == 1
        await until(lambda: house.app.api.active_requests == 0)


async def test_a_response_in_progress_fails_when_the_proxy_stops(house: House) -> None:
    house.upstream([says("begun"), asyncio.Event()])
    async with serving(house.app) as url, connect(url) as socket:
        client = Client(socket)
        await client.send("hi")
        await until(lambda: house.app.api.active_requests == 1)
        house.app.stop()
        failed = await client.response()
        assert failed["status"] == "failed"
        with pytest.raises(ConnectionClosed):
            await client.message()
        assert socket.close_code == 1013


async def test_a_client_that_does_not_wait_is_cut_off(house: House) -> None:
    house.upstream([asyncio.Event()])
    async with serving(house.app) as url, connect(url) as socket:
        client = Client(socket)
        for _ in range(20):
            await client.send("hi")
        await socket.wait_closed()
        assert socket.close_code == 1008


async def test_a_message_that_is_too_large_ends_the_connection(house: House) -> None:
    async with serving(house.app, Bounds(message=1000)) as url, connect(url) as socket:
        await Client(socket).send("x" * 2000)
        with pytest.raises(ConnectionClosed):
            await Client(socket).message()
        assert socket.close_code == 1009


async def test_an_old_connection_is_told_to_come_again(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(response_socket, "LONGEST", 0.0)
    async with serving(house.app) as url, connect(url) as socket:
        error = await Client(socket).error()
        assert error["error"]["code"] == "websocket_connection_limit_reached"
        with pytest.raises(ConnectionClosed):
            await Client(socket).message()


async def test_a_connection_that_always_asks_becomes_old_as_well(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = asyncio.Event()
    upstream = house.upstream([gate, says("one")], [says("two")])
    async with serving(house.app) as url, connect(url) as socket:
        client = Client(socket)
        await client.send("hi")
        await client.send("hi")
        await until(lambda: len(upstream.bodies) == 1)
        monkeypatch.setattr(response_socket, "LONGEST", 0.0)
        gate.set()
        assert text(await client.response()) == "one"
        assert (await client.error())["error"]["code"] == "websocket_connection_limit_reached"
    assert len(upstream.bodies) == 1


@pytest.fixture
def guarded(home: House) -> ControlApp:
    """The same application, with a token."""
    return create_app(
        store=home.store,
        settings=home.proxy.settings,
        token="a-token",
        metrics=home.proxy.grafter.metrics,
        version="1",
        extra_routes=home.app.extra_routes,
    )


@pytest.mark.parametrize(
    ("headers", "path", "status"),
    [
        ({}, "", 401),
        ({"Authorization": "Bearer wrong"}, "", 401),
        ({"Authorization": "Bearer a-token", "Origin": "https://evil.example"}, "", 403),
        ({"Authorization": "Bearer a-token"}, "/x", 404),
        ({"Authorization": "Bearer a-token", "x-graft-session": "a b"}, "", 400),
    ],
)
async def test_the_guard_stands_before_it(guarded: ControlApp, headers: dict[str, str], path: str, status: int) -> None:
    async with serving(guarded) as url:
        with pytest.raises(InvalidStatus) as refused:
            await connect(url + path, additional_headers=headers).__aenter__()
        assert refused.value.response.status_code == status
        assert json.loads(refused.value.response.body or b"")["error"]["message"]


async def test_another_name_for_this_machine_is_refused(guarded: ControlApp) -> None:
    """A page whose own name leads here could connect otherwise."""
    async with serving(guarded) as url:
        port = int(url.removesuffix("/v1/responses").rpartition(":")[2])
        with pytest.raises(InvalidStatus) as refused:
            await connect(f"ws://evil.example:{port}/v1/responses", host="127.0.0.1", port=port).__aenter__()
        assert refused.value.response.status_code == 403


async def test_a_token_uses_its_own_session_and_its_end_ends_the_connection(guarded: ControlApp, home: House) -> None:
    reader = guarded.api.tokens.make(["read"], None, "")[1]
    token, mine = guarded.api.tokens.make(["ask"], "mine", "")
    async with serving(guarded) as url:
        for text_of, named in ((reader, ""), (mine, "theirs")):
            headers = {"Authorization": f"Bearer {text_of}"} | ({"x-graft-session": named} if named else {})
            with pytest.raises(InvalidStatus) as refused:
                await connect(url, additional_headers=headers).__aenter__()
            assert refused.value.response.status_code == 403
        async with connect(url, additional_headers={"Authorization": f"Bearer {mine}"}) as socket:
            response = await Client(socket).ask("What is 2+2?")
            assert (await home.store.response("mine", response["id"])).session == "mine"
            guarded.api.tokens.revoke(token.id)
            with pytest.raises(ConnectionClosed):
                await Client(socket).message()
