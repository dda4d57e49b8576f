"""Clients that hang up, and answers that break off."""

import asyncio
from typing import Any

from addon.core.framing.documents import Document
from addon.surfaces.incoming import Framing
from tests.contents import user
from tests.loop.conftest import Played, Proxy, call, says, until

STEP = [says("Wait. ", call("send", "c1"), finish="STOP", responseId="r1", usageMetadata={"promptTokenCount": 10})]

ANSWER = [says("done", finish="STOP", responseId="r2", usageMetadata={"promptTokenCount": 20})]


async def hang_up(proxy: Proxy, framing: Framing, *, when: Any) -> Played:
    """A client that asks, and hangs up as soon as `when` holds."""
    runner, played = await proxy.prepare([user("x")], framing)
    output = runner.output()

    async def read() -> None:
        async for out in output:
            played.take(out)

    reading = asyncio.ensure_future(read())
    await until(lambda: when(played))
    reading.cancel()
    await asyncio.wait({reading})
    await output.aclose()
    return played


def responses(body: Document) -> list[Document]:
    parts = [part for content in body["contents"] for part in content["parts"]]
    return [part["functionResponse"]["response"] for part in parts if "functionResponse" in part]
