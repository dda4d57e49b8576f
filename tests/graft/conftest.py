"""A session's way through the graft without HTTP: a store of each kind, and a client that talks to a scripted model."""

import itertools
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from addon.core.framing.documents import Document, decode, encode
from addon.graft import rounds, turn_records
from addon.graft.exchange import Exchange, Forward, Outcome
from addon.graft.grafter import Grafter, never
from addon.graft.machine_shell import Capture
from addon.graft.owners import Hangup
from addon.graft.session_config import SessionConfig
from addon.monitoring.metrics import Metrics
from addon.settings import Settings
from addon.surfaces.incoming import Framing, Incoming, Operation, Target
from store.base import Store
from store.factory import open_url
from store.models import Call, Policy, ToolRules, Toolset, Turn
from tests.contents import model
from tests.databases import database_in
from tests.store import servers

WEATHER: Document = {"name": "get_weather", "description": "d", "parameters": {"type": "OBJECT"}}
SEARCH: Document = {"name": "search"}
JSON = "application/json; charset=UTF-8"
EVENTS = "text/event-stream"


def answer(*parts: str | Document, finish: Any = "STOP", **fields: Any) -> Document:
    candidate: Document = {"content": model(*parts), "index": 0}
    if finish is not None:
        candidate["finishReason"] = finish
    return {"candidates": [candidate], **fields}


def target(
    operation: Operation = Operation.GENERATE,
    framing: Framing = Framing.JSON,
    *,
    surface: str = "developer",
    model: str = "gemini-2.5-flash",
) -> Target:
    envelope = surface == "codeassist"
    wrapped = operation is not Operation.COUNT
    return Target(
        surface,
        operation,
        framing,
        "" if envelope else model,
        ("request",) if envelope else (),
        ("response",) if envelope and wrapped else (),
        f"models/{model}" if surface == "developer" else "",
    )


ON_EACH_BACKEND = pytest.mark.parametrize("store", ["memory", "sqlite", servers.REDIS], indirect=True)
"""For the few tests that show that the graft does the same on each: what a backend must do, `tests/store` checks."""


@pytest.fixture
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Store]:
    """In memory, if the test does not choose."""
    match getattr(request, "param", "memory"):
        case "memory":
            url = "memory://"
        case "sqlite":
            url = database_in(tmp_path)
        case _:
            url = servers.new_url()
    ticks = itertools.count(1_000_000)
    store = open_url(url, ttl=1e6, clock=lambda: float(next(ticks)))
    await store.open()
    yield store
    await store.close()


class Graft:
    """A grafter with one session, and common operations of tests."""

    def __init__(self, store: Store, **settings: Any) -> None:
        self.store = store
        self.grafter = Grafter(store, Settings(**settings), Metrics())

    async def tools(
        self,
        *declarations: Document,
        session: str = "default",
        builtins: Sequence[Document] = (),
        tool_config: Document | None = None,
        rules: Mapping[str, ToolRules] | None = None,
        **policy: Any,
    ) -> None:
        declared = list(declarations)
        await self.store.put_policy(session, Policy(**policy))
        toolset = Toolset(
            declarations=declared, builtins=list(builtins), tool_config=tool_config, rules=dict(rules or {})
        )
        await self.store.put_toolset(session, toolset)

    async def session_config(self, session: str = "default") -> SessionConfig:
        config = await self.grafter.session_config(session)
        assert config is not None
        return config

    async def request(
        self,
        body: Document | bytes,
        to: Target | None = None,
        *,
        session: str = "default",
        hangup: Hangup = never,
        **fields: Any,
    ) -> Outcome:
        """`fields`: of the `Incoming`."""
        data = body if isinstance(body, bytes) else encode(body)
        incoming = Incoming(to or target(), session, data, **fields)
        return await self.grafter.request(incoming, await self.session_config(session), hangup=hangup)

    async def sent(self, body: Document, to: Target | None = None, **kwargs: Any) -> Document:
        """The upstream request, decoded."""
        outcome = await self.request(body, to, **kwargs)
        assert isinstance(outcome, Forward)
        document = decode(outcome.body)
        assert isinstance(document, dict)
        return document

    async def contents(self, contents: Sequence[Document], **kwargs: Any) -> list[Document]:
        sent = await self.sent({"contents": list(contents)}, **kwargs)
        result = sent["contents"]
        assert isinstance(result, list)
        return result

    async def exchange(self, body: Document, to: Target | None = None, **kwargs: Any) -> Exchange:
        outcome = await self.request(body, to, **kwargs)
        assert isinstance(outcome, Forward)
        assert outcome.exchange is not None
        return outcome.exchange

    async def streamed_exchange(self, body: Document, to: Target) -> Exchange:
        """As `exchange`, also for a request without grafted tools, which only leaves a note."""
        outcome = await self.request(body, to)
        assert isinstance(outcome, Forward)
        exchange = outcome.exchange or outcome.noted
        assert exchange is not None
        return exchange

    async def ask(
        self, contents: Sequence[Document], says: Document, *, session: str = "default", **body: Any
    ) -> Document:
        """Run one exchange in JSON. Returns the model Content that the client receives."""
        exchange = await self.exchange({"contents": list(contents), **body}, session=session)
        visible = decode(await self.captured(exchange, encode(says)))
        content = visible["candidates"][0]["content"]
        assert isinstance(content, dict)
        return content

    async def captured(self, exchange: Exchange, body: bytes) -> bytes:
        """The client's answer in JSON, which must not be an error of the proxy."""
        capture = Capture(self.grafter, exchange, JSON)
        visible = await capture.whole(body)
        assert isinstance(visible, bytes)
        await capture.settle(True)
        return visible

    async def turns(self, session: str = "default") -> list[Turn]:
        return (await self.store.turns(session)).items

    async def calls(self, session: str = "default") -> list[Call]:
        return (await self.store.calls(session=session)).items


@pytest.fixture
def graft(store: Store) -> Graft:
    return Graft(store)


@pytest.fixture
def counted_ids(monkeypatch: pytest.MonkeyPatch) -> None:
    """Turn and call ids that are the same in every run."""
    turns, calls = itertools.count(1), itertools.count(1)
    monkeypatch.setattr(turn_records, "new_turn_id", lambda: f"turn_{next(turns):016x}")
    monkeypatch.setattr(rounds, "new_call_id", lambda: f"call_{next(calls)}")
