"""Recorded requests rewritten again: a replay with the proxy's options sends what the proxy sent."""

import base64
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from mitmproxy import io

from addon.graft.replay import ReplayedRequest, replay
from addon.hooks.recording_reader import recorded_requests
from addon.settings import Settings
from store.backends.memory import MemoryStore
from store.models import Toolset
from tests.hooks.harness import GOOGLE, PATH, Hooks, request, response

Make = Callable[..., Hooks]
Json = dict[str, Any]

VERTEX = "https://aiplatform.googleapis.com/{}/publishers/google/models/gemini-3-flash:generateContent"
CALL: Json = {"functionCall": {"name": "get_weather", "args": {}, "id": "x1"}, "thoughtSignature": "AAAA"}
ASKED = {"role": "user", "parts": [{"text": "weather"}]}


@pytest.mark.parametrize(
    "options", [{"client_tools": "keep"}, {"delivery": "passthrough"}, {"placeholder": "Ran {turn_id}"}]
)
@pytest.mark.parametrize("url", [VERTEX.format("v1"), VERTEX.format("v1beta1"), f"https://{GOOGLE}{PATH}"])
async def test_a_replay_with_the_same_options_sends_the_same_requests(
    url: str, options: dict[str, str], make: Make, tmp_path: Path
) -> None:
    path = tmp_path / "chat.mitm"
    hooks = make(record=str(path), **options)
    await hooks.tools("get_weather")
    tools = [{"functionDeclarations": [{"name": "read_file"}]}]
    flow = await hooks.ask(request(url, json.dumps({"contents": [ASKED], "tools": tools}).encode()))
    answer = {"candidates": [{"content": {"role": "model", "parts": [CALL]}, "finishReason": "STOP"}]}
    got = json.loads(await hooks.answer(flow, response(json.dumps(answer).encode())))
    (call,) = (await hooks.store.calls()).items
    await hooks.store.answer(call.session, call.call_id, result={"celsius": 3})
    contents = [ASKED, got["candidates"][0]["content"]]
    if options.get("delivery") == "passthrough":
        result = {"functionResponse": {"name": "get_weather", "id": "x1", "response": {"celsius": 3}}}
        contents.append({"role": "user", "parts": [result]})
    else:
        contents.append({"role": "user", "parts": [{"text": "and?"}]})
    flow = await hooks.ask(request(url, json.dumps({"contents": contents, "tools": tools}).encode()))
    sent = json.loads(flow.request.content or b"")
    assert ("id" in sent["contents"][1]["parts"][0]["functionCall"]) is ("/v1/" not in url)
    await hooks.answer(flow, response(b"{}"))

    async def replayed(**options: str) -> list[ReplayedRequest]:
        settings = Settings.from_options({f"graft_{name}": value for name, value in options.items()})
        return [one async for one in replay(recorded_requests(path), hooks.store, settings, session=None, toolset=None)]

    assert [one.changed for one in await replayed(**options)] == [False, False]
    if "client_tools" in options:
        assert [one.changed for one in await replayed()] == [True, True]


@pytest.mark.parametrize("own", [[], ["read_file"], ["get_weather"], ["get_weather", "get_weather_g2"]])
@pytest.mark.parametrize("builtins", [[], [{"googleSearch": {}}]])
async def test_a_replay_with_kept_tools_sends_the_same_requests(
    own: list[str], builtins: list[Json], tmp_path: Path
) -> None:
    """As mitmproxy writes it, and as later rounds of a loop are: the session's tools are in it already."""
    toolset = Toolset(declarations=[{"name": "get_weather"}], builtins=builtins)
    settings = Settings.from_options({"graft_client_tools": "keep"})
    store = MemoryStore()
    await store.open()

    async def replayed(body: Any, **metadata: str) -> Json:
        path = tmp_path / "one.mitm"
        flow = request(f"https://{GOOGLE}{PATH}", json.dumps(body).encode())
        flow.metadata = {"graft": metadata} if metadata else {}
        with path.open("wb") as file:
            io.FlowWriter(file).add(flow)
        (one,) = [one async for one in replay(recorded_requests(path), store, settings, session=None, toolset=toolset)]
        assert isinstance(one.after, dict)
        return one.after

    asked: Json = {"contents": [ASKED]}
    if own:
        asked["tools"] = [{"functionDeclarations": [{"name": name} for name in own]}]
    sent = await replayed(asked, client_body=base64.b64encode(json.dumps(asked).encode()).decode())
    assert len(sent["tools"]) == bool(own) + len(builtins) + 1
    assert await replayed(sent) == sent


async def test_a_replay_of_one_session_leaves_out_the_others(tmp_path: Path) -> None:
    """A recording made by mitmproxy names no session: its requests count as those of the given session."""
    store, path = MemoryStore(), tmp_path / "some.mitm"
    await store.open()
    with path.open("wb") as file:
        for session in ("work", "home", None):
            flow = request(f"https://{GOOGLE}{PATH}", json.dumps({"contents": [ASKED]}).encode())
            flow.metadata = {"graft": {"session": session}} if session else {}
            io.FlowWriter(file).add(flow)

    async def sessions(session: str | None) -> list[str]:
        return [
            one.session
            async for one in replay(recorded_requests(path), store, Settings(), session=session, toolset=Toolset())
        ]

    assert await sessions(None) == ["work", "home", "default"]
    assert await sessions("work") == ["work", "work"]
    assert await sessions("home") == ["home", "home"]
    assert await sessions("other") == ["other"]
