"""Loops in process: a store, tools that are plain functions, and an upstream that is scripted or the strict Gemini."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Any

import httpx2
import pytest

from addon.core.framing.documents import Document, decode, encode
from addon.core.framing.streams import sse_event
from addon.fake_gemini.server import StrictGemini
from addon.graft.exchange import Forward, Outcome
from addon.graft.grafter import Grafter
from addon.loop import upstream
from addon.loop.executors import Executors
from addon.loop.runner import Head, Runner
from addon.loop.upstream import Address, Headers, Outgoing, Received, Upstream
from addon.monitoring.metrics import Metrics
from addon.settings import Settings
from addon.surfaces.incoming import Framing, Incoming, Operation, Target
from addon.tools import attempts
from addon.tools.base import RunRules, Tool, ToolSource
from store.backends.memory import MemoryStore
from store.base import Store
from store.models import Call, Policy, ToolRules, Toolset, Turn
from tests.contents import model, user
from tests.leaping import leaping
from tests.loop.servers import server
from tests.plain_http import NO_TLS

__all__ = ["leaping", "server"]

type Function = Callable[..., Awaitable[Any]]


def call(name: str, call_id: str | None = None, **args: Any) -> Document:
    made: Document = {"name": name, "args": args}
    if call_id is not None:
        made["id"] = call_id
    return {"functionCall": made, "thoughtSignature": f"c2ln{name[:1]}A=="}


def says(*parts: str | Document, finish: str | None = None, **fields: Any) -> Document:
    """One response document."""
    candidate: Document = {"content": model(*parts), "index": 0}
    if finish is not None:
        candidate["finishReason"] = finish
    return {"candidates": [candidate], "modelVersion": "m", **fields}


def google_error(code: int, status: str = "UNAVAILABLE") -> Document:
    return {"error": {"code": code, "message": "of the upstream", "status": status}}


class Watched:
    """An exchange that changes nothing."""

    def __init__(self, address: Address, body: bytes) -> None:
        self.outgoing: Outgoing | Received = Outgoing(address.method, address.url, address.headers, body)
        self.error: str | None = "not ended"

    async def receive_head(self, status: int, headers: Headers) -> Received | None:
        return Received(status, headers)

    async def receive_body(self, body: bytes) -> Received:
        raise NotImplementedError

    def transform(self, chunk: bytes) -> bytes:
        return chunk

    async def close(self, error: str | None) -> None:
        self.error = error


class Watcher:
    def __init__(self) -> None:
        self.exchanges: list[Watched] = []

    async def begin(self, address: Address, body: bytes) -> Watched:
        self.exchanges.append(Watched(address, body))
        return self.exchanges[-1]


class Tools(ToolSource):
    """Async functions as tools. `begun`, `ended`: the names of calls in that order; `cancelled`: cancelled calls."""

    name = "the test's tools"

    def __init__(self) -> None:
        self.functions: dict[str, tuple[Function, Tool]] = {}
        self.begun: list[str] = []
        self.ended: list[str] = []
        self.cancelled: list[str] = []

    def add(self, name: str, function: Function, schema: Document | None = None, **rules: Any) -> None:
        schema = schema or {"type": "object"}
        declaration = {"name": name, "description": name, "parametersJsonSchema": schema}
        self.functions[name] = function, Tool(declaration, schema, RunRules(**rules))

    async def list_tools(self) -> Sequence[Tool]:
        return [tool for _, tool in self.functions.values()]

    async def call(self, name: str, args: Mapping[str, Any], *, call_id: str) -> Any:
        self.begun.append(name)
        try:
            return await self.functions[name][0](**args)
        except asyncio.CancelledError:
            self.cancelled.append(name)
            raise
        finally:
            self.ended.append(name)


class Wire(httpx2.MockTransport):
    """Streams every answer, as a real connection does."""

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        response = await super().handle_async_request(request)
        if not response.is_stream_consumed:
            return response

        async def body() -> AsyncIterator[bytes]:
            yield response.content

        return httpx2.Response(response.status_code, headers=response.headers.raw, content=body())


type Item = Document | bytes | asyncio.Event | Exception
"""An item of a scripted stream: a document, raw bytes, an event to wait for, or an error to break off with."""


async def streamed(data: bytes) -> AsyncIterator[bytes]:
    """A body that arrives in pieces, as over a connection."""
    yield data


class Scripted:
    """An upstream that answers each request with the next list of items, in the requested framing, or a response."""

    def __init__(self, *rounds: Sequence[Item] | httpx2.Response | Exception) -> None:
        self.rounds = list(rounds)
        self.bodies: list[Document] = []

    async def __call__(self, request: httpx2.Request) -> httpx2.Response:
        self.bodies.append(decode(request.content))
        now = self.rounds.pop(0)
        if isinstance(now, Exception):
            raise now
        if isinstance(now, httpx2.Response):
            return now
        sse = b"alt=sse" in request.url.query
        array = not sse and "stream" in request.url.path
        kind = "text/event-stream" if sse else "application/json"
        return httpx2.Response(200, headers={"content-type": kind}, content=self._stream(now, sse, array))

    async def _stream(self, items: Sequence[Item], sse: bool, array: bool) -> AsyncIterator[bytes]:
        before = b"["
        for item in items:
            if isinstance(item, asyncio.Event):
                await item.wait()
            elif isinstance(item, Exception):
                raise item
            elif isinstance(item, bytes):
                yield item
            else:
                body = encode(item)
                yield sse_event(body) if sse else before + body if array else body
                before = b",\r\n"
        if array:
            yield b"[]" if before == b"[" else b"\n]"


class Played:
    """The answer that a client received."""

    def __init__(self, framing: Framing, path: Sequence[str]) -> None:
        self.framing = framing
        self.path = path
        self.status = 0
        self.headers: dict[bytes, bytes] = {}
        self.body = b""

    def take(self, out: Head | bytes) -> None:
        if isinstance(out, Head):
            assert not self.status, "one head"
            self.status, self.headers = out.status, dict(out.headers)
        else:
            assert self.status, "the head comes first"
            assert out, "an empty chunk would end the answer"
            self.body += out

    @property
    def raw(self) -> list[Document]:
        """The documents of the answer, including envelopes."""
        if self.framing is Framing.SSE and self.body.startswith(b"data: "):
            events = self.body.split(b"\r\n\r\n")
            assert events.pop() == b"", "each event ends with a blank line"
            assert all(event.startswith(b"data: ") and b"\n" not in event for event in events)
            return [decode(event.removeprefix(b"data: ")) for event in events]
        document = decode(self.body)
        return document if isinstance(document, list) else [document]

    @property
    def documents(self) -> list[Document]:
        found = []
        for document in self.raw:
            for key in self.path if "error" not in document else ():
                document = document[key]
            found.append(document)
        return found

    @property
    def parts(self) -> list[Document]:
        candidates = [c for d in self.documents for c in d.get("candidates", [])]
        return [part for c in candidates for part in c.get("content", {}).get("parts", [])]

    @property
    def text(self) -> str:
        return "".join(part.get("text", "") for part in self.parts if not part.get("thought"))

    @property
    def finishes(self) -> list[str]:
        candidates = [c for d in self.documents for c in d.get("candidates", [])]
        return [c["finishReason"] for c in candidates if "finishReason" in c]

    def check(self) -> None:
        """Check the properties of every finished answer."""
        assert self.status == 200
        assert len(self.finishes) == 1
        assert "finishReason" in self.documents[-1]["candidates"][0] or "usageMetadata" in self.documents[-1]
        assert len({d["responseId"] for d in self.documents if "responseId" in d}) <= 1
        assert not any("functionCall" in part for part in self.parts)
        for document in self.documents:
            assert document["candidates"], "an event without a candidate makes chats forget the turn"
            for candidate in document["candidates"]:
                assert candidate["content"]["parts"]
                assert all(candidate["content"]["parts"]), "no part is empty"


_PATHS = {
    Framing.JSON: (Operation.GENERATE, ":generateContent"),
    Framing.SSE: (Operation.STREAM, ":streamGenerateContent?alt=sse"),
    Framing.ARRAY: (Operation.STREAM, ":streamGenerateContent"),
}


class Proxy:
    """A grafter, executors and an upstream. `tools`: of every session."""

    def __init__(self, *, store: Store | None = None, **settings: Any) -> None:
        self.store: Store = store or MemoryStore()
        self.tools = Tools()
        http = httpx2.AsyncClient(verify=NO_TLS, trust_env=False)
        self.metrics = Metrics()
        self.executors = Executors(self.store, self.tools, http, proxy_id="this", count=self.metrics.count_ended)
        self.settings = Settings(**settings)
        self.grafter = Grafter(self.store, self.settings, self.metrics, owners=self.executors)
        self.watcher = Watcher()
        self.url = "http://gemini.test"
        self.transport: httpx2.AsyncBaseTransport = httpx2.AsyncHTTPTransport(verify=NO_TLS)
        self.runner: Runner

    def upstream(self, handler: Scripted) -> Scripted:
        self.transport = Wire(handler)
        return handler

    async def open(self) -> None:
        await self.store.open()
        await self.store.hold("this", 3600)
        await self.executors.open()
        self.grafter.session_configs.share([tool.declaration for tool in self.executors.tools.values()])

    async def close(self) -> None:
        await self.executors.close()
        await self.transport.aclose()

    async def policy(self, **policy: Any) -> None:
        await self.store.put_policy("default", Policy(**policy))

    async def declare(self, *declarations: Document, **rules: ToolRules) -> None:
        await self.store.put_toolset("default", Toolset(declarations=list(declarations), rules=rules))

    async def outcome(self, body: Document, target: Target, url: str = "") -> Outcome:
        expected = self.grafter.session_configs.expected("default")
        config = expected or await self.grafter.session_config("default")
        assert config is not None
        return await self.grafter.request(
            Incoming(target, config.session, encode(body), url=url), config, is_expected=expected is not None
        )

    async def forwarded(self, body: Document, target: Target, url: str = "") -> Forward:
        outcome = await self.outcome(body, target, url)
        assert isinstance(outcome, Forward)
        return outcome

    def target(self, framing: Framing, surface: str, name: str) -> tuple[Target, str]:
        operation, path = _PATHS[framing]
        if surface == "codeassist":
            target = Target(surface, operation, framing, "", ("request",), ("response",))
            return target, f"{self.url}/v1internal{path}"
        return Target(surface, operation, framing, name, (), ()), f"{self.url}/v1beta/models/{name}{path}"

    async def prepare(
        self,
        contents: Sequence[Document],
        framing: Framing = Framing.JSON,
        *,
        surface: str = "developer",
        name: str = "gemini-3-flash-preview",
        **body: Any,
    ) -> tuple[Runner, Played]:
        target, url = self.target(framing, surface, name)
        request: Document = {"contents": list(contents), **body}
        if surface == "codeassist":
            request = {"model": name, "project": "p", "request": request}
        return self.runner_of(await self.forwarded(request, target, url), target, url, framing)

    def runner_of(self, forward: Forward, target: Target, url: str, framing: Framing) -> tuple[Runner, Played]:
        assert forward.exchange is not None
        headers = [(b"content-type", b"application/json"), (b"x-goog-api-key", b"k"), (b"authorization", b"Bearer t")]
        address = Address("POST", url, headers)
        transport = self.transport
        upstream = Upstream(lambda _: transport, self.watcher)
        self.runner = Runner(self.grafter, self.executors, upstream, forward.exchange, address, forward.body)
        return self.runner, Played(framing, target.response_path)

    async def ask(self, *contents: Document | str, framing: Framing = Framing.JSON, **kwargs: Any) -> Played:
        """Send one request, and read its whole answer."""
        turns = [user(one) if isinstance(one, str) else one for one in contents]
        runner, played = await self.prepare(turns, framing, **kwargs)
        async with asyncio.timeout(30):
            async for out in runner.output():
                played.take(out)
        await runner.settle_handover()
        return played

    async def calls(self) -> list[Call]:
        return (await self.store.calls()).items

    async def turns(self) -> list[Turn]:
        return (await self.store.turns("default")).items


@pytest.fixture(autouse=True)
def quick_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    """Short pauses before retries of requests and of tools' calls."""
    for module in (upstream, attempts):
        monkeypatch.setattr(module, "_FIRST_PAUSE", 0.001)


@pytest.fixture
async def proxy() -> AsyncIterator[Proxy]:
    proxy = Proxy()
    yield proxy
    await proxy.close()


async def lookup(**args: Any) -> str:
    return "found"


@pytest.fixture
async def ready(proxy: Proxy) -> Proxy:
    """The model can call `lookup`."""
    proxy.tools.add("lookup", lookup)
    await proxy.open()
    return proxy


@pytest.fixture
async def sender(proxy: Proxy) -> Proxy:
    """The model can call `send`, which counts."""

    async def send() -> str:
        return f"sent {proxy.tools.begun.count('send')}"

    proxy.tools.add("send", send)
    await proxy.open()
    return proxy


@pytest.fixture
async def gemini(proxy: Proxy) -> AsyncIterator[StrictGemini]:
    async with StrictGemini() as gemini:
        proxy.url = gemini.url
        yield gemini
        await proxy.close()  # the server must not wait for its connections


async def until(condition: Callable[[], bool]) -> None:
    """Wait until the condition holds, for half a minute at most."""
    async with asyncio.timeout(30):
        while not condition():  # noqa: ASYNC110 - what is waited for has no event
            await asyncio.sleep(0)
