"""Chats of a client with the strict Gemini in every API, with tools that the proxy runs, while the store may fail."""

from typing import NamedTuple

import httpx2

from addon.core.framing.documents import Document, decode, encode
from addon.fake_gemini.app import App
from addon.graft.exchange import Forward, Reply
from addon.graft.grafter import EXCHANGE_FAILED
from addon.loop.runner import Head, Runner
from addon.loop.server import LoopServer
from addon.loop.upstream import Address, Upstream
from addon.surfaces.incoming import Incoming
from addon.surfaces.registry import match
from tests.faults.dialects import COMPLETIONS, GEMINI, INTERACTIONS, Dialect
from tests.faults.faulty_store import FaultyStore
from tests.hooks import conftest  # noqa: F401 - mitmproxy's own warnings are kept out of it there
from tests.hooks.harness import GOOGLE
from tests.loop.conftest import Proxy, until

TOOL = "get_weather"


class Answered(NamedTuple):
    """`parts`: of a whole answer; None for an error. `shown`: everything that the client received."""

    parts: list[Document] | None
    visible: str


class Chat:
    """A client that keeps its history, and repeats the request after an error, when the store works again."""

    steps = 1
    """The number of steps with a call that the question asks for."""

    def __init__(self, store: FaultyStore, app: App, policy: str) -> None:
        self.store = store
        self.app = app
        self.policy = policy
        self.number = -1
        self.contents: list[Document] = []
        self.visible: list[str] = []
        self.refused: list[str] = []

    @property
    def question(self) -> str:
        return f"{self.number}: say Wait. {' then '.join(['call get_weather {}'] * self.steps)}"

    def begin(self, number: int) -> None:
        """Begin another chat, with unique words."""
        self.number = number
        self.contents, self.visible, self.refused = [], [], []
        self.store.begin()

    async def ask(self, contents: list[Document]) -> Answered:
        raise NotImplementedError

    async def settle(self) -> None:
        """Give results by hand between two requests."""

    async def say(self, words: str) -> None:
        contents = [*self.contents, {"role": "user", "parts": [{"text": words}]}]
        with self.store.watched():
            answered = await self.ask(contents)
        self.visible.append(answered.visible)
        if answered.parts is None:
            self.refused.append(words)
            self.store.recover()
            answered = await self.ask(contents)
            self.visible.append(answered.visible)
            assert answered.parts is not None, f"the same request is refused again: {answered.visible}"
        if self.store.raised:
            self.store.recover()  # lasting faults end with the request
        self.contents = [*contents, {"role": "model", "parts": answered.parts}]
        await self.settle()

    def last_history(self) -> list[Document]:
        """The history of the last upstream request."""
        found: list[Document] = self.app.log.requests[-1]["body"]["contents"]
        return found


def of_documents(documents: list[Document], visible: str) -> Answered:
    """Gemini's format: a whole answer has one finishReason, an error has a code, a message and a status."""
    if "error" in documents[-1]:
        error = documents[-1]["error"]
        assert error["code"] >= 500, visible
        assert error["status"] in ("UNAVAILABLE", "INTERNAL"), visible
        assert error["message"], visible
        return Answered(None, visible)
    candidates = [one for document in documents for one in document["candidates"]]
    assert sum("finishReason" in one for one in candidates) == 1, visible
    return Answered([part for one in candidates for part in one["content"]["parts"]], visible)


def documents_of(body: bytes) -> list[Document]:
    if body.startswith(b"data: "):
        return [decode(event.removeprefix(b"data: ")) for event in body.split(b"\r\n\r\n") if event]
    document = decode(body)
    return document if isinstance(document, list) else [document]


def of_answer(status: int, body: bytes) -> Answered:
    found = of_documents(documents_of(body), body.decode())
    assert found.parts is None or status == 200
    return found


class Loop(Chat):
    """A chat with tools that the proxy runs."""

    proxy: Proxy
    dialect: Dialect = GEMINI
    framing = "JSON"

    def asked(self, contents: list[Document]) -> Document:
        """The body of a request."""
        return {"contents": contents}

    def answered(self, status: int, body: bytes) -> Answered:
        return of_answer(status, body)

    async def ask(self, contents: list[Document]) -> Answered:
        path = self.dialect.paths[self.framing]
        target, url = match("POST", GOOGLE, path), f"http://gemini.test{path}"
        body, grafter = encode(self.asked(contents)), self.proxy.grafter
        assert target is not None
        try:
            config = await grafter.session_config("default")
        except EXCHANGE_FAILED as error:
            outcome = grafter.failure_outcome(target, body, error)
        else:
            assert config is not None
            outcome = await grafter.request(Incoming(target, config.session, body, asker="k", url=url), config)
        if isinstance(outcome, Reply):
            return self.answered(outcome.status, outcome.body)
        assert isinstance(outcome, Forward)
        headers = [(b"content-type", b"application/json"), (b"authorization", b"Bearer k")]
        if outcome.exchange is None:
            async with httpx2.AsyncClient(transport=self.proxy.transport) as client:
                got = await client.post(url, content=outcome.body, headers=headers)
            return self.answered(got.status_code, got.content)
        transport, address = self.proxy.transport, Address("POST", url, headers)
        upstream = Upstream(lambda _: transport, self.proxy.watcher)
        server = LoopServer()
        runner = Runner(grafter, self.proxy.executors, upstream, outcome.exchange, address, outcome.body)
        answering = server.answer(runner)
        status, answer = 0, b""
        while not answering.over:
            for piece in await answering.take():
                if isinstance(piece, Head):
                    status = piece.status
                else:
                    answer += piece
        assert answering.error is None
        answering.settle_handover(whole=True)
        await until(lambda: not server._settling)
        return self.answered(status, answer)


class LoopStream(Loop):
    framing = "SSE"
    steps = 2


class Completions(Loop):
    """A chat of an OpenAI client."""

    dialect = COMPLETIONS

    def asked(self, contents: list[Document]) -> Document:
        roles = {"user": "user", "model": "assistant"}
        messages = [
            {"role": roles[one["role"]], "content": one["parts"][0]["text"], **one["parts"][-1].get("more", {})}
            for one in contents
        ]
        return self.dialect.request(self.framing) | {"messages": messages}

    def answered(self, status: int, body: bytes) -> Answered:
        found = in_dialect(self.dialect, status, body)
        if found.parts is None:
            return found
        for document in self.dialect.documents(body.decode()):
            for choice in document["choices"]:
                message = choice.get("delta") or choice.get("message") or {}
                if "extra_content" in message:  # a signature: without it, a repeated answer reads like one cut off
                    found.parts.append({"more": {"extra_content": message["extra_content"]}})
        return found

    def last_history(self) -> list[Document]:
        found: list[Document] = []
        names: dict[str, str] = {}
        for message in self.app.log.requests[-1]["body"]["messages"]:
            for call in message.get("tool_calls", ()):
                names[call["id"]] = call["function"]["name"]
                found.append({"functionCall": {"id": call["id"], "name": names[call["id"]]}})
            if message["role"] == "tool":
                response = decode(message["content"])
                named = {"id": message["tool_call_id"], "name": names[message["tool_call_id"]]}
                found.append({"functionResponse": {**named, "response": response}})
        return [{"parts": found}]


class CompletionsStream(Completions):
    framing = "SSE"
    steps = 2


class Interactions(Loop):
    """The service keeps the history; the client keeps the name of the last interaction."""

    dialect = INTERACTIONS
    name: str | None = None

    def begin(self, number: int) -> None:
        super().begin(number)
        self.name = None

    def asked(self, contents: list[Document]) -> Document:
        body = self.dialect.request(self.framing, contents[-1]["parts"][0]["text"])
        return body if self.name is None else {**body, "previous_interaction_id": self.name}

    def answered(self, status: int, body: bytes) -> Answered:
        if self.policy == "pass" and status == 400:  # the service's own error: it did not get the last result
            assert b"Missing function_result" in body
            return Answered(None, body.decode())
        found = in_dialect(self.dialect, status, body)
        if found.parts is not None:
            last = self.dialect.documents(body.decode())[-1]
            self.name = last.get("interaction", last)["id"]
        return found

    def last_history(self) -> list[Document]:
        name = self.app.log.requests[-1]["body"].get("previous_interaction_id")
        return self.app.interactions.stored[name].contents if name else []


class InteractionsStream(Interactions):
    framing = "SSE"
    steps = 2


def in_dialect(dialect: Dialect, status: int, body: bytes) -> Answered:
    """A whole answer, or an error in the form of the API."""
    text = body.decode()
    outcome = dialect.outcome(status, text)
    assert status == 200 or status >= 500, text
    assert outcome.how in ("whole", "error"), text
    return Answered([{"text": outcome.text}] if outcome.how == "whole" else None, text)


class CompletionsByHand(CompletionsStream):
    """A chat of an OpenAI client, with placeholders."""

    steps = 1

    async def settle(self) -> None:
        await by_hand(self.store)


class InteractionsByHand(Interactions):
    async def settle(self) -> None:
        await by_hand(self.store)


def gemini_of(app: App) -> httpx2.AsyncClient:
    return httpx2.AsyncClient(transport=httpx2.ASGITransport(app), base_url="http://gemini.test")


async def by_hand(store: FaultyStore) -> None:
    """Answer every open call."""
    for one in (await store.store.calls()).items:
        if not one.status.final:
            await store.store.answer(one.session, one.call_id, result={"celsius": 3})
