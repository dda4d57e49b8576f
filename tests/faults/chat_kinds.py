"""The kinds of chats for tests of a failing store: each API, placeholders, and both front doors."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest

from addon.core.framing.documents import Document, encode
from addon.fake_gemini.app import App, Log
from addon.fake_gemini.reply import Shape
from addon.fake_gemini.rules import Options
from addon.fake_gemini.service import Service
from addon.hooks import runtime
from store.models import Policy, Toolset
from tests.faults.chats import (
    TOOL,
    Answered,
    Chat,
    Completions,
    CompletionsByHand,
    CompletionsStream,
    Interactions,
    InteractionsByHand,
    InteractionsStream,
    Loop,
    LoopStream,
    by_hand,
    gemini_of,
    in_dialect,
    of_answer,
)
from tests.faults.dialects import DOORS, Dialect
from tests.faults.faulty_store import FaultyStore
from tests.gateway.conftest import House
from tests.hooks import conftest  # noqa: F401 - mitmproxy's own warnings are kept out of it there
from tests.hooks.harness import GOOGLE, PATH, Hooks, request, response
from tests.loop.conftest import Proxy


class Placeholder(Chat):
    """Through the addon's hooks, with results by hand."""

    hooks: Hooks

    async def ask(self, contents: list[Document]) -> Answered:
        flow = request(f"https://{GOOGLE}{PATH}", encode({"contents": contents}), {"x-goog-api-key": "k"})
        await self.hooks.ask(flow)
        if flow.response is not None:
            return of_answer(flow.response.status_code, flow.response.raw_content or b"")
        async with gemini_of(self.app) as http:
            got = await http.post(PATH, content=flow.request.raw_content, headers={"x-goog-api-key": "k"})
        given = response(got.content, got.headers["content-type"])
        given.status_code = got.status_code
        body = await self.hooks.answer(flow, given)
        assert flow.response is not None
        return of_answer(flow.response.status_code, body)

    async def settle(self) -> None:
        await by_hand(self.store)


class PlaceholderStream(LoopStream):
    """With results by hand."""

    steps = 1

    async def settle(self) -> None:
        await by_hand(self.store)


@asynccontextmanager
async def placeholder(store: FaultyStore, app: App, folder: Path, policy: str) -> AsyncIterator[Hooks]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runtime, "open_url", lambda *_, **__: store)
        hooks = Hooks(on_store_error=policy, state=str(folder))
    await hooks.tools(TOOL)
    await hooks.store.put_policy("default", Policy(delivery="placeholder"))
    try:
        yield hooks
    finally:
        await hooks.done()


async def get_weather() -> Document:
    return {"celsius": 3}


class Conversation(Chat):
    """A chat at a front door, which keeps the history."""

    house: House
    dialect: Dialect = DOORS[0]
    framing = "JSON"

    async def ask(self, contents: list[Document]) -> Answered:
        asked = self.dialect.request(self.framing, contents[-1]["parts"][0]["text"])
        got = await self.house.post(self.dialect.paths[self.framing], {**asked, "conversation": f"c{self.number}"})
        return in_dialect(self.dialect, got.status_code, got.content)


class ConversationStream(Conversation):
    framing = "SSE"
    steps = 2


class Responses(Conversation):
    """A chat in OpenAI's format."""

    dialect = DOORS[1]


class ResponsesStream(Responses):
    framing = "SSE"


KINDS = (
    *(Placeholder, PlaceholderStream, Loop, LoopStream, Conversation, ConversationStream, Responses, ResponsesStream),
    *(Completions, CompletionsStream, CompletionsByHand, Interactions, InteractionsStream, InteractionsByHand),
)


@asynccontextmanager
async def chat_of(kind: type[Chat], folder: Path, policy: str) -> AsyncIterator[Chat]:
    store, app = FaultyStore(), App(Service(Options()), Shape(), Log())
    any_store: Any = store
    chat = kind(store, app, policy)
    if isinstance(chat, Placeholder):
        async with placeholder(store, app, folder, policy) as chat.hooks:
            yield chat
    elif isinstance(chat, Loop):
        chat.proxy = Proxy(store=any_store, on_store_error=policy)
        chat.proxy.transport = httpx2.ASGITransport(app)
        is_by_hand = isinstance(chat, PlaceholderStream | CompletionsByHand | InteractionsByHand)
        if not is_by_hand:
            chat.proxy.tools.add(TOOL, get_weather)
        await chat.proxy.open()
        if is_by_hand:
            await store.put_toolset("default", Toolset(declarations=[{"name": TOOL, "description": "A tool."}]))
            await store.put_policy("default", Policy(delivery="placeholder"))
        yield chat
        await chat.proxy.close()
    else:
        assert isinstance(chat, Conversation)
        chat.house = House(any_store, state=folder, on_store_error=policy)
        chat.house.proxy.tools.add(TOOL, get_weather)
        chat.house.proxy.transport = httpx2.ASGITransport(app)
        await chat.house.open()
        yield chat
        await chat.house.close()
