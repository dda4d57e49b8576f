"""One call, from the check of its arguments to its stored answer. `response` never raises but for cancellation."""

import asyncio
import contextlib
import logging
import math
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from addon.core.answer import CapturedCall
from addon.core.calls import args_key, response_of
from addon.core.documents import Document
from addon.graft.exchange import STORE_FAILED
from addon.graft.owners import Birth
from addon.graft.scope import Scope
from addon.loop.attempts import attempt
from addon.loop.bindings import Binding, Runs
from addon.loop.keeper import AnswerKeeper
from addon.loop.outside import CallWaits
from addon.loop.shared_runs import RunKey, SharedRuns
from addon.loop.steps import RunningStep
from addon.tools.base import ToolError, error_text
from addon.tools.schema_checks import SchemaChecks
from store.base import NotPending, Store, StoreError, StoreUnavailable
from store.models import Call, Status

logger = logging.getLogger("toolgraft")


@dataclass(frozen=True, slots=True)
class RunContext:
    """What calls are run with. `invoke` has the proxy's own executors run a call once; `abandon` ends a run that nobody
    waits for any more."""

    store: Store
    keeper: AnswerKeeper
    outside: CallWaits
    shared: SharedRuns
    checks: SchemaChecks
    invoke: Callable[[Binding, CapturedCall], Awaitable[Any]]
    abandon: Callable[[asyncio.Task[bytes]], None]


class CallExpired(ToolError):
    """The call that workers were given expired: calls that share its run need one of their own."""


class CallRun:
    """`seconds`: what all tries of the call take at most, less the pauses between them. `loop_id` is what waits for
    the call."""

    def __init__(
        self,
        means: RunContext,
        scope: Scope,
        call: CapturedCall,
        birth: Birth,
        bound: Binding,
        step: RunningStep,
        limit: asyncio.Semaphore,
        loop_id: str,
    ) -> None:
        self.means = means
        self.store = means.store
        self.scope = scope
        self.session = scope.session
        self.call = call
        self.birth = birth
        self.bound = bound
        self.rules = bound.rules
        self.step = step
        self.limit = limit
        self.loop_id = loop_id
        self.timeout = scope.tool_timeout if self.rules.timeout is None else self.rules.timeout
        self.seconds = self.timeout * (1 + (self.rules.retries or 0))
        self._has_begun = False  # the proxy runs the call
        self._has_worker = False  # workers were given this call, and not an identical one

    async def response(self) -> Document:
        """The functionResponse's `response`."""
        call = self.call
        try:
            if self.birth.error is not None:
                return response_of(None, self.birth.error)
            if self.birth.repeats is not None:
                return await self._repeated(self.birth.repeats)
            if self.birth.unchecked and self.bound.schema is not None:
                if problems := await self.means.checks.problems(self.bound.schema, call.args, self.timeout):
                    return await self._keep(error=misfit(problems))
            await self.step.in_turn(call.call_id)
            if self.birth.approval and (denial := await self._unless_approved()) is not None:
                return denial
            if self.bound.runs is Runs.NOBODY:
                return await self._by_hand()
            async with self.limit:
                return await self._run()
        except StoreError as error:
            logger.warning("a call could not be run: %s", error)
            why = STORE_FAILED if isinstance(error, StoreUnavailable) else error
            return await self._keep(error=f"the call could not be run: {why}")
        except (asyncio.CancelledError, GeneratorExit):
            raise
        except BaseException as error:
            logger.exception("a call of %s failed", call.name)
            return await self._keep(error=f"the call could not be run: {type(error).__name__}")

    async def _repeated(self, call_id: str) -> Document:
        """The answer of another call, or of this one as it was begun before. A worker's is waited for as long as a call
        may take, a proxy's until it is over."""
        call = await self.store.call(self.session, call_id)
        if call.owner == "workers":
            outside = self.means.outside
            call = await outside.workers_answer(self.session, call_id, self.seconds, unclaimed=self._unclaimed)
        else:
            call = await self.means.outside.answer(self.session, call_id) or call
        if call.status.final and call_id == self.call.call_id:
            return response_of(call.result, call.error)
        if not call.status.final:
            return await self._keep(error=self._no_answer(call))
        return await self._keep(result=call.result, error=call.error)

    def _no_answer(self, call: Call) -> str:
        words = f"no worker answered {call.name} within {self.seconds:g} s"
        return words if call.worker is None else f"{words}; the call may have run"

    @property
    def _unclaimed(self) -> float:
        """The seconds in which a worker has to take the call."""
        return math.inf if self.birth.detached else self.seconds

    async def outlives_its_loop(self) -> bool:
        """Whether the call goes on if nobody waits for it here any more: it may be running, and must not run twice. One
        that workers were given for good goes on as well."""
        if self.birth.detached:
            return True
        if self.birth.repeats == self.call.call_id:
            return True  # what runs it is not here
        if self.rules.idempotent:
            return False
        if not self._has_worker:
            return self._has_begun
        return (await self.store.call(self.session, self.call.call_id)).status is Status.RUNNING

    # --- ways to an answer ------------------------------------------------------------------------------------

    async def _run(self) -> Document:
        """Run the call. An answer by hand ends that: nobody waits for what comes of it then."""
        if self.bound.runs is not Runs.WORKERS:
            try:
                await self.store.start(self.session, self.call.call_id, loop_id=self.loop_id)
            except NotPending:  # it has its answer already
                return await self._by_hand()
            self._has_begun = True
        run = asyncio.ensure_future(self._result())
        run.set_name(self.call.name)
        answer = asyncio.ensure_future(self.means.outside.answer(self.session, self.call.call_id))
        try:
            await asyncio.wait({run, answer}, return_when=asyncio.FIRST_COMPLETED)
            if not run.done() and not self._has_worker and (given := _given(answer)) is not None:
                self.means.abandon(run)
                return given
            await asyncio.wait({run})
        except asyncio.CancelledError:
            await _ended(run)
            raise
        finally:
            answer.cancel()
        return await self._kept(run)

    async def _kept(self, run: asyncio.Task[bytes]) -> Document:
        """What came of a run that is over, stored."""
        if run.cancelled():
            return await self._keep(error=f"{self.call.name} was cancelled from within")
        error = run.exception()
        if isinstance(error, ToolError):
            return await self._keep(error=str(error))
        if error is not None:
            words = error_text(error)
            logger.warning("the tool %s failed: %s", self.call.name, words)
            return await self._keep(error=words)
        return await self._keep(result=msgspec.json.decode(run.result()))

    async def _result(self) -> bytes:
        """The result, which identical calls may share."""
        rules, call = self.rules, self.call
        run = self._worked if self.bound.runs is Runs.WORKERS else self._invoked
        if not rules.idempotent and not rules.cache_ttl:
            return await run()
        key = RunKey(self.session, call.name, self.bound.version, args_key(call.args))
        while True:
            try:
                return await self.means.shared.result(
                    key, self.scope.version, run, shares=rules.idempotent, keeps=rules.cache_ttl
                )
            except CallExpired:
                if self._has_worker:
                    raise

    async def _invoked(self) -> bytes:
        return await attempt(
            lambda: self.means.invoke(self.bound, self.call),
            self.call.name,
            timeout=self.timeout,
            retries=self.rules.retries or 0,
            idempotent=self.rules.idempotent,
        )

    async def _worked(self) -> bytes:
        """What a worker answers to this very call, which it may have from now on."""
        self._has_worker = True
        with contextlib.suppress(NotPending):  # it has its answer already
            await self.store.release(self.session, self.call.call_id, detached=self.birth.detached)
        answered = await self.means.outside.workers_answer(
            self.session, self.call.call_id, self.seconds, unclaimed=self._unclaimed
        )
        if answered.status is Status.EXPIRED:
            raise CallExpired(str(answered.error))
        if not answered.status.final:
            raise ToolError(self._no_answer(answered))
        if answered.status is not Status.DONE:
            raise ToolError(str(answered.error))
        return msgspec.json.encode(answered.result)

    async def _by_hand(self) -> Document:
        """Somebody answers the call through the control API."""
        seconds = self.scope.pending_timeout if self.rules.timeout is None else self.rules.timeout
        answered = await self.means.outside.answer(self.session, self.call.call_id, seconds)
        if answered is None:
            return await self._keep(error=f"nobody answered {self.call.name} within {seconds:g} s")
        return response_of(answered.result, answered.error)

    # --- approval ---------------------------------------------------------------------------------------------

    async def _unless_approved(self) -> Document | None:
        """Wait for a human's word; None if it is yes, else what the model is told."""
        timeout = self.scope.approval_timeout
        decided = await self.means.outside.decision(self.session, self.call.call_id, timeout)
        if decided is None:
            words = f"nobody approved this call within {timeout:g} s"
            decided = await self.store.settle(self.session, self.call.call_id, Status.DENIED, error=words)
            if decided.error == words:
                self.means.keeper.count(decided.status)
        if decided.status.final:
            return response_of(decided.result, decided.error)
        return None

    async def _keep(self, *, result: Any = None, error: str | None = None) -> Document:
        return await self.means.keeper.answer(self.session, self.call.call_id, result=result, error=error)


def misfit(problems: Sequence[str]) -> str:
    """That arguments do not fit, in words for the model."""
    return f"the arguments do not fit: {'; '.join(problems)}"


async def _ended(run: asyncio.Task[bytes]) -> None:
    """Cancel a run and wait until it is over. Each further cancellation is passed on to it."""
    while not run.done():
        run.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.wait({run})
    if not run.cancelled():
        run.exception()  # it is nobody's any more


def _given(answer: asyncio.Task[Call | None]) -> Document | None:
    """The answer that came from elsewhere; None where the store could not be asked for it."""
    if answer.cancelled() or answer.exception() is not None or (call := answer.result()) is None:
        return None
    return response_of(call.result, call.error)
