"""The order of the calls of a step."""

import asyncio

import pytest

from addon.core.framing.documents import Document, decode
from addon.core.history.calls import responses_in
from addon.surfaces.incoming import Framing
from addon.tools.base import ToolError
from tests.contents import user
from tests.loop.calling import ANSWER, raises, responses, returns
from tests.loop.conftest import Proxy, Scripted, call, says


@pytest.mark.parametrize("order", [["first", "second"], ["second", "first"]])
async def test_a_tool_runs_after_those_it_is_to_follow(proxy: Proxy, order: list[str]) -> None:
    proxy.tools.add("first", returns(1))
    proxy.tools.add("second", returns(2), after=("first",))
    await proxy.open()
    await responses(proxy, *map(call, order))
    assert proxy.tools.begun == ["first", "second"]


async def test_a_tool_waits_for_a_call_that_comes_later_in_the_stream(proxy: Proxy) -> None:
    hold = asyncio.Event()
    proxy.tools.add("first", returns(1))
    proxy.tools.add("second", returns(2), after=("first",))
    await proxy.open()
    proxy.upstream(Scripted([says(call("second")), hold, says(call("first")), says(finish="STOP")], ANSWER))
    waiting = asyncio.ensure_future(proxy.ask("x", framing=Framing.SSE))
    for _ in range(20):
        await asyncio.sleep(0)
    assert proxy.tools.begun == []
    hold.set()
    await waiting
    assert proxy.tools.begun == ["first", "second"]


@pytest.mark.parametrize(
    ("after", "calls"),
    [
        ({"a": ("a",)}, ["a", "a", "a"]),
        ({"a": ("b",), "b": ("a",)}, ["b", "a", "b"]),
        ({"a": ("b",), "b": ("c",), "c": ("a",)}, ["a", "b", "c"]),
    ],
    ids=["itself", "each other", "in a ring"],
)
async def test_tools_that_wait_for_each_other_run_in_the_order_of_their_calls(
    proxy: Proxy, after: dict[str, tuple[str, ...]], calls: list[str]
) -> None:
    for name, others in after.items():
        proxy.tools.add(name, returns(name), after=others)
    await proxy.open()
    assert await responses(proxy, *map(call, calls)) == [{"result": name} for name in calls]
    assert proxy.tools.begun == calls


async def test_a_failure_does_not_keep_those_that_follow_from_running(proxy: Proxy) -> None:
    proxy.tools.add("first", raises(ToolError("no")))
    proxy.tools.add("second", returns(2), after=("first",))
    await proxy.open()
    assert await responses(proxy, call("first"), call("second")) == [{"error": "no"}, {"result": 2}]


@pytest.mark.parametrize(
    "last",
    [{"text": "b", "functionCall": 3}, {"text": "b", "functionCall": "a"}, {"text": "b", "functionCall": []}, {"n": 0}],
    ids=str,
)
async def test_an_odd_part_takes_no_result_from_the_next_request(proxy: Proxy, last: Document) -> None:
    proxy.tools.add("look", returns({"ok": 1}))
    await proxy.open()
    proxy.upstream(Scripted([says("a", call("look"), finish="STOP")], [says(last, finish="STOP")]))
    played = await proxy.ask("hi")
    history = [user("hi"), {"role": "model", "parts": played.parts}, user("more")]
    target, _ = proxy.target(Framing.JSON, "developer", "gemini-3-flash-preview")
    sent = await proxy.forwarded({"contents": history}, target)
    assert [one["response"] for one in responses_in(decode(sent.body)["contents"])] == [{"ok": 1}]


@pytest.mark.parametrize("framing", [Framing.SSE, Framing.ARRAY])
async def test_a_call_behind_a_finish_reason_is_run_and_its_result_is_in_the_next_request(
    proxy: Proxy, framing: Framing
) -> None:
    proxy.tools.add("look", returns({"ok": 1}))
    await proxy.open()
    first = [says("a", finish="STOP"), says(call("look"), finish="STOP")]
    upstream = proxy.upstream(Scripted(first, [says("b", finish="STOP")]))
    played = await proxy.ask("hi", framing=framing)
    assert played.text == "ab"
    assert [one["response"] for one in responses_in(upstream.bodies[1]["contents"])] == [{"ok": 1}]
    target, _ = proxy.target(framing, "developer", "gemini-3-flash-preview")
    history = [user("hi"), {"role": "model", "parts": played.parts}, user("more")]
    sent = await proxy.forwarded({"contents": history}, target)
    assert [one["response"] for one in responses_in(decode(sent.body)["contents"])] == [{"ok": 1}]
