"""Streams that end too early: what their clients may have kept is noted. Over real connections."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from mitmproxy import http

from tests.databases import notes_in
from tests.hooks.proxied import Proxied, serving
from tests.hooks.test_grafting import event
from tests.hooks.test_untouched_streams import ASKED as DOCUMENT
from tests.hooks.test_untouched_streams import DEVELOPER, LAST, Slow

pytestmark = pytest.mark.e2e

BODIES = {"grafted": DOCUMENT, "only noted": DOCUMENT | {"cachedContent": "cachedContents/1"}}


@pytest.fixture
def slow() -> Slow:
    return Slow()


@pytest.fixture
async def url(slow: Slow) -> AsyncIterator[str]:
    async with serving(slow) as url:
        yield url


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
@pytest.mark.parametrize("breaks", [True, False], ids=["the upstream breaks off", "the client hangs up"])
async def test_the_client_s_part_of_the_answer_is_noted(
    breaks: bool, body: Any, slow: Slow, url: str, tmp_path: Path
) -> None:
    slow.breaks = breaks
    async with Proxied(tmp_path, url) as proxied, asyncio.timeout(10):
        await proxied.tools("get_weather")
        store = proxied.runtime.store
        async with proxied.client() as client:
            try:
                path = f"{proxied.reverse}{DEVELOPER}?alt=sse"
                async with client.stream("POST", path, json=body) as answer:
                    async for _ in answer.aiter_raw():
                        assert not notes_in(store)
                        slow.go.set()
                        if not breaks:
                            slow.go.clear()
                            break
            except httpx2.RemoteProtocolError:
                assert breaks
        while not notes_in(store):  # noqa: ASYNC110 - mitmproxy tells nobody
            await asyncio.sleep(0.01)
        slow.go.set()


class _SlowAtErrors:
    """A script that takes its time over each answer that broke off."""

    def __init__(self) -> None:
        self.has_begun = asyncio.Event()
        self.go = asyncio.Event()

    async def error(self, flow: http.HTTPFlow) -> None:
        self.has_begun.set()
        await self.go.wait()


async def test_a_client_that_asks_again_while_a_script_is_told_of_its_hanging_up_finds_its_calls(
    slow: Slow, url: str, tmp_path: Path
) -> None:
    """A call that is answered by hand is one record, however often its request is sent."""
    script = _SlowAtErrors()
    called = event({"text": "Wait."}, {"functionCall": {"name": "get_weather", "args": {}}})
    slow.pieces = (called, LAST)
    async with Proxied(tmp_path, url, early=[script]) as proxied, asyncio.timeout(10):
        await proxied.tools("get_weather")
        path = f"{proxied.reverse}{DEVELOPER}?alt=sse"
        async with proxied.client() as client:
            async with client.stream("POST", path, json=DOCUMENT) as answer:
                assert b"Wait." in await anext(answer.aiter_raw())
        await script.has_begun.wait()
        slow.go.set()
        async with proxied.client() as client:
            assert "Wait." in (await client.post(path, json=DOCUMENT)).text
        assert len((await proxied.runtime.store.calls()).items) == 1
        script.go.set()
