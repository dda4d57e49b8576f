"""Running calls: what can run them, and those that are being run.

What `Executors.start` starts never raises but for cancellation: a tool that fails is an answer, `{"error": …}`, like
any other.
"""

import asyncio
import logging
import secrets
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import httpx2

from addon.core.answer import CapturedCall
from addon.core.documents import Document
from addon.graft.owners import Birth
from addon.graft.scope import Scope
from addon.loop.bindings import Binding, Runs, binding, runs_of
from addon.loop.call_run import CallRun, RunContext, misfit
from addon.loop.clients import no_cookies
from addon.loop.keeper import AnswerKeeper
from addon.loop.outside import CallWaits
from addon.loop.shared_runs import SharedRuns
from addon.loop.steps import Run, RunningStep
from addon.tools.base import Tool, ToolSource
from addon.tools.egress import Egress, EgressTransport
from addon.tools.endpoint import HttpExecutor
from addon.tools.refresher import Refresher
from addon.tools.schema_checks import SchemaChecks
from store.base import Store, StoreError
from store.models import Owner, Status

logger = logging.getLogger("toolgraft")

_GRACE = 2.0  # seconds that a cancelled call has to come to its end
_TIMES = 2  # that it is cancelled in these: what cleans up is not disturbed too soon


_OWNERS: dict[Runs, Owner] = {
    Runs.SOURCE: "loop",
    Runs.ENDPOINT: "loop",
    Runs.WORKERS: "workers",
    Runs.NOBODY: "hand",
}


class Executors:
    """What can run calls: the proxy's own sources, and what a session's toolset names. Opened with `open`.

    `http` reaches the tools' endpoints, and is closed with the rest; without one, `egress` connects to them. `count` is
    told the status of each call that ends here.
    """

    def __init__(
        self,
        store: Store,
        source: ToolSource | None = None,
        http: httpx2.AsyncClient | None = None,
        *,
        proxy_id: str | None = None,
        egress: Egress | None = None,
        count: Callable[[str], None] = lambda status: None,
        checks: SchemaChecks | None = None,
    ) -> None:
        self.store = store
        self.proxy_id = proxy_id
        self.source = source
        self.tools: Mapping[str, Tool] = {}
        self._refresher: Refresher | None = None
        self._opened = False
        self._http = http or httpx2.AsyncClient(
            transport=EgressTransport(egress or Egress(), trust_env=False),
            cookies=no_cookies(),
            follow_redirects=False,
            trust_env=False,
        )
        self._tasks: set[asyncio.Task[Any]] = set()
        self._shared = SharedRuns()
        self._keeper = AnswerKeeper(store, count)
        self._checks = checks or SchemaChecks()
        self._means = RunContext(
            store, self._keeper, CallWaits(store), self._shared, self._checks, self._invoke, self._abandon
        )

    async def open(self, changed: Callable[[], None] = lambda: None) -> None:
        """`changed` is called when `tools` have become others: a server came up late, or lists new ones. Raises
        SourceError."""
        if self.source is None:
            return
        source = self.source

        async def list_tools() -> None:
            self.tools = {tool.name: tool for tool in await source.list_tools()}
            if self._opened:
                changed()

        self._refresher = Refresher(list_tools, "the tools of the proxy")
        source.changed = self._refresher.request
        await source.__aenter__()
        async with self._refresher.lock:
            await list_tools()
            self._opened = True

    async def close(self) -> None:
        await _cancelled(self._tasks | self._shared.tasks)
        await self._keeper.close()
        await self._http.aclose()
        await self._checks.close()
        if self._refresher is not None:
            await self._refresher.close()
        if self.source is not None:
            await self.source.__aexit__(None, None, None)

    def can_run(self, scope: Scope, name: str) -> bool:
        """Whether a call of this name is run by the proxy, or by a worker of its, and need not be answered by hand."""
        return runs_of(scope, self.tools, name) is not Runs.NOBODY

    def binding(self, scope: Scope, name: str) -> Binding:
        return binding(scope, self.tools, name)

    def birth(self, scope: Scope, call: CapturedCall, *, runs: bool) -> Birth:
        """What a call is when it is stored: checked, and owned by what will run it. `runs`: a loop, or a Live
        connection, has it run and waits for it; otherwise it is begun only if it is for workers. A call that the
        client is given to run is its alone."""
        if call.fault is not None:
            return Birth(error=call.fault, begins=runs)
        if scope.delivery == "passthrough" and not runs:
            return Birth()  # the client runs it
        bound = self.binding(scope, call.name)
        problems = [] if bound.schema is None else self._checks.quick_problems(bound.schema, call.args)
        if problems:
            return Birth(error=misfit(problems), begins=runs)
        rules = bound.rules
        if not runs and bound.runs is not Runs.WORKERS:
            return Birth(approval=rules.approval, unchecked=problems is None)
        return Birth(
            _OWNERS[bound.runs],
            approval=rules.approval,
            redeliver=rules.idempotent or rules.redeliver,
            proxy_id=self.proxy_id,
            begins=True,
            detached=not runs,
            unchecked=problems is None,
        )

    def may_run_twice(self, scope: Scope, name: str) -> bool:
        """Whether a call of this name can be run again though it may have run."""
        return self.binding(scope, name).rules.idempotent

    def comes_after(self, scope: Scope, name: str) -> Collection[str]:
        """The tools whose calls of the same step come before one of this name."""
        return self.binding(scope, name).rules.after

    def start(
        self, scope: Scope, call: CapturedCall, birth: Birth, step: RunningStep, limit: asyncio.Semaphore, loop_id: str
    ) -> None:
        """Begin a call of a step. Its answer is the result of its task in `step`: the functionResponse's `response`.
        A call that nobody runs waits for its answer by hand. One that does not begin is answered without the step's
        knowledge: who comes after it asks the store."""
        bound = self.binding(scope, call.name)
        if not birth.begins:
            step.note(call.call_id, call.name, partial(self._means.outside.answer, scope.session, call.call_id))
            if birth.unchecked:
                self._keep(asyncio.ensure_future(self._check(scope, call, bound)))
            return
        run = CallRun(self._means, scope, call, birth, bound, step, limit, loop_id)
        self._keep(step.add(call.call_id, call.name, bound.rules.after, run))

    def background(self, scope: Scope) -> "BackgroundStep":
        """A step that goes on without a loop."""
        return BackgroundStep(self, scope)

    async def leave(self, scope: Scope, step: RunningStep, calls: Iterable[str]) -> list[asyncio.Task[Document]]:
        """Nobody waits here for these calls of a step any more. Those that may be running and must not run twice come
        to their end, and their results are stored; the others are cancelled, and expire. Final ones stay. Returns those
        that were cancelled: see `ended`."""
        ended = [call_id for call_id in calls if not await _goes_on(step.runs.get(call_id))]
        tasks = [step.tasks[call_id] for call_id in ended if call_id in step.tasks]
        for task in tasks:
            task.cancel()
        for call_id in ended:
            await self._settle(scope, call_id, "cancelled: its answer was not waited for")
        return tasks

    async def ended(self, tasks: Iterable[asyncio.Task[Document]]) -> None:
        """Wait until calls that were cancelled are over, though not for long."""
        await _cancelled(tasks)

    async def cancel_calls(self, scope: Scope, step: RunningStep, calls: Sequence[str], why: str) -> None:
        """End these calls of a step, and no others of it."""
        await _cancelled([step.tasks[call_id] for call_id in calls if call_id in step.tasks])
        for call_id in calls:
            await self._settle(scope, call_id, why)

    async def flush(self, calls: Iterable[str]) -> None:
        """Store the answers of these calls that the store did not take before. Raises StoreUnavailable."""
        await self._keeper.flush(calls)

    def behavior(self, scope: Scope, name: str) -> tuple[str | None, str | None]:
        """`behavior` and `scheduling` of a tool, for the Live API."""
        rules = self.binding(scope, name).rules
        return rules.behavior, rules.scheduling

    async def _invoke(self, bound: Binding, call: CapturedCall) -> Any:
        if bound.runs is Runs.SOURCE and self.source is not None:
            return await self.source.call(call.name, call.args, call_id=call.call_id)
        assert bound.executor is not None
        endpoint = HttpExecutor(bound.executor.model_dump(exclude_none=True), self._http)
        return await endpoint.call(call.name, call.args, call_id=call.call_id)

    async def _check(self, scope: Scope, call: CapturedCall, bound: Binding) -> None:
        """The check of a call that nobody begins, where it takes long."""
        assert bound.schema is not None
        if problems := await self._checks.problems(bound.schema, call.args):
            await self._keeper.answer(scope.session, call.call_id, error=misfit(problems))

    def _abandon(self, task: asyncio.Task[Any]) -> None:
        task.cancel()
        self._keep(task)

    def _keep(self, task: asyncio.Task[Any]) -> None:
        """Have `close` wait for a task."""
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _settle(self, scope: Scope, call_id: str, error: str) -> None:
        await self._keeper.settle(scope.session, call_id, Status.EXPIRED, error)


class BackgroundStep:
    """The calls of a step that the client was given, and that workers run: in turn, and no more at once than a loop's
    calls. Nobody waits for them."""

    def __init__(self, executors: Executors, scope: Scope) -> None:
        self._executors = executors
        self._scope = scope
        self._step = RunningStep()
        self._limit = asyncio.Semaphore(scope.parallel)
        self._loop_id = secrets.token_hex(8)

    def start(self, call: CapturedCall, birth: Birth) -> None:
        self._executors.start(self._scope, call, birth, self._step, self._limit, self._loop_id)

    def complete(self) -> None:
        """No more calls can come."""
        self._step.complete.set()


async def _goes_on(run: Run | None) -> bool:
    try:
        return run is not None and await run.outlives_its_loop()
    except StoreError:
        return True  # who knows: it ends within its time


async def _cancelled(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """Cancel them and wait until they are over: told again, since a tool may swallow it once, but not for
    longer than _GRACE. One that swallows it for ever runs on, and then keeps the event loop from being closed."""
    running = {task for task in tasks if not task.done()}
    for _ in range(_TIMES):
        if not running:
            return
        for task in running:
            task.cancel()
        _, running = await asyncio.wait(running, timeout=_GRACE / _TIMES)
    if running:
        names = ", ".join(sorted({task.get_name() for task in running}))
        logger.warning("still running %g s after it was cancelled, and not waited for: %s", _GRACE, names)
