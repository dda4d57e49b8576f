"""The store fails at each of its calls in turn, while a chat of two requests goes on: what was answered as if all were
well is in the next turn, and whatever else is an error in the form of the API."""

import asyncio
import inspect
import json
import logging
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import httpx2
import pytest

from addon.core.framing.documents import Document, decode, encode
from addon.fake_gemini.app import App
from addon.fake_gemini.entrance import Log
from addon.fake_gemini.reply import Shape
from addon.fake_gemini.rules import Options
from addon.fake_gemini.service import Service
from addon.graft.exchange import Forward, Reply
from addon.graft.grafter import EXCHANGE_FAILED
from addon.hooks import runtime
from addon.loop.runner import Head, Runner
from addon.loop.server import LoopServer
from addon.loop.upstream import Address, Upstream
from addon.surfaces.base import Framing
from store.backends.memory import MemoryStore
from store.base import StoreBusy, StoreUnavailable, is_run_now
from store.models import Policy
from tests.gateway.conftest import House
from tests.hooks import conftest  # noqa: F401 - mitmproxy's own warnings are kept out of it there
from tests.hooks.harness import GOOGLE, PATH, Hooks, request, response
from tests.loop.conftest import Proxy, until

TOOL = "get_weather"
PLACE = "/home/alice/graft.db"
"""Where the database is: for the log, and for nobody else."""
QUESTION = "say Wait. call get_weather {}"


def no_space() -> Exception:
    return StoreUnavailable(f"store {PLACE}: the disk is full")


def busy() -> Exception:
    return StoreBusy(f"store {PLACE}: another program holds it")


def unforeseen() -> Exception:
    return sqlite3.OperationalError(f"{PLACE}: disk I/O error")


class Fault(NamedTuple):
    """`error`: None where the call only takes its time. `lasts`: all calls fail from there to the end of the
    request."""

    error: Callable[[], Exception] | None
    lasts: bool = False


NO_SPACE = Fault(no_space, lasts=True)
BUSY = Fault(busy)
UNFORESEEN = Fault(unforeseen)
SLOW = Fault(None)


class FaultyStore:
    """A store in memory whose calls are counted, and of which one, or all from one on, can fail."""

    def __init__(self) -> None:
        self.store = MemoryStore()
        self.called: list[str] = []
        self.raised: list[Exception] = []
        self.failed: list[str] = []
        self._fault = Fault(None)
        self._number = -1
        self._watched = False

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.store, name)
        return self._counted(name, found) if inspect.iscoroutinefunction(found) else found

    def _counted(self, name: str, method: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        async def counted(*arguments: Any, **named: Any) -> Any:
            if not self._watched:
                return await method(*arguments, **named)
            number = len(self.called)
            self.called.append(name)
            if number == self._number or (self._fault.lasts and number > self._number >= 0):
                self.failed.append(name)
                await self._fail()
            return await method(*arguments, **named)

        return counted

    async def _fail(self) -> None:
        if self._fault.error is not None:
            self.raised.append(self._fault.error())
            raise self.raised[-1]
        if not is_run_now():
            for _ in range(5):
                await asyncio.sleep(0)

    def begin(self) -> None:
        self.called, self.raised, self.failed = [], [], []

    def fail(self, fault: Fault, number: int) -> None:
        """Fail at the call of this number."""
        self._fault, self._number = fault, number

    def recover(self) -> None:
        self._number = -1

    @contextmanager
    def watched(self) -> Iterator[None]:
        self._watched = True
        try:
            yield
        finally:
            self._watched = False


class Answered(NamedTuple):
    """`parts`: of an answer that is whole; None of one that is an error. `shown`: all that the client got."""

    parts: list[Document] | None
    visible: str


class Chat:
    """A client that keeps its history, and asks again where it is given an error, as the store is well then."""

    def __init__(self, store: FaultyStore, app: App) -> None:
        self.store = store
        self.app = app
        self.number = -1
        self.contents: list[Document] = []
        self.visible: list[str] = []
        self.refused: list[str] = []

    @property
    def question(self) -> str:
        return f"{self.number}: {QUESTION}"

    def begin(self, number: int) -> None:
        """Another chat, whose words are its own."""
        self.number = number
        self.contents, self.visible, self.refused = [], [], []
        self.store.begin()

    async def ask(self, contents: list[Document]) -> Answered:
        raise NotImplementedError

    async def settle(self) -> None:
        """What is done by hand between two requests."""

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
            self.store.recover()  # what lasts, lasts to the end of a request
        self.contents = [*contents, {"role": "model", "parts": answered.parts}]
        await self.settle()

    @property
    def times(self) -> int:
        """How often the model called the tool."""
        return 1

    def last_history(self) -> list[Document]:
        """The history that the model was given last."""
        found: list[Document] = self.app.log.requests[-1]["body"]["contents"]
        return found


def of_documents(documents: list[Document], visible: str) -> Answered:
    """Gemini's form: a whole answer has one finishReason, an error a code, a message and a status."""
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


class Placeholder(Chat):
    """Through the addon's hooks; results are given by hand."""

    hooks: Hooks
    path = PATH

    async def ask(self, contents: list[Document]) -> Answered:
        flow = request(f"https://{GOOGLE}{self.path}", encode({"contents": contents}), {"x-goog-api-key": "k"})
        await self.hooks.ask(flow)
        if flow.response is not None:
            return of_answer(flow.response.status_code, flow.response.raw_content or b"")
        async with gemini_of(self.app) as http:
            got = await http.post(self.path, content=flow.request.raw_content, headers={"x-goog-api-key": "k"})
        given = response(got.content, got.headers["content-type"])
        given.status_code = got.status_code
        body = await self.hooks.answer(flow, given, [got.content[:60], got.content[60:]])
        assert flow.response is not None
        return of_answer(flow.response.status_code, body)

    async def settle(self) -> None:
        for one in (await self.store.store.calls()).items:
            if not one.status.final:
                await self.store.store.answer(one.session, one.call_id, result={"celsius": 3})


class PlaceholderStream(Placeholder):
    path = PATH.replace("generateContent", "streamGenerateContent?alt=sse")


def gemini_of(app: App) -> httpx2.AsyncClient:
    return httpx2.AsyncClient(transport=httpx2.ASGITransport(app), base_url="http://gemini.test")


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


class Loop(Chat):
    proxy: Proxy
    framing = Framing.JSON

    async def ask(self, contents: list[Document]) -> Answered:
        target, url = self.proxy.target(self.framing, "developer", "gemini-3-flash-preview")
        body, grafter = encode({"contents": contents}), self.proxy.grafter
        try:
            config = await grafter.session_config("default")
        except EXCHANGE_FAILED as error:
            outcome = grafter.failure_outcome(target, body, error)
        else:
            assert config is not None
            outcome = await grafter.request(target, config, body, asker="k", url=url)
        if isinstance(outcome, Reply):
            return of_answer(outcome.status, outcome.body)
        assert isinstance(outcome, Forward)
        headers = [(b"content-type", b"application/json"), (b"x-goog-api-key", b"k")]
        if outcome.exchange is None:
            got = await self.proxy.client.post(url, content=outcome.body, headers=headers)
            return of_answer(got.status_code, got.content)
        client, address = self.proxy.client, Address("POST", url, headers)
        upstream = Upstream(lambda _: client, self.proxy.watcher)
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
        return of_answer(status, answer)


class LoopStream(Loop):
    framing = Framing.SSE


async def get_weather() -> Document:
    return {"celsius": 3}


class Conversation(Chat):
    """A front door's: the history is the door's to keep."""

    house: House

    @property
    def times(self) -> int:
        """A turn that is stored, though nobody knows whether it survives a power failure, is taken back: its client is
        given an error. If neither that can be done nor noted, it stays in the conversation, and the question is another
        one when it is asked again."""
        lost = {"sync", "take_back", "mark_not_handed_over"} <= {*self.store.failed} and self.refused[:1] == [
            self.question
        ]
        return 2 if lost else 1

    async def ask(self, contents: list[Document]) -> Answered:
        words = contents[-1]["parts"][0]["text"]
        return await self.given({"model": "gemini-3-flash-preview", "input": words, "conversation": f"c{self.number}"})

    async def given(self, asked: Document) -> Answered:
        got = await self.house.post("/v1/gemini", asked)
        return of_answer(got.status_code, got.content)


class ConversationStream(Conversation):
    async def given(self, asked: Document) -> Answered:
        return await super().given(asked | {"stream": True})


class Responses(Conversation):
    """In the words of OpenAI."""

    async def given(self, asked: Document) -> Answered:
        got = await self.house.post("/v1/responses", asked)
        document = got.json()
        if got.status_code != 200:
            assert got.status_code >= 500, got.text
            assert {"message", "type", "code", "param"} <= set(document["error"]), got.text
            return Answered(None, got.text)
        return of_response(document, got.text)


class ResponsesStream(Conversation):
    async def given(self, asked: Document) -> Answered:
        got = await self.house.post("/v1/responses", asked | {"stream": True})
        if got.status_code != 200:
            assert got.status_code >= 500, got.text
            assert {"message", "type", "code", "param"} <= set(got.json()["error"]), got.text
            return Answered(None, got.text)
        last = [line for line in got.text.splitlines() if line.startswith("data: ")][-1]
        event = json.loads(last.removeprefix("data: "))
        if event["type"] == "error":
            assert event["message"], got.text
            return Answered(None, got.text)
        return of_response(event["response"], got.text)


def of_response(document: Document, visible: str) -> Answered:
    if document["status"] == "failed":
        assert document["error"]["message"], visible
        return Answered(None, visible)
    assert document["status"] == "completed", visible
    return Answered([{"text": part["text"]} for one in document["output"] for part in one["content"]], visible)


@asynccontextmanager
async def chat_of(kind: type[Chat], folder: Path, policy: str) -> AsyncIterator[Chat]:
    store, app = FaultyStore(), App(Service(Options()), Shape(), Log())
    any_store: Any = store
    chat = kind(store, app)
    if isinstance(chat, Placeholder):
        async with placeholder(store, app, folder, policy) as chat.hooks:
            yield chat
    elif isinstance(chat, Loop):
        chat.proxy = Proxy(store=any_store, on_store_error=policy)
        chat.proxy.tools.add(TOOL, get_weather)
        chat.proxy.client = gemini_of(app)
        await chat.proxy.open()
        yield chat
        await chat.proxy.close()
    else:
        assert isinstance(chat, Conversation)
        chat.house = House(any_store, state=folder, on_store_error=policy)
        chat.house.proxy.tools.add(TOOL, get_weather)
        chat.house.proxy.client = gemini_of(app)
        await chat.house.open()
        yield chat
        await chat.house.close()


async def run(chat: Chat) -> None:
    for words in (chat.question, "What is 1+1?"):
        await chat.say(words)
    chat.store.recover()
    await chat.ask([*chat.contents, {"role": "user", "parts": [{"text": "Thanks."}]}])


def check_told(contents: list[Document], *, times: int = 1, ran: bool = True) -> None:
    """The call of the first question is there, followed by its result; so often, if it was asked again. `ran`: its
    tool has run, and the model is told no less."""
    parts = [part for content in contents for part in content["parts"]]
    at = [number for number, part in enumerate(parts) if "functionCall" in part]
    assert len(at) == times, parts
    for number in at:
        call, history = parts[number]["functionCall"], parts[number + 1]["functionResponse"]
        assert call["name"] == history["name"] == TOOL
        assert call["id"] == history["id"]
        assert history["response"] == {"celsius": 3} or (
            not ran and "could not be run" in history["response"]["error"]
        ), history


def check_log(records: list[logging.LogRecord], raised: list[Exception], refused: list[str]) -> None:
    messages = "".join(logging.Formatter().format(record) for record in records)
    assert PLACE in messages or not refused, "the log says where"
    for record in records:
        if record.exc_info:
            assert record.exc_info[1] in raised, record.getMessage()
        assert "never retrieved" not in record.getMessage(), record.getMessage()


@pytest.mark.parametrize(
    ("policy", "faults"), [("fail", [NO_SPACE, BUSY, UNFORESEEN, SLOW]), ("pass", [NO_SPACE, UNFORESEEN])]
)
@pytest.mark.parametrize(
    "kind",
    [
        Placeholder,
        PlaceholderStream,
        Loop,
        LoopStream,
        Conversation,
        ConversationStream,
        Responses,
        ResponsesStream,
    ],
)
async def test_what_was_answered_is_in_the_next_turn_wherever_the_store_fails(
    kind: type[Chat], policy: str, faults: list[Fault], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "toolgraft")  # what was said before is told there alone
    async with chat_of(kind, tmp_path, policy) as chat:
        await run(chat)
        check_told(chat.last_history())
        called = len(chat.store.called)
        assert called > 3
        for number, (fault, at) in enumerate((fault, at) for fault in faults for at in range(called)):
            caplog.clear()
            chat.begin(number)
            chat.store.fail(fault, at)
            try:
                await run(chat)
                assert bool(chat.store.raised) == (fault is not SLOW), "the call has come"
                check(chat, policy)
                check_log(caplog.records, chat.store.raised, chat.refused)
            except Exception as error:
                error.add_note(f"call {at} of the store: {chat.store.called[at:][:1]}, {fault}")
                raise


def check(chat: Chat, policy: str) -> None:
    raised = chat.store.raised
    assert not any("functionCall" in one or "function_call" in one for one in chat.visible)
    assert not any(PLACE in one for one in chat.visible)
    assert PLACE not in json.dumps([one["body"] for one in chat.app.log.requests])
    assert not [one for one in chat.app.log.requests if one["status"] >= 400]
    if policy == "fail" or not raised:
        check_told(chat.last_history(), times=chat.times, ran=chat.store.failed[:1] != ["start"])
