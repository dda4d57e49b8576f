"""WebSockets of the Live API: their sessions, the frames that are dropped, changed or injected, and their end."""

import asyncio
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from mitmproxy import http, io
from mitmproxy.addons.proxyserver import Proxyserver
from mitmproxy.options import Options
from mitmproxy.proxy import commands, events
from mitmproxy.proxy.context import Context
from mitmproxy.proxy.layers import websocket
from mitmproxy.proxy.layers.websocket import WebsocketEndHook, WebsocketMessageHook
from mitmproxy.websocket import WebSocketData, WebSocketMessage
from wsproto.frame_protocol import Opcode

from addon.graft.replay import replay
from addon.hooks.live import _Bounds, _Injected, _relay
from addon.hooks.mitmproxy_patches import relay_through
from addon.hooks.recording_reader import recorded_requests
from addon.loop.live import LiveSession
from addon.settings import Settings
from store.base import StoreUnavailable
from store.models import Call, Status
from tests.hooks.harness import GOOGLE, Hooks, request

Json = dict[str, Any]

PATH = "/ws/google.ai.generativelanguage.v1beta.GenerativeService.BidiGenerateContent?key=a-secret"
SETUP: Json = {"setup": {"model": "models/gemini-live-2.5-flash-preview"}}
AUDIO: Json = {"realtimeInput": {"audio": {"data": "AAAA"}}}
CALL: Json = {"toolCall": {"functionCalls": [{"id": "f1", "name": "get_weather", "args": {}}]}}


class Socket:
    """A flow whose handshake has just come, and then its frames."""

    def __init__(self, hooks: Hooks, monkeypatch: pytest.MonkeyPatch, url: str = f"https://{GOOGLE}{PATH}", **how: Any):
        self.hooks = hooks
        self.injected: list[_Injected] = []
        headers = {"upgrade": "websocket", "connection": "upgrade"} | how.pop("headers", {})
        self.flow = request(url, b"", headers, method="GET", **how)
        monkeypatch.setattr(Proxyserver, "inject_event", lambda _, event: self.injected.append(event))

    async def open(self) -> "Socket":
        await self.hooks.ask(self.flow)
        if self.flow.response is None:
            headers = http.Headers(upgrade="websocket")
            self.flow.response = http.Response(b"HTTP/1.1", 101, b"", headers, b"", None, 0, 0)
            self.flow.websocket = WebSocketData()
            await self.hooks.call("responseheaders", self.flow)
            await self.hooks.call("response", self.flow)
            await self.hooks.call("websocket_start", self.flow)
        return self

    async def frame(self, document: Json | bytes, *, from_client: bool = True, **how: Any) -> WebSocketMessage:
        data = document if isinstance(document, bytes) else json.dumps(document).encode()
        message = WebSocketMessage(how.pop("type", Opcode.TEXT), from_client, data, **how)
        assert self.flow.websocket is not None
        self.flow.websocket.messages.append(message)
        await self.hooks.call("websocket_message", self.flow)
        return message

    @property
    def sent(self) -> list[Json]:
        return [json.loads(event.message.content) for event in self.injected]

    async def settle(self, count: int) -> None:
        """Wait until so many frames were injected."""
        async with asyncio.timeout(5):
            while len(self.injected) < count:  # noqa: ASYNC110 - what is waited for has no event
                await asyncio.sleep(0)


@pytest.fixture
def socket(hooks: Hooks, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Socket]:
    return lambda *url, **how: Socket(hooks, monkeypatch, *url, **how)


def websocket_layer() -> websocket.WebsocketLayer:
    """One that relays."""
    flow = request(f"https://{GOOGLE}{PATH}", b"", method="GET")
    flow.response, flow.websocket = http.Response.make(101), WebSocketData()
    relay_through[flow] = partial(_relay, _Bounds(message=1_000_000, history=1_000_000))
    layer = websocket.WebsocketLayer(Context(flow.client_conn, Options()), flow)
    list(layer.handle_event(events.Start()))
    return layer


async def stored(hooks: Hooks, status: Status = Status.PENDING) -> Call:
    """The call that there is, when it is stored with that status."""
    async with asyncio.timeout(5):
        while not (found := (await hooks.store.calls(status=status)).items):  # noqa: ASYNC110 - there is no event
            await asyncio.sleep(0)
    return found[0]


def is_untouched(message: WebSocketMessage, given: bytes) -> bool:
    return message.content is given and not message.dropped


@pytest.mark.parametrize("kind", [Opcode.TEXT, Opcode.BINARY])
async def test_a_setup_gets_the_tools_and_keeps_its_kind_of_frame(socket: Callable[..., Socket], kind: Opcode) -> None:
    made = await socket().open()
    message = await made.frame(SETUP, type=kind)
    assert b"get_weather" in message.content
    assert (message.type, message.dropped) == (kind, False)


async def test_a_grafted_call_is_dropped_and_what_the_client_sends_meanwhile_is_injected_after_its_answer(
    socket: Callable[..., Socket], hooks: Hooks
) -> None:
    made = await socket().open()
    await made.frame(SETUP)
    assert (await made.frame(CALL, from_client=False, type=Opcode.BINARY)).dropped
    binary = b' {"realtimeInput": {}}'
    assert (await made.frame(AUDIO)).dropped
    assert (await made.frame(binary, type=Opcode.BINARY)).dropped
    call = await stored(hooks)
    await hooks.store.answer(call.session, call.call_id, result="warm")
    await made.settle(3)
    assert made.sent[0]["toolResponse"]["functionResponses"][0]["response"] == {"result": "warm"}
    assert made.sent[1] == AUDIO
    assert made.injected[2].message.content == binary
    assert [event.message.type for event in made.injected] == [Opcode.TEXT, Opcode.TEXT, Opcode.BINARY]
    assert all(event.message.from_client for event in made.injected)
    last = await made.frame(AUDIO)
    assert last.dropped, "it would overtake what is still to be sent"
    for event in made.injected:
        event.sent()
    assert not (await made.frame(AUDIO)).dropped


@pytest.mark.parametrize("kind", [Opcode.TEXT, Opcode.BINARY])
def test_a_message_of_the_proxys_own_is_one_frame_and_leaves_what_has_come_of_the_clients_alone(kind: Opcode) -> None:
    layer = websocket_layer()
    layer.client_ws.frame_buf = [b"half of a mess"]
    gone: list[bool] = []
    data = "語".encode() * 5000
    message = WebSocketMessage(kind, True, data, injected=True)
    hook, sent = layer.relay_messages(_Injected(layer.flow, message, lambda: gone.append(True)))
    assert isinstance(hook, WebsocketMessageHook)
    assert isinstance(sent, commands.SendData)
    assert sent.connection is layer.context.server
    assert (sent.data[0], len(sent.data)) == (0x80 | kind.value, 8 + len(data))  # the last frame of a message; its mask
    assert layer.flow.websocket is not None
    assert layer.flow.websocket.messages == [message]
    assert layer.client_ws.frame_buf == [b"half of a mess"]
    assert gone == [True]


def test_a_message_of_the_proxys_own_that_another_addon_drops_is_not_sent_and_holds_nothing_up() -> None:
    layer, gone = websocket_layer(), list[bool]()
    message = WebSocketMessage(Opcode.TEXT, True, b"{}", injected=True)
    relayed = layer.relay_messages(_Injected(layer.flow, message, lambda: gone.append(True)))
    next(relayed)
    message.drop()
    assert list(relayed) == []
    assert gone == [True]


async def test_secrets_of_the_handshake_that_the_service_repeats_are_neither_shown_nor_stored(
    socket: Callable[..., Socket], hooks: Hooks
) -> None:
    key = "key-of-a-client-7311"
    made = await socket(f"https://{GOOGLE}{PATH.replace('a-secret', key)}").open()
    await made.frame(SETUP)
    message: Json = {"serverContent": {"modelTurn": {"parts": [{"text": f"said {key}"}]}}}
    assert json.loads((await made.frame(message, from_client=False)).content) == json.loads(
        json.dumps(message).replace(key, "***")
    )
    call = {"id": "f1", "name": "get_weather", "args": {"echo": key}}
    assert (await made.frame({"toolCall": {"functionCalls": [call]}}, from_client=False)).dropped
    assert (await stored(hooks)).args == {"echo": "***"}


async def test_an_injected_frame_is_not_looked_at_again(socket: Callable[..., Socket]) -> None:
    made = await socket().open()
    given = json.dumps(SETUP).encode()
    assert is_untouched(await made.frame(given, injected=True), given)


@pytest.mark.parametrize(
    "url",
    ["https://example.com/ws/x", f"https://{GOOGLE}/ws/other", f"https://{GOOGLE}{PATH.replace('Bidi', 'Other')}"],
)
async def test_other_websockets_are_not_looked_at(socket: Callable[..., Socket], url: str) -> None:
    made = await socket(url).open()
    given = json.dumps(SETUP).encode()
    assert is_untouched(await made.frame(given), given)


async def test_a_session_without_a_toolset_is_not_looked_at(
    make: Callable[..., Hooks], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = await Socket(make(), monkeypatch).open()
    for given in (b'{"setup": {"tools": []}}', json.dumps(CALL).encode()):
        assert is_untouched(await made.frame(given, from_client=b"setup" in given), given)


async def test_a_flow_filter_chooses_connections(make: Callable[..., Hooks], monkeypatch: pytest.MonkeyPatch) -> None:
    hooks = make(filter="~h x-graft-me")
    await hooks.tools("get_weather")
    given = json.dumps(SETUP).encode()
    for headers, chosen in (({}, False), ({"x-graft-me": "1"}, True)):
        made = await Socket(hooks, monkeypatch, headers=headers).open()
        assert is_untouched(await made.frame(given), given) != chosen


@pytest.mark.parametrize("url", ["http://localhost:8081/@other" + PATH, "http://localhost:8081/@other/" + PATH])
async def test_the_session_is_that_of_the_path_in_reverse_mode(
    socket: Callable[..., Socket], hooks: Hooks, url: str
) -> None:
    await hooks.tools("their_own", session="other")
    made = await socket(url, mode=f"reverse:https://{GOOGLE}").open()
    assert b"their_own" in (await made.frame(SETUP)).content
    assert hooks.route(made.flow) == ("live", "other")
    assert made.flow.request.path.endswith(PATH)


@pytest.mark.parametrize(
    ("headers", "url", "mode"),
    [
        ({"origin": "https://evil.example"}, f"https://{GOOGLE}{PATH}", "regular"),
        ({"sec-fetch-site": "cross-site"}, f"https://{GOOGLE}{PATH}", "regular"),
        ({"host": "evil.example"}, f"http://localhost:8081{PATH}", f"reverse:https://{GOOGLE}"),
    ],
)
async def test_a_web_page_may_open_none(
    socket: Callable[..., Socket], headers: dict[str, str], url: str, mode: str
) -> None:
    made = await socket(url, mode=mode, headers=headers).open()
    assert made.flow.response is not None
    assert made.flow.response.status_code == 403


async def test_the_handshake_goes_up_as_it_came(socket: Callable[..., Socket]) -> None:
    made = socket(headers={"sec-websocket-extensions": "permessage-deflate"})
    before = made.flow.request.headers.fields, made.flow.request.url
    await made.open()
    assert (made.flow.request.headers.fields, made.flow.request.url) == before


@pytest.mark.parametrize(("policy", "refused"), [("fail", True), ("pass", False)])
async def test_a_store_that_fails_refuses_the_handshake_unless_it_is_to_pass(
    make: Callable[..., Hooks], monkeypatch: pytest.MonkeyPatch, policy: str, refused: bool
) -> None:
    async def fails(*args: object) -> None:
        raise StoreUnavailable("the disk is full")

    hooks = make(on_store_error=policy)
    monkeypatch.setattr(hooks.store, "snapshot", fails)
    made = await Socket(hooks, monkeypatch).open()
    assert made.flow.response is not None
    assert made.flow.response.status_code == (503 if refused else 101)


def broken(*args: object, **_: object) -> None:
    raise RuntimeError("a mistake")


async def test_a_mistake_lets_the_services_frames_go_on_but_never_a_call(
    socket: Callable[..., Socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = await socket().open()
    monkeypatch.setattr(LiveSession, "from_server", broken)
    assert is_untouched(await made.frame(b"{}", from_client=False), b"{}")
    assert (await made.frame(CALL, from_client=False)).dropped


async def test_a_call_that_cannot_be_read_ends_the_connection(socket: Callable[..., Socket]) -> None:
    made = await socket().open()
    assert (await made.frame(b'{"toolCall": {"functionCalls": [NaN]}}', from_client=False)).dropped
    (event,) = made.injected
    assert event.message.content == b"toolgraft: a message of the model's may hold a call, and cannot be read"


@pytest.mark.parametrize("where", ["addon.core.live.LiveMachine._tools", "addon.loop.live.LiveMachine"])
async def test_a_mistake_in_a_setup_ends_the_connection_with_a_reason(
    make: Callable[..., Hooks], monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    hooks = make()
    await hooks.tools("get_weather")
    monkeypatch.setattr(where, broken)
    made = await Socket(hooks, monkeypatch).open()
    if where.endswith("_tools"):
        assert (await made.frame(SETUP)).dropped
    (event,) = made.injected
    layer = websocket_layer()
    to_server, _, to_client, *_, end = layer.relay_messages(event)
    for sent in (to_server, to_client):
        assert isinstance(sent, commands.SendData)
    assert isinstance(to_client, commands.SendData)
    assert int.from_bytes(to_client.data[2:4]) == 1011
    assert to_client.data[4:].startswith(b"toolgraft: a Live ")
    assert isinstance(end, WebsocketEndHook)
    assert list(layer.handle_event(events.DataReceived(layer.context.client, b"more"))) == []


@pytest.mark.parametrize("kind", ["setup", "contextUpdate", "realtimeInput"])
async def test_with_the_pass_policy_a_mistake_lets_the_clients_frame_go_on_with_its_own_tools(
    make: Callable[..., Hooks], monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    hooks = make(on_store_error="pass")
    await hooks.tools("get_weather")
    made = await Socket(hooks, monkeypatch).open()
    if kind != "setup":
        await made.frame(SETUP)
    with monkeypatch.context() as patch:
        patch.setattr(
            "addon.core.live.LiveMachine._declare_tools" if kind != "realtimeInput" else "addon.core.live.Frame", broken
        )
        patch.setattr("addon.core.live.LiveMachine.is_blocked", property(broken))
        given = json.dumps({kind: {"tools": [{"functionDeclarations": [{"name": "own"}]}]}}).encode()
        assert is_untouched(await made.frame(given), given)
    own = {"toolCall": {"functionCalls": [{"id": "f1", "name": "own", "args": {}}]}}
    assert (await made.frame(own, from_client=False)).dropped == (kind == "realtimeInput")
    assert (await made.frame(CALL, from_client=False)).dropped == (kind == "realtimeInput")


async def test_the_end_of_a_connection_ends_its_calls(socket: Callable[..., Socket], hooks: Hooks) -> None:
    made = await socket().open()
    await made.frame(SETUP)
    await made.frame(CALL, from_client=False)
    await stored(hooks)
    await hooks.call("websocket_end", made.flow)
    await stored(hooks, Status.EXPIRED)
    assert made.sent == []
    given = json.dumps(SETUP).encode()
    assert is_untouched(await made.frame(given), given)


async def test_a_connection_is_recorded_once_at_its_end_and_a_replay_passes_it_over(
    make: Callable[..., Hooks], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = tmp_path / "live.mitm"
    hooks = make(record=str(path))
    await hooks.tools("get_weather")
    made = await Socket(hooks, monkeypatch).open()
    await made.frame(SETUP)
    assert path.read_bytes() == b""
    await hooks.call("websocket_end", made.flow)
    with path.open("rb") as file:
        (flow,) = io.FlowReader(file).stream()
    assert isinstance(flow, http.HTTPFlow)
    assert flow.websocket is not None
    assert b"get_weather" in flow.websocket.messages[0].content
    assert "a-secret" not in flow.request.path
    assert [
        one async for one in replay(recorded_requests(path), hooks.store, Settings(), session=None, toolset=None)
    ] == []


async def test_a_frame_for_a_connection_that_has_just_ended_is_let_go(
    hooks: Hooks, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = Socket(hooks, monkeypatch)
    tried = asyncio.Event()

    def gone(_: Proxyserver, event: object) -> None:
        tried.set()
        raise ValueError("Flow is not from a live connection.")

    monkeypatch.setattr(Proxyserver, "inject_event", gone)
    await made.open()
    await made.frame(SETUP)
    await made.frame({"toolCall": {"functionCalls": [{"id": "f1", "name": "unknown"}]}}, from_client=False)
    async with asyncio.timeout(5):
        await tried.wait()
    await hooks.call("websocket_end", made.flow)
