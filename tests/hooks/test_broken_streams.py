"""Streams that end too early: what their clients may have kept is noted. Over real connections."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import httpx2
import pytest
from mitmproxy import http

from addon.hooks.streams import start
from tests.databases import notes_in
from tests.hooks.harness import Hooks, request, response
from tests.hooks.proxied import Proxied, serving
from tests.hooks.test_grafting import ASKED, STREAM, event
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


@pytest.mark.parametrize("body", [ASKED, ASKED[:-1] + b',"cachedContent":"cachedContents/1"}'], ids=BODIES)
async def test_the_end_of_the_process_ends_them(body: bytes, hooks: Hooks, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing goes out that is not noted."""
    notes: list[bytes] = []
    save_plain = hooks.store.save_plain

    async def noting(session: str, keys: Sequence[bytes], chain: bytes = b"") -> None:
        notes.append(keys[0])
        await save_plain(session, keys, chain)

    monkeypatch.setattr(hooks.store, "save_plain", noting)
    flow = await hooks.ask(request(STREAM, body))
    flow.response = answer = response(b"", "text/event-stream")
    answer.data.content = None
    await hooks.call("responseheaders", flow)
    assert start(flow)
    stage: Any = answer.stream
    assert b"".join(stage(event({"text": "Do"}) + event({"text": "ne."}))).count(b"text") == 2
    assert notes == []
    await hooks.done()
    assert len(notes) == 2
    last = b"".join(stage(event({"text": " More."}, finishReason="STOP")))
    assert b"More" not in last
    if body is ASKED:
        assert b"the proxy is ending" in last
    assert b"".join(stage(b"")) == b""
    assert len(notes) == 2


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
