"""A mitmproxy that goes another way is noticed when the addon is loaded."""

from collections.abc import Callable

import pytest
from mitmproxy.addons.serverplayback import ServerPlayback
from mitmproxy.proxy.layers.http import HttpStream
from mitmproxy.proxy.layers.websocket import WebsocketLayer
from mitmproxy.proxy.server import ConnectionHandler

from addon.hooks import mitmproxy_patches
from addon.hooks.mitmproxy_check import check
from addon.hooks.mitmproxy_patches import original
from tests.hooks.harness import Hooks

REPLACED = {
    (HttpStream, "make_server_connection"): "an answer",
    (HttpStream, "send_response"): "an answer",
    (HttpStream, "handle_protocol_error"): "an answer that breaks off",
    (WebsocketLayer, "relay_messages"): "a WebSocket message",
    (ConnectionHandler, "wakeup"): "a wake-up",
    (ServerPlayback, "request"): "a replay",
}


@pytest.mark.parametrize(("owner", "name"), REPLACED)
async def test_each_replaced_method_is_tried(
    owner: type, name: str, make: Callable[..., Hooks], monkeypatch: pytest.MonkeyPatch
) -> None:
    make()
    check()
    former = "_replay" if owner is ServerPlayback else f"_{name}"
    monkeypatch.setattr(owner, name, getattr(mitmproxy_patches, former))
    with pytest.raises(RuntimeError, match=rf"{REPLACED[owner, name]} goes another way .* Install mitmproxy 12"):
        check()


@pytest.mark.parametrize("name", ["flow_done", "check_killed", "state_wait_for_response_headers"])
async def test_so_is_what_surrounds_them(
    name: str, make: Callable[..., Hooks], monkeypatch: pytest.MonkeyPatch
) -> None:
    make()
    monkeypatch.delattr(HttpStream, name)
    with pytest.raises(RuntimeError, match=r"an answer goes another way .*AttributeError"):
        check()


def test_a_method_that_is_missing_is_named() -> None:
    with pytest.raises(RuntimeError, match=r"its HttpStream has no gone\. Install mitmproxy 12 \(12\.2 or newer\)\."):
        original(HttpStream, "gone")
