"""Steps of calls by a scripted model, and the responses it receives."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from addon.core.framing.documents import Document
from addon.surfaces.incoming import Framing
from tests.loop.conftest import Played, Proxy, Scripted, says

ANSWER = [says("done", finish="STOP")]
PLACE = {"type": "object", "properties": {"place": {"type": "string"}}, "required": ["place"]}


async def responses(proxy: Proxy, *calls: Document) -> list[Document]:
    """The responses that the model receives for a step of these calls."""
    upstream = proxy.upstream(Scripted([says(*calls, finish="STOP")], ANSWER))
    assert (await proxy.ask("x", framing=Framing.SSE)).text == "done"
    return [part["functionResponse"]["response"] for part in upstream.bodies[1]["contents"][-1]["parts"]]


def asking(proxy: Proxy, *calls: Document) -> asyncio.Future[Played]:
    proxy.upstream(Scripted([says(*calls, finish="STOP")], ANSWER))
    return asyncio.ensure_future(proxy.ask("x", framing=Framing.SSE))


def returns(value: Any) -> Callable[..., Awaitable[Any]]:
    async def tool(**args: Any) -> Any:
        return value

    return tool


def raises(error: BaseException) -> Callable[..., Awaitable[Any]]:
    async def tool(**args: Any) -> Any:
        raise error

    return tool


async def hangs(**args: Any) -> None:
    await asyncio.Event().wait()
