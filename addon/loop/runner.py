"""One loop: rounds with the upstream, calls run as soon as they are complete, and one answer for the client.

`Runner.output` gives a `Head` and then the bytes of the answer's body. Closing it, as when the client hangs up,
cancels what runs; nothing goes upstream after that.
"""

import asyncio
import logging
import secrets
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import NamedTuple

import httpx2

from addon.core import replies
from addon.core.answer import Answer, Candidate, Captured
from addon.core.documents import Document, Malformed, decode, encode, get, objects
from addon.core.json_array import ArrayDecoder, ArrayItem
from addon.core.sse import SseDecoder, SseEvent
from addon.core.toolloop import WRONG_CALLS, End, Ended, Round, RunTools, Send, tool_loop
from addon.graft.exchange import Exchange
from addon.graft.grafter import Grafter
from addon.graft.records import fault_of, new_call_id, new_turn_id
from addon.loop.executors import Executors, Step
from addon.loop.journal import Journal
from addon.loop.output import Splice, is_empty
from addon.loop.upstream import Address, Headers, Upstream
from addon.loop.upstream import Answer as UpstreamAnswer
from addon.surfaces import Framing
from store.base import StoreUnavailable

logger = logging.getLogger("toolgraft")

_RETRIED = frozenset({429, 500, 502, 503, 504})
_TRIES = 3
_FIRST_PAUSE = 0.2  # seconds, doubled with each try
_HOP_BY_HOP = frozenset(
    {b"connection", b"content-encoding", b"content-length", b"keep-alive", b"transfer-encoding", b"upgrade"}
)


@dataclass(frozen=True, slots=True)
class Head:
    status: int
    headers: Headers


type Output = AsyncGenerator[Head | bytes]


class _Whole(NamedTuple):
    """An answer in JSON as it came, and the response in it as it is to be seen."""

    came: Document | None
    seen: Document


class _Stopped(Exception):
    """The answer has come to its end early; whatever is to be said was said."""


class Runner:
    """`background` are the calls that go on after the answer: those of a step that the client was given."""

    def __init__(
        self,
        grafter: Grafter,
        executors: Executors,
        upstream: Upstream,
        exchange: Exchange,
        address: Address,
        body: bytes,
    ) -> None:
        self.grafter = grafter
        self.executors = executors
        self.upstream = upstream
        self.exchange = exchange
        self.scope = exchange.scope
        self.address = address
        self.wire = exchange.wire
        self.request = self.wire.read(body)
        self.loop_id = secrets.token_hex(8)
        self.journal = Journal(grafter.store, exchange)
        self.framing = exchange.target.framing
        self.splice = Splice()
        self.limit = asyncio.Semaphore(self.scope.parallel)
        self.step = Step()
        self.background: list[asyncio.Task[Document]] = []
        self._head: Head | None = None
        self._answer: Answer | None = None
        self._captured = 0
        self._whole_answer: bytes | _Whole | None = None  # the last one, where it came as JSON
        self._passes = self.scope.delivery == "passthrough"
        self._loops = self.scope.delivery in ("auto", "loop")
        self._is_last = False
        self._had_wrong_calls = False
        self._failed_upstream = False
        self._ended = False
        self._single = candidate_count(self.request.value("generationConfig")) == 1

    # --- the rounds -------------------------------------------------------------------------------------------

    async def output(self) -> Output:
        """The answer. Raises httpx2.RequestError where the upstream cannot be reached, or breaks off, in the first
        round."""
        machine = tool_loop(self.scope.max_rounds)
        wanted = next(machine)
        try:
            while True:
                async with aclosing(self._round(wanted) if isinstance(wanted, Send) else self._tools()) as outputs:
                    async for out in outputs:
                        yield out
                reply: Round | Sequence[Document]
                reply = self._outcome() if isinstance(wanted, Send) else self._responses(wanted)
                try:
                    wanted = machine.send(reply)
                except StopIteration as stop:
                    await self._finish(stop.value)
                    break
            for out in self._last_words():
                yield out
        except _Stopped:
            return
        except StoreUnavailable as error:
            self.grafter.metrics.error("store")
            logger.warning("the store failed in the middle of a tool loop: %s", error)
            for out in self._failure(503, "UNAVAILABLE", f"the store does not answer: {error}"):
                yield out
        except httpx2.RequestError:
            raise
        except Exception as error:
            self.grafter.metrics.error("graft")
            logger.exception("a tool loop failed")
            for out in self._failure(500, "INTERNAL", f"the tool loop failed: {type(error).__name__}"):
                yield out
        finally:
            if not self._ended:
                calls = [call.call_id for state in self._candidates() for call in state.captured]
                await self.executors.cancel(self.step, calls)
            self._answer = None  # the two hold each other

    async def _round(self, send: Send) -> Output:
        self.splice.begin_round()
        self.journal.begin_round()
        self._is_last = send.mode == "NONE"
        self.step, self._captured = Step(), 0
        body = self.wire.again(self.request, send.added, send.mode)
        for attempt in range(1, _TRIES + 1):
            again = attempt < _TRIES and self.splice.rounds > 1  # the first round is the client's own to repeat
            sent = self.wire.sent
            try:
                async with self.upstream.send(self.address, body) as answer:
                    if answer.status == 200:
                        async with aclosing(self._answered(answer)) as outputs:
                            async for out in outputs:
                                yield out
                        return
                    refusal = await answer.body()
                if not again or answer.status not in _RETRIED:
                    for out in self._refused(answer, refusal):
                        yield out
                    raise _Stopped
            except httpx2.RequestError as error:
                if self.splice.rounds == 1:
                    raise
                if not again or self.wire.sent != sent or self._captured:
                    words = f"the connection to the model broke: {str(error) or type(error).__name__}"
                    for out in self._failure(503, "UNAVAILABLE", words):
                        yield out
                    raise _Stopped from None
            await asyncio.sleep(_FIRST_PAUSE * 2 ** (attempt - 1))

    # --- one answer of the upstream ---------------------------------------------------------------------------

    async def _answered(self, answer: UpstreamAnswer) -> Output:
        self._answer = Answer(
            self.exchange.naming,
            self.scope.placeholder,
            passthrough=self._passes,
            hides_server_tools=self.exchange.plan.hides_server_tools,
            new_turn_id=lambda: new_turn_id() if self._candidates() else self.journal.turn_id,
            new_call_id=new_call_id,
            goes_on=self._goes_on,
        )
        if self._head is None:
            self._head = Head(200, _kept(answer.headers))
            if self.framing is not Framing.JSON:
                yield self._head
        if self.framing is Framing.JSON:
            await self._whole(await answer.body())
            return
        async with aclosing(_items(answer, self.framing)) as items:
            async for item in items:
                if event := await self._item(item):
                    yield event
        if self._failed_upstream:
            for out in self._last_words():
                yield out
            raise _Stopped
        closing = self._answer.close()
        if self._captured:
            await self._save(ended=False)
        if closing is not None and (event := self.wire.event(self.splice.joined(closing))):
            yield event

    async def _whole(self, body: bytes) -> None:
        """An answer in JSON: nothing of it is shown before the loop is over."""
        try:
            document = decode(body)
        except Malformed as error:
            if self.splice.rounds > 1:
                raise httpx2.DecodingError(f"its answer is not JSON: {error}") from None
            document = None
        response = self.wire.inside(document)
        if response is None:
            self._whole_answer = body
            return
        assert self._answer is not None
        seen = self._fed(self._answer, response, whole=True)
        await self._start_calls()
        if seen is response and self.splice.rounds == 1:
            self._whole_answer = body
        else:
            self._whole_answer = None if seen is None else _Whole(document, seen)

    async def _item(self, item: SseEvent | ArrayItem) -> bytes:
        """An event of a stream: what the client gets for it."""
        if item.data is None:
            return b""  # blank lines, an array's end: the whole answer has its own
        try:
            document = decode(item.data)
        except Malformed:
            return self.wire.as_came(item)
        response = self.wire.inside(document)
        if response is None:
            self._failed_upstream = self._failed_upstream or any("error" in one for one in objects(document))
            return self.wire.as_came(item)
        assert self._answer is not None
        seen = self._fed(self._answer, response)
        await self._start_calls()
        if seen is None:
            return b""
        if self.splice.rounds > 1 or self._captured:
            if self._goes_on_already() and all(is_empty(one) for one in objects(seen.get("candidates"))):
                return b""
            seen = self.splice.filled(self.splice.joined(seen))
        if seen is response:
            return self.wire.as_came(item)
        return self.wire.event(seen, document)

    def _fed(self, answer: Answer, response: Document, *, whole: bool = False) -> Document | None:
        """What is to be seen of a response: what is not understood is given back as it came, but never a call, which
        the client may know nothing of. Raises GraftFailed."""
        self.splice.note(response)
        self.journal.note(response)
        try:
            return answer.feed(response, whole=whole)
        except Exception as error:
            if b'"functionCall"' in encode(response):
                raise self.grafter.failed(error) from error
            self.grafter.metrics.error("graft")
            self.grafter.warn(f"an answer in a tool loop was passed on as it came: {type(error).__name__}: {error}")
            return response

    def _goes_on(self, state: Candidate) -> bool:
        """Whether the proxy answers the step itself."""
        if self._is_last or not self._single or not self._loops:
            return False
        if _has_wrong_calls(state):
            return not self._had_wrong_calls
        return (
            bool(state.captured)
            and len(state.captured) == len(state.slots)
            and all(self._can_run(call) for call in state.captured)
        )

    def _goes_on_already(self) -> bool:
        return any(state.goes_on for state in self._candidates())

    def _can_run(self, call: Captured) -> bool:
        return self._loops and (fault_of(call) is not None or self.executors.can_run(self.scope, call.name))

    def _candidates(self) -> list[Candidate]:
        return list(self._answer.candidates.values()) if self._answer is not None else []

    async def _start_calls(self) -> None:
        """Store the calls that have come, and run those that can be run, at once: the stream may go on for long."""
        calls = [call for state in self._candidates() for call in state.captured]
        if len(calls) == self._captured:
            return
        self._captured = len(calls)
        await self._save(ended=False)
        for call in calls:
            if call.call_id not in self.step.tasks and self._can_run(call):
                self.executors.start(self.scope, call, self.step, self.limit, self.loop_id)

    def _outcome(self) -> Round:
        self.step.complete.set()
        state = next((one for one in self._candidates() if one.index == 0), None)
        if state is None:
            return Round({}, (), runs=False, finish=None)
        if state.goes_on:
            self.journal.took(state)
        wrong = _has_wrong_calls(state)
        self._had_wrong_calls = self._had_wrong_calls or wrong
        calls = tuple(call for one in self._candidates() for call in one.captured)
        return Round(self._content(state), calls, state.goes_on, str(state.finish) if wrong else None)

    def _content(self, state: Candidate) -> Document:
        """What the model said, under this request's names."""
        names = self.exchange.plan.names
        parts: list[Document] = []
        for part in state.said:
            call = part.get("functionCall")
            if isinstance(call, dict):
                part = {**part, "functionCall": {**call, "name": names.get(call.get("name", ""), call.get("name", ""))}}
            parts.append(part)
        return {"role": "model", "parts": parts}

    # --- tools ------------------------------------------------------------------------------------------------

    async def _tools(self) -> Output:
        """Wait for the step's calls; a stream that is silent for long is kept alive."""
        waiting = set(self.step.tasks.values())
        silence = self.grafter.settings.keepalive or None
        while waiting:
            _, waiting = await asyncio.wait(waiting, timeout=silence)
            if waiting and self.framing is not Framing.JSON and (event := self.wire.event(self.splice.made([]))):
                yield event

    def _responses(self, run: RunTools) -> list[Document]:
        names = self.exchange.plan.names
        parts: list[Document] = []
        for call in run.calls:
            head = {} if call.gemini_id is None else {"id": call.gemini_id}
            response = self.step.tasks[call.call_id].result()
            parts.append({"functionResponse": {**head, "name": names.get(call.name, call.name), "response": response}})
        return parts

    # --- the end ----------------------------------------------------------------------------------------------

    async def _finish(self, ended: Ended) -> None:
        await self._save(ended=True)
        self._ended = True
        if ended.end is End.DELIVERED:
            self.background += [task for task in self.step.tasks.values() if not task.done()]
        if self._answer is not None and self._answer.continuation is not None and self.splice.rounds == 1:
            self._answer.goes_on, self._answer.new_turn_id = (lambda _: False), new_turn_id
            self.grafter.keep_continuation(self.scope.session, self._answer)

    def _last_words(self) -> Iterator[Head | bytes]:
        if self.framing is not Framing.JSON:
            if end := self.wire.end():
                yield end
            return
        assert self._head is not None
        last = self._whole_answer
        yield self._head
        yield last if isinstance(last, bytes) else self._merged(last)

    def _merged(self, last: _Whole | None) -> bytes:
        """The last round's answer with what was to be seen of those before it in front of its own."""
        came, response = last or (None, self.splice.made([], "STOP"))
        if self.splice.rounds > 1:
            response = self.splice.filled(self.splice.joined(response))
            candidates = [dict(one) for one in objects(response.get("candidates"))]
            if candidates and self.journal.shown:
                content = candidates[0].get("content") or {"role": "model"}
                parts = [*self.journal.shown, *(part for part in content.get("parts", []) if any(part.values()))]
                candidates[0]["content"] = {**content, "parts": parts}
            response = {**response, "candidates": candidates}
        return self.wire.whole(response, came)

    def _refused(self, answer: UpstreamAnswer, body: bytes) -> Iterator[Head | bytes]:
        """An answer that is no 200: as it is, or in the form of a stream that has begun."""
        if self._head is None or self.framing is Framing.JSON:
            yield Head(answer.status, _kept(answer.headers))
            yield body
            return
        try:
            document = decode(body)
        except Malformed:
            document = None
        if isinstance(document, list) and document:
            document = document[0]
        if not isinstance(document, dict) or "error" not in document:
            document = replies.error(answer.status, "UNKNOWN", body.decode("utf-8", "replace")[:1000])
        yield self.wire.error_event(document)

    def _failure(self, code: int, status: str, message: str) -> Iterator[Head | bytes]:
        """An error of the proxy's own, in the form that the answer has by now."""
        document = replies.error(code, status, f"toolgraft: {message}")
        if self._head is None or self.framing is Framing.JSON:
            yield Head(code, [(b"content-type", b"application/json; charset=UTF-8")])
            yield self.wire.error(document)
        else:
            yield self.wire.error_event(document)

    # --- records ------------------------------------------------------------------------------------------------

    async def _save(self, *, ended: bool) -> None:
        """Store the turn as far as it has come. Raises StoreUnavailable, but where the settings say to go on."""
        try:
            await self.journal.save(self._candidates(), ended=ended)
        except StoreUnavailable as error:
            if self.grafter.settings.on_store_error != "pass":
                raise
            self.grafter.warn(f"the store failed, a tool loop is not remembered: {error}")


async def _items(answer: UpstreamAnswer, framing: Framing) -> AsyncGenerator[SseEvent | ArrayItem]:
    """A stream's events, as it comes framed, which need not be as it was asked for."""
    decoder: SseDecoder | ArrayDecoder
    if answer.content_type == "text/event-stream":
        decoder = SseDecoder()
    elif answer.content_type == "application/json" or framing is Framing.ARRAY:
        decoder = ArrayDecoder()
    else:
        decoder = SseDecoder()
    async for chunk in answer.chunks():
        for item in decoder.feed(chunk):
            yield item
    for item in decoder.flush():
        yield item


def candidate_count(config: bytes | None) -> int:
    document = decode(config) if config is not None else {}
    count = get(document, "candidateCount") if isinstance(document, dict) else None
    return count if isinstance(count, int) else 1


def _has_wrong_calls(state: Candidate) -> bool:
    return isinstance(state.finish, str) and state.finish in WRONG_CALLS and not state.slots


def _kept(headers: Headers) -> Headers:
    return [(name, value) for name, value in headers if name.lower() not in _HOP_BY_HOP]
