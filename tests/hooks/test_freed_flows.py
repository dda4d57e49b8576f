"""Nothing holds a finished request's flow and bodies."""

import gc
import weakref
from pathlib import Path
from typing import Any

import pytest
from mitmproxy import http

from tests.hooks.harness import GOOGLE
from tests.hooks.proxied import Proxied, serving
from tests.hooks.test_destinations import PATH, STREAM, TOOLS, Model, asks
from tests.loop.conftest import until

pytestmark = pytest.mark.e2e


class Flows:
    """A script that remembers all flows, and holds some of them."""

    def __init__(self) -> None:
        self.all: list[weakref.ref[http.HTTPFlow]] = []
        self.kept_flows: list[http.HTTPFlow] = []

    def alive(self) -> int:
        return sum(one() is not None for one in self.all)

    def request(self, flow: http.HTTPFlow) -> None:
        self.all.append(weakref.ref(flow))
        if b"hold" in (flow.request.raw_content or b""):
            self.kept_flows.append(flow)


@pytest.mark.parametrize("tools", [False, True], ids=["passed on", "looped"])
async def test_flows_that_nobody_holds_are_freed(tools: bool, tmp_path: Path) -> None:
    file = tmp_path / "tools.py"
    file.write_text(TOOLS)
    flows = Flows()
    async with serving(Model()) as url:
        options: dict[str, Any] = {"tools": [str(file)]} if tools else {}
        async with Proxied(tmp_path, url, late=[flows], redirect=[f"{GOOGLE}={url}"], **options) as proxied:
            await proxied.tools("get_weather")
            async with proxied.client() as client:
                for path in (PATH, STREAM, "/somewhere"):
                    for words in ("hi", "hold", "call get_weather"):
                        answer = await client.post(proxied.reverse + path, json=asks(words))
                        assert answer.status_code == 200
                # mitmproxy's layer of the client's connection may hold the latest one
                await until(lambda: gc.collect() >= 0 and flows.alive() <= len(flows.kept_flows) + 1)
            assert len(flows.all) >= 9
            for flow in flows.kept_flows:
                assert flow.response is not None
                assert b"hold" in (flow.request.content or b"")
                assert b"said" in (flow.response.content or b"") or flow.response.stream
