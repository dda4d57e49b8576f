"""Drives the answer machine over a loop: sends requests upstream, runs calls as soon as they are complete, and makes
one answer from all rounds.

`Runner.output` yields a `Head` and then the bytes of the answer's body. Closing it, for example when the client hangs
up, ends the requests and cancels the running calls, except those that must not run twice: these are completed. A
finished answer counts as delivered only after `settle_handover`; until then a retry of the request gets the rest of it.
"""

import asyncio
import logging
import secrets
import time
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from typing import Any

import httpx2

from addon.core.answer import CapturedCall
from addon.core.framing import replies
from addon.core.framing.documents import Document
from addon.core.summaries import CallSummary, RoundSummary, problem
from addon.core.usage import output_of, prompt_of
from addon.graft.exchange import Exchange
from addon.graft.grafter import Grafter
from addon.graft.machine import AnswerMachine, BadAnswer
from addon.graft.machine_protocol import Begin, Effect, End, Refuse, Save, Send, Show, Start, Wait
from addon.graft.machine_shell import AnswerRecords
from addon.graft.owners import InitialState
from addon.loop.executors import Executors
from addon.loop.steps import RunningStep
from addon.loop.upstream import Address, AnswerTooLong, Headers, Upstream, UpstreamAnswer, backoff, pause_after
from addon.surfaces.incoming import Framing
from store.base import StoreUnavailable

logger = logging.getLogger("toolgraft")

_TRIES = 3
_HOP_BY_HOP = frozenset(
    {b"connection", b"content-encoding", b"content-length", b"keep-alive", b"transfer-encoding", b"upgrade"}
)
_OWN_HEADERS: Headers = [(b"content-type", b"application/json; charset=UTF-8")]


@dataclass(frozen=True, slots=True)
class Head:
    status: int
    headers: Headers


type Output = AsyncGenerator[Head | bytes]


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
        self.config = exchange.config
        self.address = address
        self.body = body
        self.loop_id = secrets.token_hex(8)
        self.machine = AnswerMachine(
            exchange,
            grafter.settings,
            grafter.store.clock,
            executors,
            body,
            self.loop_id,
        )
        self._records = AnswerRecords(grafter, self.machine)
        self.limit = asyncio.Semaphore(self.config.parallel)
        self.step = RunningStep()
        self._calls: list[str] = []  # ids of the current step
        self._all_calls: list[str] = []  # ids of all steps
        self._next: Send | Wait | None = None
        self._headers: Headers = ()
        self._outcome = "hung_up"  # until the loop ends otherwise
        self._is_closed = False
        self._cancelled_calls: list[asyncio.Task[Document]] = []

    @property
    def _ended(self) -> bool:
        return self._outcome in ("answered", "delivered", "failed")

    async def output(self) -> Output:
        """The answer. Raises httpx2.RequestError if the upstream cannot be reached, or breaks off, in the first round.
        An answer that cannot be decompressed becomes an error response in any round."""
        try:
            outputs = self._perform(await self._begin())
            while True:
                async with aclosing(outputs) as pieces:
                    async for out in pieces:
                        yield out
                self._end_round()
                effect, self._next = self._next, None
                match effect:
                    case Send(body, goes_on):
                        self.exchange.summary.loop.append(RoundSummary(time.monotonic()))
                        outputs = self._round(body, goes_on=goes_on)
                    case Wait(calls):
                        outputs = self._tools(calls)
                    case None:
                        break
        except httpx2.RequestError as error:
            self._outcome = "unreachable"
            self.exchange.summary.end = f"the model cannot be reached: {error}"
            raise
        except Exception as error:
            self.grafter.metrics.error("graft")
            logger.exception("a tool loop failed")
            message = f"the tool loop failed: {type(error).__name__}"
            async for out in self._perform(self.machine.fail(500, "INTERNAL", message)):
                yield out
        finally:
            await self._close()
            await self.executors.wait_cancelled(self._cancelled_calls)

    async def _close(self, *, waits: bool = False) -> None:
        """Record how the loop ended. Waits only for the store, because the client may already be retrying; `waits`: as
        in `note_broken`. Idempotent."""
        if self._is_closed:
            return
        self._is_closed = True
        if effects := self.machine.close():
            async for _ in self._perform(effects):
                pass  # these effects only change records
        self.step.complete.set()  # workers' calls continue
        self._count()
        if not self._ended:
            own = [call_id for call_id in self._calls if call_id not in self.step.external]  # others answer the rest
            self._cancelled_calls = await self.executors.abandon(self.config, self.step, own)
            # a retry finds the calls in their final state
            await self._records.note_broken(waits=waits)

    async def _begin(self) -> Iterable[Effect]:
        """Start the loop, or continue a broken-off answer to the same request."""
        try:
            resumption = await self._records.take_over()
        except StoreUnavailable as error:
            return self._records.store_failed(error) or self.machine.start()
        return self.machine.start() if resumption is None else self.machine.resume(resumption)

    @property
    def turns(self) -> list[str]:
        """The ids of the turns that ended cleanly."""
        return self.machine.complete

    @property
    def first_turn(self) -> str:
        """The turn id of the first candidate, or "" if the turn has not ended cleanly."""
        return self.machine.first_turn

    async def settle_handover(self, whole: bool = True) -> None:
        """Note that the client has the whole answer, or never will. A broken-off answer was noted before."""
        if not self._ended:
            return
        if whole:
            await self._records.note_delivered()
        else:
            await self._records.note_broken()

    async def cut_off(self) -> None:
        """Note, after `output` was closed, that the client or the proxy ended the answer. The client may have any
        part."""
        await self._records.note_beginnings()

    def stopped(self) -> Iterator[Head | bytes]:
        """The error for the client if the proxy stops before the answer has ended, after `output` was closed."""
        if self._ended:
            return
        for effect in self.machine.fail(503, "UNAVAILABLE", replies.PROXY_ENDING):
            match effect:
                case Show(data):
                    yield data
                case Refuse(status, body):
                    yield Head(status, _refusal_headers(status))
                    yield body

    # --- the machine's effects --------------------------------------------------------------------------------

    async def _perform(self, effects: Iterable[Effect]) -> Output:
        for effect in effects:
            match effect:
                case Show(data):
                    yield data
                case Begin():
                    yield Head(200, _end_to_end(self._headers) or self._own_headers())
                case Refuse(status, body, own):
                    yield Head(status, _refusal_headers(status) if own else _end_to_end(self._headers))
                    yield body
                case Start(calls):
                    self._start(calls)
                case Send() | Wait():
                    self._next = effect
                case End(outcome):
                    self._end(outcome)
                    if not self._ended:
                        await self._close(waits=True)
                case _:
                    if (instead := await self._record(effect)) is not None:
                        async for out in self._perform(instead):
                            yield out
                        return

    def _start(self, calls: Iterable[tuple[CapturedCall, InitialState]]) -> None:
        for call, initial_state in calls:
            if self.machine.has_unsaved:  # the call may have no record
                initial_state = initial_state._replace(loop_id=None)
            self.executors.start(self.config, call, initial_state, self.step, self.limit, self.loop_id)
            self._summarise_call(call)

    def _end_round(self) -> None:
        """Record the end of the last round, if it is not recorded."""
        rounds = self.exchange.summary.loop
        if rounds and rounds[-1].ended is None:
            rounds[-1].ended = time.monotonic()

    def _summarise_call(self, call: CapturedCall) -> None:
        run = self.step.runs.get(call.call_id)
        summary = CallSummary(call.name, call.args, call_id=call.call_id, began=time.monotonic(), run=run)
        self.exchange.summary.calls.append(summary)
        if (task := self.step.tasks.get(call.call_id)) is None:
            summary.state = "client" if self.config.delivery == "passthrough" else "waiting"
            return
        clock = asyncio.get_running_loop().time
        task.add_done_callback(partial(_note_end, summary, clock, clock()))

    async def _record(self, effect: Effect) -> list[Effect] | None:
        """Perform the effect. The last save of a turn waits until the results of its calls are stored."""
        if isinstance(effect, Save):
            self._calls += [call.call_id for call in effect.calls]
            self._all_calls += [call.call_id for call in effect.calls]
            try:
                if effect.last:
                    await self.executors.late_writes.flush(self._all_calls)
            except StoreUnavailable as error:
                if (instead := self._records.store_failed(error)) is not None:
                    return instead
        return await self._records.perform(effect)

    def _own_headers(self) -> Headers:
        """Headers of a stream that begins with parts of an earlier answer, before any upstream answer."""
        framing = self.machine.framing or Framing.JSON
        return [(b"content-type", replies.content_type(framing.value).encode())]

    def _end(self, outcome: str) -> None:
        self.step.complete.set()
        self._outcome = outcome

    def _count(self) -> None:
        self.machine.summarise()
        metrics, usage = self.grafter.metrics, self.machine.usage
        metrics.count_loop(self._outcome, len(usage))
        if len(usage) > 1:
            metrics.count_tokens(sum(map(prompt_of, usage)), sum(map(output_of, usage)))

    # --- requests upstream ------------------------------------------------------------------------------------

    async def _round(self, body: bytes, *, goes_on: bool) -> Output:
        if not goes_on:
            self._begin_step()
        calls_before = len(self._calls)
        is_first = self.machine.rounds == 1  # the client itself retries it
        for attempt in range(1, _TRIES + 1):
            is_last = is_first or attempt == _TRIES
            try:
                max_bytes = self.grafter.settings.max_answer
                async with self.upstream.send(self.address, body, max_bytes, self._close) as answer:
                    self._headers = answer.headers
                    if replies.is_answer(answer.status):
                        async with aclosing(self._answered(answer)) as outputs:
                            async for out in outputs:
                                yield out
                        return
                    refusal = await answer.body()
                now = self.grafter.store.clock()
                pause = None if is_last else pause_after(answer.status, answer.headers, refusal, attempt, now=now)
                if pause is None:
                    async for out in self._perform(self.machine.on_refusal(answer.status, refusal)):
                        yield out
                    return
            except (httpx2.RequestError, BadAnswer) as error:
                if is_first and not isinstance(error, httpx2.DecodingError):
                    raise
                if is_last or not self.machine.can_retry or len(self._calls) > calls_before:
                    async for out in self._give_up(error):
                        yield out
                    return
                pause = backoff(attempt)
            async for out in self._pause(pause):
                yield out

    async def _give_up(self, error: Exception) -> Output:
        """Send the client an error, unless its answer has already ended with one."""
        if not self.machine.is_over:
            async for out in self._perform(self.machine.fail(*_upstream_failure(error))):
                yield out

    def _begin_step(self) -> None:
        self.step, self._calls = RunningStep(), []
        if not self.machine.is_last_round:
            return
        logger.warning(
            "session %s: the rounds of a request have run out, its model may call no more tools: graft_max_rounds=%d",
            self.config.session,
            self.config.max_rounds,
            extra=problem("rounds_ran_out", session=self.config.session, max_rounds=self.config.max_rounds),
        )

    async def _answered(self, answer: UpstreamAnswer) -> Output:
        machine = self.machine
        if effects := machine.begin(answer.content_type):
            async for out in self._perform(effects):
                yield out
        async for chunk in answer.chunks(lambda: machine.is_complete):
            if machine.passes(chunk):
                yield chunk
                continue
            output = machine.feed(chunk)
            if isinstance(output, bytes):
                if output:
                    yield output
                continue
            async for out in self._perform(output):
                yield out
            if machine.is_over:  # with an error: the rest of the upstream's answer is for nobody
                return
        async for out in self._perform(machine.finish(is_certain=not answer.ends_with_connection)):
            yield out
        if not (isinstance(self._next, Send) and self._next.goes_on):
            self.step.complete.set()

    # --- tools ------------------------------------------------------------------------------------------------

    async def _tools(self, calls: Iterable[CapturedCall]) -> Output:
        """Wait for the calls of the step."""
        self.step.complete.set()
        # a client may hang up while they run, and its log line is written before this loop ends
        self.machine.summarise()
        if tasks := [task for task in self.step.tasks.values() if not task.done()]:
            async for out in self._silence(tasks):
                yield out
        responses = {call.call_id: self.step.tasks[call.call_id].result() for call in calls}
        async for out in self._perform(self.machine.take_responses(responses)):
            yield out

    async def _pause(self, seconds: float) -> Output:
        waiting = asyncio.ensure_future(asyncio.sleep(seconds))
        try:
            async for out in self._silence([waiting]):
                yield out
        finally:
            waiting.cancel()

    async def _silence(self, tasks: Iterable[asyncio.Task[Any]]) -> Output:
        """Wait for all of these tasks, sending keep-alive events in a stream."""
        running = set(tasks)
        while running:
            _, running = await asyncio.wait(running, timeout=self.grafter.settings.keepalive or None)
            if running and (event := self.machine.keepalive()):
                yield event


def _note_end(summary: CallSummary, clock: Callable[[], float], began: float, task: asyncio.Task[Document]) -> None:
    summary.seconds = clock() - began
    if summary.run is not None:
        summary.ran, summary.run = summary.run.ran_at, None  # `run` holds the call's arguments and more
    summary.state = "failed" if task.cancelled() or task.exception() or "error" in task.result()["response"] else "done"


def _upstream_failure(error: Exception) -> tuple[int, str, str]:
    """The code, status and message of the error that the client gets if the upstream fails."""
    message = str(error) or type(error).__name__
    if isinstance(error, AnswerTooLong):
        return 502, "UNAVAILABLE", message
    if isinstance(error, httpx2.DecodingError):
        return 502, "UNAVAILABLE", f"the model's answer cannot be decompressed: {message}"
    return 503, "UNAVAILABLE", f"the connection to the model broke: {message}"


def _end_to_end(headers: Headers) -> Headers:
    return [(name, value) for name, value in headers if name.lower() not in _HOP_BY_HOP]


def _refusal_headers(status: int) -> Headers:
    return [*_OWN_HEADERS, (b"retry-after", replies.RETRY_AFTER.encode())] if status == 503 else _OWN_HEADERS
