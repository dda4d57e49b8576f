"""Results and errors of tools as the model receives them."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from addon.core.framing.documents import Document
from addon.loop.results import MAX_RESULT, result_json
from addon.tools.base import ToolError
from store.models import Status
from tests.loop.calling import hangs, raises, responses, returns
from tests.loop.conftest import Proxy, call


@pytest.mark.parametrize(
    ("value", "response"),
    [
        ({"a": 1}, {"a": 1}),
        ("text", {"result": "text"}),
        ('{"a": 1}', {"a": 1}),
        ([1, 2.5], {"result": [1, 2.5]}),
        (None, {"result": None}),
        ("half \ud800", {"result": "half \ufffd"}),
        ((True, {3}), {"result": [True, [3]]}),
    ],
)
async def test_a_result_is_an_object_for_the_model(proxy: Proxy, value: Any, response: Document) -> None:
    proxy.tools.add("tool", returns(value))
    await proxy.open()
    assert await responses(proxy, call("tool")) == [response]
    (record,) = await proxy.calls()
    assert (record.status, record.error) == (Status.DONE, None)


@pytest.mark.parametrize(
    ("tool", "words"),
    [
        (raises(ToolError("no such place")), "no such place"),
        (raises(ValueError("bad")), "ValueError: bad"),
        (raises(TimeoutError("the database is slow")), "TimeoutError: the database is slow"),
        (raises(SystemExit(3)), "SystemExit: 3"),
        (raises(KeyboardInterrupt("now")), "KeyboardInterrupt: now"),
        (raises(BaseExceptionGroup("two", [SystemExit(3)])), "BaseExceptionGroup: two"),
        (raises(asyncio.CancelledError()), "cancelled from within"),
        (raises(RuntimeError("half of a pair: \ud800")), "half of a pair: ?"),
        (raises(RuntimeError("x" * 100_000)), "RuntimeError: xxx"),
        (hangs, "tool took longer than 0.02 s"),
        (returns("x" * 5_000_000), f"more than the {MAX_RESULT}"),
        (returns(b"\x00"), "bytes"),
        (returns(object()), "not JSON"),
        (returns({1: {2: object()}}), "not JSON"),
    ],
)
async def test_a_tool_that_fails_is_an_error_for_the_model(
    proxy: Proxy, tool: Callable[..., Awaitable[Any]], words: str, caplog: pytest.LogCaptureFixture
) -> None:
    proxy.tools.add("tool", tool, timeout=0.02 if tool is hangs else None)
    proxy.tools.add("other", returns("fine"))
    await proxy.open()
    broken, fine = await responses(proxy, call("tool"), call("other"))
    assert list(broken) == ["error"]
    assert words in broken["error"]
    assert len(broken["error"]) < 5000
    assert fine == {"result": "fine"}
    assert [one.status for one in await proxy.calls()] == [Status.FAILED, Status.DONE]
    assert (await proxy.calls())[0].error == broken["error"]
    caplog.text.encode()  # raises where something could not be written


async def test_a_result_that_refers_to_itself_is_an_error_for_the_model(proxy: Proxy) -> None:
    loop: list[Any] = []
    loop.append(loop)
    proxy.tools.add("tool", returns(loop))
    await proxy.open()
    (response,) = await responses(proxy, call("tool"))
    assert "not JSON" in response["error"]


def test_half_a_surrogate_pair_in_a_result_is_replaced() -> None:
    assert json.loads(result_json({"name\udcff": ["\ud83d", "\\ud83d", "😀"]})) == {
        "name\ufffd": ["\ufffd", "\\ud83d", "😀"]
    }
