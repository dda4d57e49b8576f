"""Answers of the upstream, captured whole or as a stream."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

import httpx2
import pytest

from addon.core.framing import streams
from addon.core.framing.documents import Document, decode, encode
from addon.graft.exchange import Exchange
from addon.graft.grafter import Grafter
from addon.loop.executors import Executors
from addon.loop.runner import Runner
from addon.loop.upstream import Address, Upstream
from addon.surfaces.incoming import Framing, Operation, Target
from tests.contents import user
from tests.graft.conftest import EVENTS, JSON, Graft, answer, target
from tests.loop.conftest import Watcher

STREAM = target(Operation.STREAM, Framing.SSE)
ARRAY = target(Operation.STREAM, Framing.ARRAY)
ID = "turn_0000000000000001"
PLACEHOLDER = f"Tool call completed: get_weather [{ID}]"
OWN: Document = {"functionDeclarations": [{"name": "own"}]}
ASKED: Document = {"contents": [user("hi")]}


def kind(to: Target) -> str:
    return EVENTS if to.framing is Framing.SSE else JSON


def framed(to: Target, events: Sequence[Document]) -> bytes:
    wrapped = [{"response": event, "traceId": "t"} if to.response_path else event for event in events]
    if to.framing is Framing.SSE:
        return b"".join(streams.sse_event(encode(event)) for event in wrapped)
    return b"[" + b"\n,\r\n".join(encode(event) for event in wrapped) + b"\n]"


def read(to: Target, data: bytes) -> list[Document]:
    """A strict client's reading of a stream: every byte of it belongs to an event or a good array."""
    if to.framing is Framing.ARRAY:
        events = decode(data)
    else:
        assert data == b"" or data.endswith(b"\r\n\r\n")
        chunks = data.split(b"\r\n\r\n")[:-1]
        assert all(chunk.startswith(b"data: {") for chunk in chunks)
        events = [decode(chunk.removeprefix(b"data: ")) for chunk in chunks]
    return [event["response"] for event in events] if to.response_path else list(events)


class Stream(httpx2.AsyncBaseTransport, httpx2.AsyncByteStream):
    """An upstream stream for the `Runner`, fed piece by piece; further rounds are refused. `status`: the client's."""

    def __init__(
        self, grafter: Grafter, exchange: Exchange, content_type: str, *, ends_with_connection: bool = False
    ) -> None:
        owners = grafter.owners
        executors = owners if isinstance(owners, Executors) else Executors(grafter.store)
        address = Address("POST", "http://gemini.test", ())
        upstream = Upstream(lambda _: self, Watcher())
        self.runner = Runner(grafter, executors, upstream, exchange, address, exchange.request.body)
        self.status = 0
        self._headers = {"content-type": content_type} | ({} if ends_with_connection else {"content-length": "1"})
        self._chunks = asyncio.Queue[bytes | Exception | None]()
        self._is_read = asyncio.Event()
        self._is_asked = False
        self._out = b""
        self._answering = asyncio.ensure_future(self._answer())

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        if self._is_asked:
            return httpx2.Response(400, stream=httpx2.ByteStream(b'{"error": {"code": 400, "message": "no more"}}'))
        self._is_asked = True
        return httpx2.Response(200, headers=self._headers, stream=self)

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while True:
            self._is_read.set()
            chunk = await self._chunks.get()
            if isinstance(chunk, Exception):
                raise chunk
            if chunk is None:
                return
            yield chunk

    async def _answer(self) -> None:
        async for out in self.runner.output():
            if isinstance(out, bytes):
                self._out += out
            else:
                self.status = out.status

    async def feed(self, chunk: bytes | Exception | None) -> bytes:
        """The client's bytes after the upstream has sent this. None: the stream ends; an error: it breaks off."""
        if not self._is_read.is_set():
            await self._until_read()
        self._is_read.clear()
        self._chunks.put_nowait(chunk)
        await self._until_read()
        out, self._out = self._out, b""
        return out

    async def _until_read(self) -> None:
        reading = asyncio.ensure_future(self._is_read.wait())
        async with asyncio.timeout(30):
            await asyncio.wait({reading, self._answering}, return_when=asyncio.FIRST_COMPLETED)
        reading.cancel()

    async def finish(self) -> bytes:
        out = await self.feed(None)
        await self._answering
        return out

    async def hang_up(self) -> None:
        self._answering.cancel()
        await asyncio.wait({self._answering})
        await self.runner.cut_off()
        await self.runner.settle_handover(False)


async def stream(graft: Graft, events: Sequence[Document], to: Target = STREAM, body: Document = ASKED) -> bytes:
    fed = Stream(graft.grafter, await graft.exchange(body, to), kind(to))
    out = await fed.feed(framed(to, events)) + await fed.finish()
    await fed.runner.settle_handover()
    return out


async def streamed(graft: Graft, events: Sequence[Document], to: Target = STREAM, **body: Any) -> list[Document]:
    answered = read(to, await stream(graft, events, to, {**ASKED, **body}))
    for event in answered:
        for candidate in event.get("candidates", ()):
            assert event in events or candidate["content"]["parts"], "a made event without a part"
            assert all(part for part in candidate.get("content", {}).get("parts", ())), "an empty part"
    return answered


async def whole(graft: Graft, says: Document, to: Target | None = None, **body: Any) -> Document:
    exchange = await graft.exchange({**ASKED, **body}, to)
    answered = decode(await graft.captured(exchange, encode(says)))
    assert isinstance(answered, dict)
    return answered


def parts(event: Document, at: int = 0) -> list[Document]:
    found = event["candidates"][at]["content"]["parts"]
    assert isinstance(found, list)
    return found


def texts(events: Sequence[Document]) -> str:
    return "".join(
        part.get("text", "")
        for event in events
        for candidate in event.get("candidates", ())
        for part in candidate.get("content", {}).get("parts", ())
        if not part.get("thought")
    )


FRAMINGS = pytest.mark.parametrize("to", [STREAM, ARRAY], ids=["sse", "array"])


def piece(path: str | None = None, goes_on: bool = True, name: str | None = None, **value: Any) -> Document:
    pieces = {"partialArgs": [{"jsonPath": path, **value}]} if path else {}
    fields: Document = {**({"name": name} if name else {}), **pieces, **({"willContinue": True} if goes_on else {})}
    return {"functionCall": fields}


PIECES = [
    piece(name="get_weather"),
    piece("$.city", stringValue="Os", willContinue=True),
    piece("$.city", stringValue="lo"),
    piece("$.days[0].n", numberValue=1),
    piece("$.days[1].n", numberValue=2.5),
    piece("$['odd key']", boolValue=True),
    piece("$.none", nullValue="NULL_VALUE"),
]


def paused(*model_parts: Any, token: str = "t1") -> Document:
    says = answer(*model_parts, finish="CONTINUATION")
    says["candidates"][0]["continuationToken"] = token
    return says
