"""One turn: a Gemini request of a door's goes the way of any client's, and its answer comes back as documents."""

import dataclasses
import logging
import re
from collections.abc import AsyncGenerator, Callable, Iterable
from contextlib import aclosing
from urllib.parse import urlsplit

import httpx2

from addon.control.problems import Problem
from addon.core.documents import Document, Malformed, decode, encode, objects
from addon.core.pairing import signed
from addon.core.sse import SseDecoder
from addon.doors.failures import Failed
from addon.doors.outward import Caller, Outward
from addon.graft.exchange import Abandoned, Forward, Reply
from addon.graft.grafter import Grafter
from addon.graft.scope import Scope
from addon.loop.executors import Executors
from addon.loop.runner import Head, Output, Runner
from addon.loop.running import Running
from addon.loop.upstream import Address, Upstream
from addon.surfaces import Framing, Operation, Target

logger = logging.getLogger("toolgraft")

MODEL_FORM = "a model's name, such as gemini-3-flash or tunedModels/mine"
_MODEL = re.compile(r"(?:models/|tunedModels/)?[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_VERSION = "v1beta"


class Engine:
    """`grafter` is asked for anew for each turn: options may change."""

    def __init__(
        self, grafter: Callable[[], Grafter], executors: Executors, running: Running, outward: Outward
    ) -> None:
        self._grafter = grafter
        self._executors = executors
        self._running = running
        self._outward = outward

    async def documents(
        self, caller: Caller, model: str, request: Document, *, stream: bool
    ) -> AsyncGenerator[Document]:
        """The GenerateContentResponses of an answer: one, or those of a stream as they come. Closing it, as when the
        client hangs up, ends what runs. Raises Failed, StoreUnavailable."""
        async with aclosing(self._output(caller, model, request, stream=stream)) as output:
            async with aclosing(_documents(output)) as documents:
                async for document in documents:
                    yield document

    async def _output(self, caller: Caller, model: str, request: Document, *, stream: bool) -> Output:
        grafter, body = self._grafter(), encode({**request, "contents": signed(request["contents"], model)})
        target = _target(model, stream=stream)
        outcome = await grafter.request(target, await _scope(grafter, caller.session), body)
        if not isinstance(outcome, Forward):
            for out in _replied(outcome):
                yield out
            return
        address = _address(grafter, target, model, caller.key)
        upstream = self._outward.upstream(caller, address, body)
        if outcome.exchange is None:
            async with aclosing(_straight(upstream, address, outcome.body)) as output:
                async for out in output:
                    yield out
            return
        runner = Runner(grafter, self._executors, upstream, outcome.exchange, address, outcome.body)
        self._running.begin(runner)
        try:
            async with aclosing(runner.output()) as output:
                async for out in output:
                    yield out
        finally:
            self._running.end(runner)


def check_model(model: object) -> str:
    """The model that a request names. Raises Problem (400)."""
    if not isinstance(model, str) or not _MODEL.fullmatch(model):
        raise Problem(400, f"model: must be {MODEL_FORM}", field="model")
    return model


async def _scope(grafter: Grafter, session: str) -> Scope:
    """A session's, whether it has tools or not. A door's client gives its tools on purpose: they are kept. Its history
    is told here, so what a tool was called for that is declared no more is told as text."""
    scope = await grafter.scope(session)
    if scope is None:
        scope = grafter.scopes.made_of(session, await grafter.store.session(session), None)
    return dataclasses.replace(scope, client_tools="keep", flattens=True)


def _target(model: str, *, stream: bool) -> Target:
    operation, framing = (Operation.STREAM, Framing.SSE) if stream else (Operation.GENERATE, Framing.JSON)
    return Target("developer", operation, framing, model.rpartition("/")[2], (), ())


def _address(grafter: Grafter, target: Target, model: str, key: str) -> Address:
    settings = grafter.settings
    name = model if "/" in model else f"models/{model}"
    query = "?alt=sse" if target.framing is Framing.SSE else ""
    path = f"/{_VERSION}/{name}:{target.operation.value}{query}"
    base = urlsplit(settings.upstream)
    to = next((one for one in settings.redirect if one.host == base.hostname), None)
    headers = [
        (b"content-type", b"application/json"),
        (b"accept-encoding", b"identity"),
        (b"user-agent", b"toolgraft"),
        (b"x-goog-api-key", key.encode()),
    ]
    redirected = None
    if to is not None:
        host = f"[{to.to_host}]" if ":" in to.to_host else to.to_host
        redirected = f"{to.scheme}://{host}:{to.to_port}{to.path}{base.path}{path}"
    return Address("POST", f"{settings.upstream}{path}", headers, redirected)


def _replied(outcome: Reply | Abandoned) -> Iterable[Head | bytes]:
    """An answer of the proxy's own."""
    assert isinstance(outcome, Reply), "a door's turn is cancelled where its client hangs up"
    yield Head(outcome.status, [(b"content-type", outcome.content_type.encode())])
    yield outcome.body


async def _straight(upstream: Upstream, address: Address, body: bytes) -> Output:
    """A request that nothing is grafted on."""
    async with upstream.send(address, body) as answer:
        yield Head(answer.status, answer.headers)
        async for chunk in answer.chunks():
            yield chunk


async def _documents(output: Output) -> AsyncGenerator[Document]:
    """What a loop gives, decoded. Raises Failed."""
    status, decoder, whole = 0, None, bytearray()
    try:
        async for out in output:
            if isinstance(out, Head):
                status = out.status
                decoder = SseDecoder() if status == 200 and _is_sse(out) else None
            elif decoder is None:
                whole += out
            else:
                for event in decoder.feed(out):
                    if event.data is not None:
                        yield _document(event.data)
    except httpx2.RequestError as error:
        words = str(error) or type(error).__name__
        raise Failed(502, f"toolgraft: the model cannot be reached, or its answer broke off: {words}") from error
    if status != 200:
        raise Failed.of(status, bytes(whole))
    if decoder is None:
        yield _document(bytes(whole))
        return
    for event in decoder.flush():
        if event.data is not None:
            yield _document(event.data)


def _document(data: bytes) -> Document:
    try:
        document = decode(data)
    except Malformed:
        raise Failed(502, "toolgraft: the model's answer is not JSON") from None
    document = next(objects(document), None)
    if document is None:
        raise Failed(502, "toolgraft: the model's answer is no response")
    if "candidates" not in document and isinstance(document.get("error"), dict):
        raise Failed.told(document)
    return document


def _is_sse(head: Head) -> bool:
    kinds = [value for name, value in head.headers if name.lower() == b"content-type"]
    return bool(kinds) and kinds[0].partition(b";")[0].strip().lower() == b"text/event-stream"
