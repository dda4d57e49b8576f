"""One loop: rounds with the upstream, calls run as soon as they are complete, and one answer for the client.

`Runner.output` gives a `Head` and then the bytes of the answer's body. Closing it, as when the client hangs up,
cancels what runs; nothing goes upstream after that.
"""

import asyncio
import secrets
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any

import httpx2

from addon.core import replies
from addon.core.answer import Answer, Candidate
from addon.core.documents import Document, Malformed, decode, encode
from addon.core.json_array import ArrayDecoder
from addon.core.request import assemble, parse
from addon.core.sse import SseDecoder
from addon.core.toolloop import WRONG_CALLS, End, Ended, Round, RunTools, Send, tool_loop
from addon.graft.exchange import Exchange
from addon.graft.grafter import Grafter
from addon.graft.records import call_of, keys_of, new_call_id, new_turn_id, step_of, turn_of
from addon.loop.executors import Executors, Step
from addon.loop.output import Splice
from addon.loop.upstream import Address, Headers, Upstream
from addon.loop.upstream import Answer as UpstreamAnswer
from addon.surfaces import Framing
from store.models import Step as StepRecord

_RETRIED = frozenset({429, 500, 502, 503, 504})
_TRIES = 3
_HOP_BY_HOP = frozenset(
    {b"connection", b"content-encoding", b"content-length", b"keep-alive", b"transfer-encoding", b"upgrade"}
)


@dataclass(frozen=True, slots=True)
class Head:
    status: int
    headers: Headers


class _Stopped(Exception):
    """The answer has come to its end early; whatever is to be said was said."""


class Runner:
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
        self.request = parse(body, exchange.target.request_path)
        self.loop_id = secrets.token_hex(8)
        self.turn_id = new_turn_id()
        self.framing = exchange.target.framing
        self.splice = Splice(self.framing, exchange.target.response_path)
        self.limit = asyncio.Semaphore(self.scope.parallel)
        self.steps: list[StepRecord] = []
        self.shown: list[Document] = []
        self.calls = 0
        self.step = Step()
        self.background: set[asyncio.Task[Document]] = set()
        self._head: Head | None = None
        self._answer: Answer | None = None
        self._content: Document = {}
        self._last: Document | None = None
        self._wrong_before = False
        self._is_last = False
        self._single = candidate_count(self.request.value("generationConfig")) == 1

    # --- the rounds -------------------------------------------------------------------------------------------

    async def output(self) -> AsyncGenerator[Head | bytes]:
        """The answer. Raises httpx2.TransportError where the upstream broke off before anything else was said."""
        machine = tool_loop(self.scope.max_rounds)
        wanted = next(machine)
        try:
            while True:
                reply: Round | Sequence[Document]
                if isinstance(wanted, Send):
                    async for out in self._round(wanted):
                        yield out
                    reply = self._outcome()
                else:
                    assert isinstance(wanted, RunTools)
                    async for out in self._tools():
                        yield out
                    reply = self._responses()
                try:
                    wanted = machine.send(reply)
                except StopIteration as stop:
                    async for out in self._finish(stop.value):
                        yield out
                    return
        except _Stopped:
            return
        finally:
            for task in self.step.tasks.values():
                if task not in self.background:
                    task.cancel()

    async def _round(self, send: Send) -> AsyncIterator[Head | bytes]:
        self.splice.begin_round()
        self._is_last = send.mode == "NONE"
        self.step = Step()
        body = self._body(send)
        for attempt in range(1, _TRIES + 1):
            said = self.splice.sent
            try:
                async with self.upstream.send(self.address, body) as answer:
                    if answer.status != 200:
                        if self.splice.rounds > 1 and attempt < _TRIES and answer.status in _RETRIED:
                            await answer.body()
                            await _pause(attempt)
                            continue
                        async for out in self._refused(answer):
                            yield out
                        raise _Stopped
                    async for out in self._answered(answer):
                        yield out
                    return
            except httpx2.TransportError as error:
                if self.splice.rounds == 1:
                    raise
                if attempt == _TRIES or self.splice.sent != said or self.step.tasks:
                    async for out in self._failed(503, "UNAVAILABLE", f"the connection to the model broke: {error}"):
                        yield out
                    raise _Stopped from None
                await _pause(attempt)

    def _body(self, send: Send) -> bytes:
        """The client's request (already rewritten) with the loop's Contents behind its own."""
        if not send.added and send.mode is None:
            return self.request.body
        pieces: list[tuple[int, int] | bytes] = [span for turn in self.request.history.turns for span in turn.spans]
        pieces += [encode(content) for content in send.added]
        replaced: dict[str, bytes | None] = {}
        if send.mode is not None and self.request.value("tools") is not None:
            config = decode(self.request.value("toolConfig") or b"{}")
            calling = dict(config.get("functionCallingConfig") or {})
            if send.mode == "NONE" or str(calling.get("mode", "")).upper() == "ANY":
                calling.pop("allowedFunctionNames", None)
                calling["mode"] = send.mode
                replaced["toolConfig"] = encode({**config, "functionCallingConfig": calling})
        return assemble(self.request, replaced, pieces if send.added else None)

    # --- one answer of the upstream ---------------------------------------------------------------------------

    async def _answered(self, answer: UpstreamAnswer) -> AsyncIterator[Head | bytes]:
        self._answer = Answer(
            self.exchange.naming,
            self.scope.placeholder,
            passthrough=False,
            hides_server_tools=self.exchange.plan.hides_server_tools,
            new_turn_id=lambda: self.turn_id,
            new_call_id=new_call_id,
            goes_on=self._goes_on,
        )
        if self.framing is Framing.JSON:
            await self._whole(answer)
            return
        if self._head is None:
            self._head = Head(200, _kept(answer.headers))
            yield self._head
        decoder = SseDecoder() if answer.content_type == "text/event-stream" else ArrayDecoder()
        async for chunk in answer.chunks():
            for item in decoder.feed(chunk):
                out = await self._item(item.raw, item.data)
                if out:
                    yield out
        for item in decoder.flush():
            out = await self._item(item.raw, item.data)
            if out:
                yield out
        closing = self._answer.close()
        await self._save(ended=False)
        if closing is not None:
            yield self.splice.framed(self.splice.wrapped(self.splice.joined(closing)))

    async def _whole(self, answer: UpstreamAnswer) -> None:
        if self._head is None:
            self._head = Head(200, _kept(answer.headers))
        document = decode(await answer.body())
        response = self._inside(document)
        assert self._answer is not None
        if response is None:
            self._last = document
            return
        self.splice.note(response)
        seen = self._answer.feed(response, whole=True)
        await self._save(ended=False)
        self._start_calls()
        self._last = document if seen is response else None if seen is None else self._outside(document, seen)

    async def _item(self, raw: bytes, data: bytes | None) -> bytes:
        if data is None:
            return b""  # blank lines, an array's end: the whole answer has its own
        try:
            document = decode(data)
        except Malformed:
            return self.splice.framed_bytes(data)
        response = self._inside(document)
        if response is None:
            return self.splice.framed_bytes(data)
        assert self._answer is not None
        self.splice.note(response)
        seen = self._answer.feed(response)
        if self.calls_so_far() != self.calls:
            await self._save(ended=False)
            self._start_calls()
        if seen is None:
            return b""
        if seen is response and self.splice.rounds == 1:
            return self._as_came(raw, data)
        return self.splice.framed(self._outside(document, self.splice.joined(seen)))

    def _as_came(self, raw: bytes, data: bytes) -> bytes:
        if self.framing is Framing.SSE and raw.endswith((b"\n\n", b"\r\n\r\n")):
            self.splice.sent += 1
            return raw
        return self.splice.framed_bytes(data)

    def _goes_on(self, state: Candidate) -> bool:
        """Whether the proxy answers the step itself."""
        if self._is_last or not self._single:
            return False
        if state.finish in WRONG_CALLS and not state.captured:
            return not self._wrong_before
        return self._runs(state)

    def _runs(self, state: Candidate) -> bool:
        return (
            bool(state.captured)
            and len(state.captured) == len(state.slots)
            and all(not call.known or self.executors.can_run(self.scope, call.name) for call in state.captured)
        )

    def _candidate(self) -> Candidate | None:
        return self._answer.candidates.get(0) if self._answer is not None else None

    def calls_so_far(self) -> int:
        state = self._candidate()
        return len(state.captured) if state is not None else 0

    def _start_calls(self) -> None:
        """Run what can be run, at once: the stream may go on for long."""
        state = self._candidate()
        for call in state.captured if state is not None else ():
            if call.call_id in self.step.tasks:
                continue
            if not call.known or self.executors.can_run(self.scope, call.name):
                self.executors.start(self.scope, call, self.step, self.limit, self.loop_id)
        self.calls = self.calls_so_far()

    def _outcome(self) -> Round:
        state = self._candidate()
        self.calls = 0
        self.step.complete.set()
        if state is None:
            return Round({}, (), runs=False, finish=None)
        finish = str(state.finish) if state.finish is not None else None
        if finish in WRONG_CALLS:
            self._wrong_before = True
        if state.goes_on and state.captured:
            self.steps.append(step_of(state))
            self.shown += state.shown
            self._content = self._under_used_names(state)
        return Round(self._content, tuple(state.captured), runs=state.goes_on, finish=finish)

    def _under_used_names(self, state: Candidate) -> Document:
        names = self.exchange.plan.names
        parts: list[Document] = []
        for part in state.said:
            call = part.get("functionCall")
            if isinstance(call, dict):
                part = {**part, "functionCall": {**call, "name": names.get(call.get("name", ""), call.get("name", ""))}}
            parts.append(part)
        return {"role": "model", "parts": parts}

    # --- tools ------------------------------------------------------------------------------------------------

    async def _tools(self) -> AsyncIterator[bytes]:
        """Wait for the step's calls; a stream that is silent for long is kept alive."""
        waiting = set(self.step.tasks.values())
        silence = self.grafter.settings.keepalive or None
        while waiting:
            _, waiting = await asyncio.wait(waiting, timeout=silence, return_when=asyncio.ALL_COMPLETED)
            if waiting and self.framing is not Framing.JSON:
                yield self.splice.framed(self.splice.wrapped(self.splice.made([])))

    def _responses(self) -> list[Document]:
        state = self._candidate()
        assert state is not None
        names = self.exchange.plan.names
        parts: list[Document] = []
        for call in state.captured:
            response: Document = {
                "name": names.get(call.name, call.name),
                "response": self.step.tasks[call.call_id].result(),
            }
            if call.gemini_id is not None:
                response = {"id": call.gemini_id, **response}
            parts.append({"functionResponse": response})
        return parts

    # --- the end ----------------------------------------------------------------------------------------------

    async def _finish(self, ended: Ended) -> AsyncIterator[Head | bytes]:
        if ended.end is End.DELIVERED:
            self.background.update(self.step.tasks.values())  # their results are waited for by the next request
        await self._save(ended=True)
        if self.framing is not Framing.JSON:
            if end := self.splice.end():
                yield end
            return
        assert self._head is not None
        yield self._head
        yield encode(self._merged())

    def _merged(self) -> Document:
        """The last round's document with the text of those before it in front of its own."""
        last = self._last if self._last is not None else self.splice.wrapped(self.splice.made([], "STOP"))
        if self.splice.rounds == 1:
            return last
        response = self._inside(last)
        if response is None:
            return last
        response = self.splice.joined(response)
        before = [part for part in self.shown if "text" in part]
        candidates = [dict(one) for one in response.get("candidates", [])]
        if candidates and before:
            content = dict(candidates[0].get("content") or {"role": "model"})
            candidates[0]["content"] = {**content, "parts": [*before, *content.get("parts", [])]}
        return self._outside(last, {**response, "candidates": candidates})

    async def _refused(self, answer: UpstreamAnswer) -> AsyncIterator[Head | bytes]:
        """An answer that is no 200: as it is, or in the form of a stream that has begun."""
        body = await answer.body()
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
        yield self.splice.framed(document) + self.splice.end()

    async def _failed(self, code: int, status: str, message: str) -> AsyncIterator[Head | bytes]:
        document = replies.error(code, status, f"toolgraft: {message}")
        if self._head is None or self.framing is Framing.JSON:
            yield Head(code, [(b"content-type", b"application/json; charset=UTF-8")])
            yield encode(document)
        else:
            yield self.splice.framed(document) + self.splice.end()

    # --- documents and records --------------------------------------------------------------------------------

    def _inside(self, document: Any) -> Document | None:
        for key in self.splice.path:
            document = document.get(key) if isinstance(document, dict) else None
        return (
            document if isinstance(document, dict) and ("candidates" in document or "error" not in document) else None
        )

    def _outside(self, document: Document, response: Document) -> Document:
        if not self.splice.path:
            return response
        return {**document, self.splice.path[0]: response}

    async def _save(self, *, ended: bool) -> None:
        """Store the turn as far as it has come. Raises StoreUnavailable."""
        state = self._candidate()
        if state is None or not (self.steps or state.is_grafted):
            return
        store, exchange = self.grafter.store, self.exchange
        now = store.clock()
        taken = (
            state.goes_on and self.steps and self.steps[-1].slots[:1] == step_of(state).slots[:1] and bool(state.slots)
        )
        shown = self.shown if taken else [*self.shown, *state.shown]
        steps = self.steps if taken else [*self.steps, step_of(state)]
        await store.save_turn(
            turn_of(exchange, self.turn_id, shown, steps, delivered=ended, now=now),
            [call_of(exchange, self.turn_id, call, now=now, number=len(self.steps)) for call in state.captured],
            keys_of(exchange, shown) if ended else [],
        )


def candidate_count(config: bytes | None) -> int:
    if config is None:
        return 1
    document = decode(config)
    count = document.get("candidateCount", document.get("candidate_count")) if isinstance(document, dict) else None
    return count if isinstance(count, int) else 1


def _kept(headers: Headers) -> Headers:
    return [(name, value) for name, value in headers if name.lower() not in _HOP_BY_HOP]


async def _pause(attempt: int) -> None:
    await asyncio.sleep(0.2 * 2 ** (attempt - 1))
