"""Answers one call: waits for its turn and approval, runs it, and stores the result. `response` raises only if
cancelled."""

import asyncio
import contextlib
import copy
import logging
import math
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from addon.core.answer import CapturedCall
from addon.core.framing.documents import Document
from addon.core.history.calls import args_key
from addon.core.history.outcomes import outcome_of
from addon.graft.exchange import STORE_FAILED
from addon.graft.ledger_evidence import outcome_of_call
from addon.graft.owners import InitialState
from addon.graft.session_config import SessionConfig
from addon.loop.bindings import Binding, Handler
from addon.loop.call_results import CallResults, report_failure, report_waiting
from addon.loop.shared_runs import RunKey, SharedRuns
from addon.loop.steps import RunningStep
from addon.tools.attempts import attempt
from addon.tools.base import ToolError, error_text
from addon.tools.outputs import MAX_MEDIA, ToolOutput
from addon.tools.schema_checks import problems
from store.base import NotPending, Store, StoreError, StoreUnavailable
from store.models import Call, Status

logger = logging.getLogger("toolgraft")

_QUICK = 0.05
"""Seconds before a running call also looks for a result that was given elsewhere. Most calls are faster."""


_STORE_PAUSE = 0.2
"""Longest pause, in seconds, between two queries to a failing store."""


@dataclass(frozen=True, slots=True)
class RunContext:
    """Shared by all calls. `invoke` runs a call once with the proxy's executors. `abandon` cancels a run that is no
    longer waited for. `max_media`: limit for the images and files of one result, in bytes."""

    store: Store
    results: CallResults
    shared: SharedRuns
    invoke: Callable[[Binding, CapturedCall], Awaitable[Any]]
    abandon: Callable[[asyncio.Task[ToolOutput]], None]
    max_media: int = MAX_MEDIA


class CallExpired(ToolError):
    """A call given to workers has expired. Calls that share its run need their own."""


class CallRun:
    """`seconds`: the time limit of all tries together, without the pauses between them. `loop_id`: the loop or
    connection that waits for the call. `has_begun`: the proxy may have run the call. `has_worker`: workers may take
    this call itself, not an identical one. `ran_at`: when its run began, on the monotonic clock."""

    def __init__(
        self,
        context: RunContext,
        config: SessionConfig,
        call: CapturedCall,
        initial_state: InitialState,
        binding: Binding,
        limit: asyncio.Semaphore,
        loop_id: str,
    ) -> None:
        self.context = context
        self.store = context.store
        self.config = config
        self.session = config.session
        self.call = call
        self.initial = initial_state
        self.binding = binding
        self.rules = binding.rules
        self.limit = limit
        self.loop_id = loop_id
        self.timeout = config.tool_timeout if self.rules.timeout is None else self.rules.timeout
        self.seconds = self.timeout * (1 + (self.rules.retries or 0))
        self.has_begun = initial_state.loop_id is not None
        self.has_worker = False
        self.ran_at: float | None = None

    async def response(self, step: RunningStep) -> Document:
        """The outcome of the call. Does not store `step`, which refers to this call: the reference cycle would stay
        until the garbage collector runs."""
        call = self.call
        try:
            if self.initial.error is not None:
                report_failure(self.session, call, self.initial.error)
                return outcome_of(None, self.initial.error)
            if self.initial.repeats is not None:
                return await self._response_of(self.initial.repeats)
            await step.wait_turn(call.call_id)
            if self.initial.approval and (denial := await self._denial()) is not None:
                return denial
            if self.binding.handler is Handler.NOBODY:
                report_waiting(self.session, call, needs_approval=False)
                return await self._manual_response()
            async with self.limit:
                return await self._run()
        except StoreError as error:
            logger.warning("a call could not be run: %s", error)
            why = STORE_FAILED if isinstance(error, StoreUnavailable) else error
            message = f"the call could not be run: {why}"
            if self.initial.repeats is not None:  # it may have run
                return await self._store_result(error=message)
            return await self._give_up(message)
        except (asyncio.CancelledError, GeneratorExit):
            raise
        except BaseException as error:
            logger.exception("a call of %s failed", call.name)
            return await self._store_result(error=f"the call could not be run: {type(error).__name__}")

    async def _response_of(self, call_id: str) -> Document:
        """The response of another call, or of this one if an earlier loop began it. Waits up to `seconds` for a worker,
        the usual time for a result by hand, and without a limit for a proxy."""
        call = await self._stored(call_id)
        if call.owner == "workers":
            call = await self.context.results.final_call_of_worker(
                self.session, call_id, self.seconds, claim_timeout=self._claim_timeout
            )
        else:
            patience = self._patience if call.owner == "hand" else math.inf
            call = await self.context.results.final_call(self.session, call_id, patience) or call
        if call.status.final and call_id == self.call.call_id:
            return outcome_of_call(call)
        if not call.status.final:
            return await self._store_result(error=self._no_result(call))
        return await self._store_result(result=call.result, error=call.error, parts=call.parts)

    async def _stored(self, call_id: str) -> Call:
        """The call. Queries a failing store again for up to `seconds`. Raises StoreError."""
        clock = asyncio.get_running_loop().time
        deadline = clock() + self.seconds
        while True:
            try:
                return await self.store.call(self.session, call_id)
            except StoreUnavailable:
                if (left := deadline - clock()) <= 0:
                    raise
                await self.store.recovered(min(_STORE_PAUSE, left))

    def _no_result(self, call: Call) -> str:
        if call.owner == "hand":
            return self._unanswered
        message = f"no worker answered {call.name} within {self.seconds:g} s"
        return message if call.worker is None else f"{message}; the call may have run"

    @property
    def _claim_timeout(self) -> float:
        """Seconds within which a worker must claim the call."""
        return math.inf if self.initial.detached else self.seconds

    async def outlives_its_loop(self) -> bool:
        """Whether the call continues after its loop: it may be running and must not run twice, or belongs to
        workers."""
        if self.initial.detached:
            return True
        if self.initial.repeats == self.call.call_id:
            return True  # another loop runs it
        if self.rules.idempotent:
            return False
        if not self.has_worker:
            return self.has_begun
        return (await self.store.call(self.session, self.call.call_id)).status is Status.RUNNING

    # --- results ----------------------------------------------------------------------------------------------

    async def _run(self) -> Document:
        """Run the call. A result by hand abandons the run."""
        self.ran_at = time.monotonic()
        if self.binding.handler is not Handler.WORKERS:
            if not self.has_begun:
                try:
                    await self.store.start(self.session, self.call.call_id, loop_id=self.loop_id)
                except NotPending:  # already final
                    return await self._manual_response()
                self.has_begun = True
            # Without this, the server could lose the note that the call runs, and another proxy could run it too.
            await self.store.confirm()
        run = asyncio.ensure_future(self._result())
        run.set_name(self.call.name)
        try:
            if not run.done():
                await asyncio.wait({run}, timeout=_QUICK)
            if not run.done() and (response := await self._external_response(run)) is not None:
                self.context.abandon(run)
                return response
            if not run.done():
                await asyncio.wait({run})
        except asyncio.CancelledError:
            await _cancel_and_wait(run)
            raise
        return await self._store_outcome(run)

    async def _external_response(self, run: asyncio.Task[ToolOutput]) -> Document | None:
        """The response that came from elsewhere during the run; None if the run ended first, if a worker runs the call,
        or if the store could not be read."""
        elsewhere = asyncio.ensure_future(self.context.results.final_call(self.session, self.call.call_id))
        try:
            await asyncio.wait({run, elsewhere}, return_when=asyncio.FIRST_COMPLETED)
            if (
                run.done()
                or self.has_worker
                or elsewhere.cancelled()
                or elsewhere.exception() is not None
                or (call := elsewhere.result()) is None
            ):
                return None
            return outcome_of_call(call)
        finally:
            elsewhere.cancel()

    async def _store_outcome(self, run: asyncio.Task[ToolOutput]) -> Document:
        """Store the outcome of a finished run. Returns the response."""
        if run.cancelled():
            return await self._store_result(error=f"{self.call.name} was cancelled from within")
        error = run.exception()
        if isinstance(error, ToolError):
            return await self._store_result(error=str(error))
        if error is not None:
            message = error_text(error)
            return await self._store_result(error=message)
        data, parts = run.result()
        return await self._store_result(result=msgspec.json.decode(data), parts=parts)

    async def _result(self) -> ToolOutput:
        """The result, possibly shared with identical calls."""
        rules, call = self.rules, self.call
        run = self._worker_result if self.binding.handler is Handler.WORKERS else self._own_result
        if not rules.idempotent and not rules.cache_ttl:
            return await run()
        key = RunKey(self.session, call.name, self.binding.version, args_key(call.args))
        while True:
            try:
                return await self.context.shared.result(
                    key, self.config.version, run, share=rules.idempotent, cache_ttl=rules.cache_ttl
                )
            except CallExpired:
                if self.has_worker:
                    raise

    async def _own_result(self) -> ToolOutput:
        return await attempt(
            lambda: self.context.invoke(self.binding, self.call),
            self.call.name,
            timeout=self.timeout,
            retries=self.rules.retries or 0,
            idempotent=self.rules.idempotent,
            max_media=self.context.max_media,
        )

    async def _worker_result(self) -> ToolOutput:
        """Release this call to workers, and wait for the result."""
        self.has_worker = True
        with contextlib.suppress(NotPending):  # already final
            await self.store.release(self.session, self.call.call_id, detached=self.initial.detached)
        call = await self.context.results.final_call_of_worker(
            self.session, self.call.call_id, self.seconds, claim_timeout=self._claim_timeout
        )
        if call.status is Status.EXPIRED:
            raise CallExpired(str(call.error))
        if not call.status.final:
            raise ToolError(self._no_result(call))
        if call.status is not Status.DONE:
            raise ToolError(str(call.error))
        return ToolOutput(msgspec.json.encode(call.result), tuple(call.parts))

    async def _manual_response(self) -> Document:
        """Wait for a result through the control API."""
        call = await self.context.results.final_call(self.session, self.call.call_id, self._patience)
        if call is None:
            return await self._store_result(error=self._unanswered)
        return outcome_of_call(call)

    @property
    def _patience(self) -> float:
        """Seconds that a call waits for its result by hand."""
        if self.rules.timeout is not None:
            return self.rules.timeout
        return self.config.answer_timeout if self.config.holds else self.config.pending_timeout

    @property
    def _unanswered(self) -> str:
        return f"nobody answered {self.call.name} within {self._patience:g} s"

    # --- approval ---------------------------------------------------------------------------------------------

    async def _denial(self) -> Document | None:
        """Wait for a person's decision. None if the call is approved, else the response for the model."""
        timeout = self.config.approval_timeout
        report_waiting(self.session, self.call, needs_approval=True)
        decided = await self.context.results.decision(self.session, self.call.call_id, timeout)
        if decided is None:
            message = f"nobody approved this call within {timeout:g} s"
            decided = await self.store.settle(self.session, self.call.call_id, Status.DENIED, error=message)
            if decided.error == message:
                report_failure(self.session, self.call, message)
                self.context.results.count(decided.status)
        if decided.status.final:
            return outcome_of_call(decided)
        if decided.asked_args is not None:
            self.call = self.call._replace(args=copy.deepcopy(decided.args))  # the tool may change them
            schema = self.binding.schema
            if schema is not None and (found := problems(schema, decided.args, self.call.name)):
                return await self._store_result(error=misfit(found))
        return None

    async def _give_up(self, error: str) -> Document:
        """Expire a call that was not run because the store failed. If the answer fails too, a retry runs it."""
        report_failure(self.session, self.call, error)
        settled = await self.context.results.settle(
            self.session, self.call.call_id, Status.EXPIRED, error, has_begun=False
        )
        return outcome_of(None, error) if settled is None else outcome_of_call(settled)

    async def _store_result(
        self, *, result: Any = None, error: str | None = None, parts: Sequence[Document] = ()
    ) -> Document:
        if error is not None:
            report_failure(self.session, self.call, error)
        return await self.context.results.store_result(
            self.session, self.call.call_id, result=result, error=error, parts=parts
        )


def misfit(found: Sequence[str]) -> str:
    """The error message for the model: the arguments do not fit the schema."""
    return f"the arguments do not fit: {'; '.join(found)}"


async def _cancel_and_wait(run: asyncio.Task[ToolOutput]) -> None:
    """Cancel a run and wait until it ends. Passes each further cancellation on to the run."""
    while not run.done():
        run.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.wait({run})
    if not run.cancelled():
        run.exception()  # retrieved, because nobody else reads it
