"""Runs one turn of a front door: a Gemini request is handled like any client's, and its answer is decoded."""

import dataclasses
import logging
import time
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from typing import NamedTuple, Protocol

import httpx2
import xxhash

from addon.core.framing.documents import Document, Malformed, decode, encode, get, index_of, objects
from addon.core.framing.streams import SseDecoder
from addon.core.history.keys import Keys, asker_digest, asker_of_key
from addon.core.history.pairing import with_dummy_signatures
from addon.core.model_names import MODEL_FORM, MODEL_NAME
from addon.core.summaries import Summary
from addon.gateway.failures import TurnFailed
from addon.gateway.handover import Handover
from addon.graft.exchange import Abandoned, Forward, Outcome, Reply
from addon.graft.grafter import Grafter, GraftFailed
from addon.graft.machine_shell import note_answer
from addon.loop.executors import Executors
from addon.loop.runner import Head, Output, Runner
from addon.loop.upstream import Address, Upstream
from addon.monitoring.recent_requests import Bodies
from addon.settings import Settings
from addon.surfaces.incoming import Framing, Incoming, Operation, Target
from addon.web.problems import Problem


class Caller(NamedTuple):
    """The session, the upstream API key, if known the caller's host, port and User-Agent, and its `sender_of`."""

    session: str
    key: str
    address: tuple[str, int]
    user_agent: str | None = None
    sender: bytes = b""


class UpstreamFactory(Protocol):
    def upstream(self, caller: Caller, sent: bytes, *, streams: bool) -> Upstream:
        """An upstream for one turn. `sent`: the request that starts the turn, as a Gemini client would send it.
        `streams`: whether the answer is a stream."""
        ...


logger = logging.getLogger("toolgraft")

_VERSION = "v1beta"
_COUNTED = "generateContentRequest"
"""The member of a countTokens request that may have tools."""
OWN_HEADERS = [(b"accept-encoding", b"identity"), (b"user-agent", b"toolgraft")]


class Engine:
    """`grafter` is called for each turn, because options may change. `report` is called at the end of each turn."""

    def __init__(
        self,
        grafter: Callable[[], Grafter],
        executors: Executors,
        upstreams: UpstreamFactory,
        report: Callable[[Summary], None] = lambda summary: None,
        begun: Callable[[Summary, Bodies], None] = lambda summary, bodies: None,
    ) -> None:
        self._grafter = grafter
        self._executors = executors
        self._upstreams = upstreams
        self._report = report
        self._begun = begun

    @asynccontextmanager
    async def answer(
        self,
        caller: Caller,
        model: str,
        request: Document,
        handover: Handover,
        *,
        turn_ids: Sequence[str],
        stream: bool,
        max_tool_calls: int | None = None,
    ) -> AsyncGenerator[AsyncGenerator[Document]]:
        """The GenerateContentResponses of an answer: one, or those of a stream as they arrive. If the block is left
        early, for example because the client hangs up, the turn is cancelled. If it is left with an error, the answer
        counts as not delivered. Raises TurnFailed, StoreUnavailable.

        `turn_ids`: the ledger's turns of the request's first model Contents, "" for an unknown one. `max_tool_calls`:
        the most calls of the session's tools that the answer may have."""
        contents = with_dummy_signatures(request["contents"], model)
        sent = Sent(
            _target(model, stream=stream),
            self._address(model, caller.key, "streamGenerateContent?alt=sse" if stream else "generateContent"),
            encode({**request, "contents": contents}),
            _by_place(contents, turn_ids),
            max_tool_calls,
        )
        async with self._reported(caller, model, handover, stream=stream) as turn:
            async with aclosing(self._output(caller, sent, handover, turn)) as output:
                async with aclosing(_documents(output, turn)) as documents:
                    yield documents

    @asynccontextmanager
    async def relay(
        self, caller: Caller, model: str, sent: "Sent", handover: Handover, *, stream: bool
    ) -> AsyncGenerator[Output]:
        """The answer in the format of the upstream's surface: its head, then its bytes. Leaving the block early or with
        an error has the effects described at `answer`. Raises TurnFailed, StoreUnavailable."""
        async with self._reported(caller, model, handover, stream=stream) as turn:
            async with aclosing(self._output(caller, sent, handover, turn)) as output:
                yield _noting_status(output, turn)

    async def count_tokens(self, caller: Caller, model: str, request: Document, *, turn_ids: Sequence[str]) -> int:
        """The tokens that `answer` would send, with the session's tools. Raises TurnFailed, StoreUnavailable."""
        contents = with_dummy_signatures(request["contents"], model)
        address = self._address(model, caller.key, "countTokens")
        resource = _resource(model)
        target = Target("developer", Operation.COUNT, Framing.JSON, resource.rpartition("/")[2], (_COUNTED,), ())
        body = encode({_COUNTED: {"model": resource, **request, "contents": contents}})
        sent = Sent(target, address, body, _by_place(contents, turn_ids))
        outcome = await self._rewritten(sent.incoming(caller), sent.max_tool_calls)
        if not isinstance(outcome, Forward):
            raise _refused(outcome)
        status, answer = await self.fetch(caller, address, outcome.body)
        if status != 200:
            raise TurnFailed.from_body(status, answer)
        try:
            count = get(decode(answer), "totalTokens")
        except (Malformed, AttributeError):
            count = None
        if not isinstance(count, int):
            raise TurnFailed(502, "toolgraft: the model's answer has no totalTokens")
        return count

    async def fetch(self, caller: Caller, address: Address, body: bytes) -> tuple[int, bytes]:
        """The status and body of the answer to a request without tools. Raises TurnFailed."""
        upstream = self._upstreams.upstream(caller, body, streams=False)
        try:
            async with upstream.send(address, body, max_bytes=self._grafter().settings.max_answer) as answer:
                return answer.status, b"".join([chunk async for chunk in answer.chunks()])
        except httpx2.RequestError as error:
            raise _unreachable(error) from error

    def _address(self, model: str, key: str, method: str) -> Address:
        return Address(
            "POST",
            f"{self.base_url}/{_VERSION}/{_resource(model)}:{method}",
            [(b"content-type", b"application/json"), *OWN_HEADERS, (b"x-goog-api-key", key.encode())],
        )

    @property
    def proxy_id(self) -> str | None:
        """This proxy's id; None if it has no lease."""
        return self._grafter().owners.proxy_id

    @property
    def base_url(self) -> str:
        """The upstream's base URL."""
        return self.settings.upstream

    @property
    def settings(self) -> Settings:
        """The current settings: options may change."""
        return self._grafter().settings

    @asynccontextmanager
    async def _reported(
        self, caller: Caller, model: str, handover: Handover, *, stream: bool
    ) -> AsyncGenerator["_Turn"]:
        began, turn = time.monotonic(), _Turn(Summary(caller.session, model=model, is_streamed=stream))
        turn.summary.note_client(caller.user_agent)
        try:
            yield turn
        except BaseException as error:
            turn.fail(error)
            await handover.settle(whole=False)
            raise
        finally:
            turn.summary.status, turn.summary.seconds = turn.status, time.monotonic() - began
            self._report(turn.summary)

    def handover(self, caller: Caller, path: str, body: bytes) -> Handover:
        """The handover of the answer to a request, which caller, path and body identify."""
        grafter = self._grafter()
        store, settings = grafter.store, grafter.settings
        keys = Keys(store.secret, asker_digest(store.secret, asker_of_key(caller.key)))
        sent = b"".join(map(xxhash.xxh3_128_digest, (path.encode(), body, caller.sender)))
        return Handover(store, caller.session, keys.request(sent), grafter.owners, settings.retry_window)

    async def _rewritten(self, incoming: Incoming, max_tool_calls: int | None) -> Outcome:
        """The outcome of rewriting a request. Raises TurnFailed, StoreUnavailable."""
        grafter = self._grafter()
        try:
            config = await grafter.door_config(incoming.session)
        except GraftFailed as error:
            raise TurnFailed(500, f"toolgraft: {error}") from error
        if max_tool_calls is not None:
            config = dataclasses.replace(config, max_tool_calls=max_tool_calls)
        return await grafter.request(incoming, config)

    async def _output(self, caller: Caller, sent: "Sent", handover: Handover, turn: "_Turn") -> Output:
        grafter, incoming = self._grafter(), sent.incoming(caller)
        outcome = await self._rewritten(incoming, sent.max_tool_calls)
        if not isinstance(outcome, Forward):
            for out in _own_answer(outcome):
                yield out
            return
        turn.summary = outcome.summary or turn.summary
        self._begun(turn.summary, Bodies(incoming, outcome.body))
        upstream = self._upstreams.upstream(caller, sent.body, streams=turn.summary.is_streamed)
        if outcome.exchange is None:
            async with aclosing(_forward_ungrafted(grafter, upstream, sent.address, outcome)) as output:
                async for out in output:
                    yield out
            return
        runner = Runner(grafter, self._executors, upstream, outcome.exchange, sent.address, outcome.body)
        handover.runners.append(runner)
        async with aclosing(runner.output()) as output:
            async for out in output:
                yield out


class Sent(NamedTuple):
    """A request of a turn. `turn_ids`: the known ledger's turns of Contents, by the Contents' places."""

    target: Target
    address: Address
    body: bytes
    turn_ids: Mapping[int, str] = {}
    max_tool_calls: int | None = None

    def incoming(self, caller: Caller) -> Incoming:
        address = self.address
        return Incoming(
            self.target,
            caller.session,
            self.body,
            method=address.method,
            url=address.url,
            fields=address.headers,
            asker=asker_of_key(caller.key),
            sender=caller.sender,
            user_agent=caller.user_agent or "",
            turn_ids=self.turn_ids,
            at_door=True,
        )


class _Turn:
    """The state of a turn in progress. `status`: the model's, or the proxy's own."""

    def __init__(self, summary: Summary) -> None:
        self.summary = summary
        self.status = 0

    def fail(self, error: BaseException) -> None:
        if isinstance(error, TurnFailed):
            self.status = self.status if self.status >= 400 else error.code
        elif isinstance(error, Exception):
            self.summary.end = self.summary.end or "the turn failed"
        else:
            self.summary.end = "the client hung up"


def check_model(model: object) -> str:
    """A request's model, checked. Raises Problem (400)."""
    if not isinstance(model, str) or not MODEL_NAME.fullmatch(model):
        raise Problem(400, f"model: must be {MODEL_FORM}", field="model")
    return model


def _by_place(contents: Sequence[Document], turn_ids: Sequence[str]) -> dict[int, str]:
    """The known ids of the model Contents' turns, by the Contents' places."""
    places = (place for place, content in enumerate(contents) if content.get("role") == "model")
    return {place: turn_id for place, turn_id in zip(places, turn_ids, strict=False) if turn_id}


def _target(model: str, *, stream: bool) -> Target:
    operation, framing = (Operation.STREAM, Framing.SSE) if stream else (Operation.GENERATE, Framing.JSON)
    return Target("developer", operation, framing, model.rpartition("/")[2], (), ())


def _resource(model: str) -> str:
    return model if "/" in model else f"models/{model}"


def _refused(outcome: Reply | Abandoned) -> TurnFailed:
    assert isinstance(outcome, Reply), "the turn is cancelled if the client hangs up"
    return TurnFailed.from_body(outcome.status, outcome.body)


def _own_answer(outcome: Reply | Abandoned) -> Iterable[Head | bytes]:
    """An answer made by the proxy."""
    assert isinstance(outcome, Reply), "the turn is cancelled if the client hangs up"
    yield Head(outcome.status, [(b"content-type", outcome.content_type.encode())])
    yield outcome.body


async def _forward_ungrafted(grafter: Grafter, upstream: Upstream, address: Address, sent: Forward) -> Output:
    """The answer to a request without grafted tools."""
    received, whole = bytearray(), False
    async with upstream.send(address, sent.body, max_bytes=grafter.settings.max_answer) as answer:
        try:
            yield Head(answer.status, answer.headers)
            async for chunk in answer.chunks():
                if sent.noted is not None:
                    received += chunk
                yield chunk
            whole = True
        finally:
            if sent.noted is not None and answer.status == 200:
                sent.noted.summary.keep_end(received)
                await note_answer(grafter, sent.noted, answer.content_type, bytes(received), whole=whole)


def _unreachable(error: httpx2.RequestError) -> TurnFailed:
    words = str(error) or type(error).__name__
    return TurnFailed(502, f"toolgraft: the model cannot be reached, or its answer broke off: {words}")


async def _noting_status(output: Output, turn: _Turn) -> Output:
    try:
        async for out in output:
            if isinstance(out, Head):
                turn.status = out.status
            yield out
    except httpx2.RequestError as error:
        raise _unreachable(error) from error


async def _documents(output: Output, turn: _Turn) -> AsyncGenerator[Document]:
    """The response documents of an output. Raises TurnFailed."""
    status, decoder, whole = 0, None, bytearray()
    try:
        async for out in output:
            if isinstance(out, Head):
                status = turn.status = out.status
                decoder = SseDecoder() if status == 200 and _is_sse(out) else None
            elif decoder is None:
                whole += out
            else:
                for event in decoder.feed(out):
                    if event.data is not None:
                        yield _document(event.data)
    except httpx2.RequestError as error:
        raise _unreachable(error) from error
    if status != 200:
        raise TurnFailed.from_body(status, bytes(whole))
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
        raise TurnFailed(502, "toolgraft: the model's answer is not JSON") from None
    document = next(objects(document), None)
    if document is None:
        raise TurnFailed(502, "toolgraft: the model's answer is not a JSON object")
    if "candidates" not in document and isinstance(document.get("error"), dict):
        raise TurnFailed.from_document(document)
    return document


def is_final(document: Document) -> bool:
    """Whether this document ends the answer: its first candidate (index 0) has a finishReason, or the prompt was
    blocked."""
    feedback = get(document, "promptFeedback")
    if isinstance(feedback, dict) and get(feedback, "blockReason") is not None:
        return True
    candidates = objects(document.get("candidates"))
    return any(get(one, "finishReason") is not None for one in candidates if not index_of(one))


def _is_sse(head: Head) -> bool:
    kinds = [value for name, value in head.headers if name.lower() == b"content-type"]
    return bool(kinds) and kinds[0].partition(b";")[0].strip().lower() == b"text/event-stream"
