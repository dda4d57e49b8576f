"""Which calls are retried, and how long a try may take."""

import asyncio
import contextlib
from typing import Any

import pytest

from addon.tools import attempts
from addon.tools.base import ToolError
from tests.loop.calling import hangs, raises, responses
from tests.loop.conftest import Proxy, call, until


@pytest.mark.parametrize(
    ("retries", "error", "idempotent", "otherwise"),
    [
        (2, ToolError("busy", retryable=True), 3, 1),
        (2, ToolError("busy", retryable=True, sent=False), 3, 3),
        (2, TimeoutError("slow"), 3, 1),
        (2, ToolError("no such place"), 1, 1),
        (2, ToolError("no such place", sent=False), 1, 1),
        (2, ValueError("bad"), 1, 1),
        (0, ToolError("busy", retryable=True, sent=False), 1, 1),
        (None, ToolError("busy", retryable=True, sent=False), 1, 1),
    ],
    ids=str,
)
@pytest.mark.parametrize("is_idempotent", [True, False])
async def test_a_try_that_may_have_done_something_is_repeated_only_where_that_is_harmless(
    proxy: Proxy, retries: int | None, error: Exception, idempotent: int, otherwise: int, is_idempotent: bool
) -> None:
    tries = idempotent if is_idempotent else otherwise
    proxy.tools.add("tool", raises(error), retries=retries, idempotent=is_idempotent)
    await proxy.open()
    (response,) = await responses(proxy, call("tool"))
    assert str(error) in response["error"]
    assert len(proxy.tools.begun) == tries


async def test_a_try_that_succeeds_is_the_answer(proxy: Proxy) -> None:
    outcomes = [ToolError("busy", retryable=True, sent=False), None]

    async def second_time() -> str:
        if (error := outcomes.pop(0)) is not None:
            raise error
        return "fine"

    proxy.tools.add("tool", second_time, retries=1)
    await proxy.open()
    assert await responses(proxy, call("tool")) == [{"result": "fine"}]


@pytest.mark.parametrize(("idempotent", "tries"), [(True, 3), (False, 1)])
async def test_a_try_that_took_too_long_may_have_done_something(proxy: Proxy, idempotent: bool, tries: int) -> None:
    proxy.tools.add("tool", hangs, timeout=0.01, retries=2, idempotent=idempotent)
    await proxy.open()
    assert await responses(proxy, call("tool")) == [{"error": "tool took longer than 0.01 s"}]
    assert len(proxy.tools.begun) == tries


async def test_a_session_s_timeout_holds_where_the_tool_has_none(proxy: Proxy) -> None:
    proxy.tools.add("tool", hangs)
    await proxy.open()
    await proxy.policy(tool_timeout=0.01)
    assert await responses(proxy, call("tool")) == [{"error": "tool took longer than 0.01 s"}]


@pytest.mark.parametrize("rules", [{}, {"idempotent": True}, {"cache_ttl": 60}])
async def test_the_time_of_a_tool_holds_whatever_it_does_with_its_cancellation(
    proxy: Proxy, monkeypatch: pytest.MonkeyPatch, rules: dict[str, Any]
) -> None:
    monkeypatch.setattr(attempts, "GRACE", 0.02)
    over = asyncio.Event()

    async def stubborn() -> None:
        while not over.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await over.wait()

    proxy.tools.add("stubborn", stubborn, timeout=0.02, **rules)
    await proxy.open()
    assert await responses(proxy, call("stubborn")) == [{"error": "stubborn took longer than 0.02 s"}]
    assert [one.error for one in await proxy.calls()] == ["stubborn took longer than 0.02 s"]
    over.set()
    await until(lambda: not attempts.abandoned_calls())
