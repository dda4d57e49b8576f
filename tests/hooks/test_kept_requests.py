"""The bodies of requests that pass are kept, and can be rewritten again beside the proxy that serves."""

import asyncio
import json
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from addon.graft.replay import ClientRequest, RecordedRequest, ReplayedRequest, read_only, replay
from addon.hooks.lifecycle import Lifecycle
from addon.monitoring.recent_requests import CleanRequest
from addon.surfaces.registry import match_path
from store.base import Store
from store.models import Call
from tests.hooks.harness import GOOGLE, PATH, Hooks, request, response

Make = Callable[..., Hooks]
CALL: dict[str, Any] = {"functionCall": {"name": "get_weather", "args": {}, "id": "x1"}, "thoughtSignature": "AAAA"}
ASKED = {"role": "user", "parts": [{"text": "weather"}]}
URL = f"https://{GOOGLE}{PATH}"


def kept(hooks: Hooks) -> list[CleanRequest | None]:
    """Newest first."""
    runtime = hooks.part(Lifecycle).runtime
    assert runtime is not None
    return [runtime.recent.clean(one["request_id"], hooks.store.secret) for one in runtime.recent.records()]


async def replayed(hooks: Hooks, one: CleanRequest | None) -> ReplayedRequest:
    target = match_path("POST", PATH)
    assert one is not None
    assert target is not None
    client = ClientRequest(one.client, False, one.session, False, one.at_door, one.turn_ids)
    recorded = RecordedRequest(target, one.method, PATH, one.url, one.sent, client, one.asker)
    settings = hooks.part(Lifecycle).settings()
    (found,) = [each async for each in replay([recorded], read_only(hooks.store), settings, session=None, toolset=None)]
    return found


async def chat(hooks: Hooks) -> None:
    """A call that waits for its result, and the request that follows it."""
    await hooks.tools("get_weather")
    flow = await hooks.ask(request(URL, json.dumps({"contents": [ASKED]}).encode()))
    answer = {"candidates": [{"content": {"role": "model", "parts": [CALL]}, "finishReason": "STOP"}]}
    got = json.loads(await hooks.answer(flow, response(json.dumps(answer).encode())))
    contents = [ASKED, got["candidates"][0]["content"], {"role": "user", "parts": [{"text": "and?"}]}]
    flow = await hooks.ask(request(URL, json.dumps({"contents": contents}).encode()))
    await hooks.answer(flow, response(b"{}"))


async def test_a_replay_knows_results_that_have_come_since(make: Make) -> None:
    hooks = make()
    await chat(hooks)
    second, first = kept(hooks)
    assert not (await replayed(hooks, first)).changed
    assert not (await replayed(hooks, second)).changed
    (call,) = (await hooks.store.calls()).items
    await hooks.store.answer(call.session, call.call_id, result={"celsius": -3})
    event = await hooks.store.last_event_id()
    found = await replayed(hooks, second)
    assert found.changed
    assert '"celsius": -3' in json.dumps(found.after)
    assert await hooks.store.last_event_id() == event


async def test_a_replay_does_not_wait_for_a_call_that_runs(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    hooks = make()
    await chat(hooks)

    async def all_of_them(store: Store, calls: Sequence[Call], after: object) -> Sequence[Call]:
        return calls

    monkeypatch.setattr("addon.graft.owners.being_run", all_of_them)
    found = await asyncio.wait_for(replayed(hooks, kept(hooks)[0]), 30)
    assert "are running" in found.note


@pytest.mark.parametrize(("most", "count"), [(1, 1), (0, 0), (100, 2)])
async def test_the_option_says_how_many_are_kept(make: Make, most: int, count: int) -> None:
    hooks = make(keep_requests=str(most))
    await chat(hooks)
    found = kept(hooks)
    assert len(found) == 2
    assert len([one for one in found if one is not None]) == count
    hooks.set(keep_requests="0")
    assert kept(hooks) == [None, None]


async def test_what_is_kept_holds_both_bodies_and_no_key(make: Make) -> None:
    hooks = make()
    await hooks.tools("get_weather")
    flow = request(URL, json.dumps({"contents": [ASKED], "note": "AIza-a-client-s-key-0123456789"}).encode())
    flow.request.headers["x-goog-api-key"] = "AIza-a-client-s-key-0123456789"
    await hooks.answer(await hooks.ask(flow), response(b"{}"))
    (one,) = kept(hooks)
    assert one is not None
    assert json.loads(one.client) == {"contents": [ASKED], "note": "***"}
    assert json.loads(one.sent)["tools"][0]["functionDeclarations"][0]["name"] == "get_weather"
    assert "AIza" not in repr(one)
