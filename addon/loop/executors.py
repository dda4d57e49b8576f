"""Runs calls: by the proxy's tool sources, by HTTP endpoints, or by workers.

A task that `Executors.start` creates raises only if it is cancelled. A failed tool gives the result `{"error": …}`.
"""

import asyncio
import logging
import secrets
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import httpx2

from addon.core.answer import CapturedCall
from addon.core.framing.documents import Document
from addon.graft.late_writes import LateWrites
from addon.graft.owners import InitialState
from addon.graft.session_config import SessionConfig
from addon.loop.bindings import Binding, Handler, binding_of, handler_of
from addon.loop.call_results import CallResults, report_failure, report_waiting
from addon.loop.call_run import CallRun, RunContext, misfit
from addon.loop.shared_runs import SharedRuns
from addon.loop.steps import RunningStep
from addon.tools.base import Tool, ToolSource
from addon.tools.combined import Refresher
from addon.tools.http_connections import Egress
from addon.tools.http_endpoint import HttpExecutor, endpoint_client
from addon.tools.outputs import MAX_MEDIA
from addon.tools.schema_checks import problems
from store.base import Store, StoreError
from store.models import Owner, Status

logger = logging.getLogger("toolgraft")

_GRACE = 2.0  # seconds for a cancelled call to end
_CANCELLATIONS = 2  # cancellations within that time, spaced so that clean-up can finish


OWNERS: dict[Handler, Owner] = {
    Handler.SOURCE: "loop",
    Handler.ENDPOINT: "loop",
    Handler.WORKERS: "workers",
    Handler.NOBODY: "hand",
}


_RUN_HERE = (Handler.SOURCE, Handler.ENDPOINT)


class Executors:
    """Runs calls with the proxy's tool sources and with the executors of a session's toolset. Opened with `open`.

    `http`: the client for tools' endpoints, closed together with this object; None: `egress` connects to them. `count`
    is called with the status of each call that ends here. `max_media`: the most bytes of images and files in a result.
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
        max_media: int = MAX_MEDIA,
    ) -> None:
        self.store = store
        self.proxy_id = proxy_id
        self.source = source
        self.tools: Mapping[str, Tool] = {}
        self._refresher: Refresher | None = None
        self._opened = False
        self._http = http or endpoint_client(egress or Egress())
        self._tasks: set[asyncio.Task[Any]] = set()
        self._shared = SharedRuns()
        self.late_writes = LateWrites(store)
        store.on_reconnected = self.late_writes.repeat
        self._results = CallResults(store, self.late_writes, count)
        self._context = RunContext(store, self._results, self._shared, self._invoke, self._abandon, max_media)

    async def open(self, changed: Callable[[], None] = lambda: None) -> None:
        """`changed` is called whenever `tools` change, because a server came up late or lists new tools.

        Raises SourceError.
        """
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

    def forget_results(self) -> None:
        """Drop all cached results: the tools' code may have changed."""
        self._shared.forget_all()

    async def close(self) -> None:
        await _cancel_all(self._tasks | self._shared.tasks)
        await self.late_writes.close()
        await self._http.aclose()
        if self._refresher is not None:
            await self._refresher.close()
        if self.source is not None:
            await self.source.__aexit__(None, None, None)

    async def catch_up(self) -> None:
        await self.late_writes.flush()

    def origin(self, name: str) -> Document | None:
        """The source and the rules of one of the proxy's tools; None: there is no such tool."""
        tool, source = self.tools.get(name), self.source
        if tool is None or source is None:
            return None
        where = source.name_of(name)
        return {"source": Path(where).name if where.endswith(".py") else where, "rules": tool.rules.given()}

    def can_run(self, config: SessionConfig, name: str) -> bool:
        return config.holds or handler_of(config, self.tools, name) is not Handler.NOBODY

    def binding(self, config: SessionConfig, name: str) -> Binding:
        return binding_of(config, self.tools, name)

    def initial_state(self, config: SessionConfig, call: CapturedCall, *, runs: bool) -> InitialState:
        """The initial state of a call: checked, with its owner. `runs`: a loop or a Live connection runs the call and
        waits for it; otherwise only calls for workers begin. A passed-through call belongs to the client alone."""
        if call.fault is not None:
            return InitialState(error=call.fault, begins=runs)
        if config.delivery == "passthrough" and not runs:
            return InitialState()  # the client runs it
        binding = self.binding(config, call.name)
        if binding.schema is not None and (found := problems(binding.schema, call.args, call.name)):
            return InitialState(error=misfit(found), begins=runs)
        rules = binding.rules
        approval = rules.approval and config.always_approved.get(call.name) != binding.version.hex()
        if not runs and binding.handler is not Handler.WORKERS:
            return InitialState(approval=approval)
        return InitialState(
            OWNERS[binding.handler],
            approval=approval,
            redeliver=rules.idempotent or rules.redeliver,
            proxy_id=self.proxy_id,
            begins=True,
            detached=not runs,
            at_once=binding.handler in _RUN_HERE and not (approval or rules.after),
        )

    def problems(self, config: SessionConfig, name: str, args: Document) -> list[str]:
        """How these arguments violate the schema of the tool."""
        schema = self.binding(config, name).schema
        return [] if schema is None else problems(schema, args, name)

    def may_run_twice(self, config: SessionConfig, name: str) -> bool:
        """Whether a call of this name may run again although it may have run already."""
        return self.binding(config, name).rules.idempotent

    def comes_after(self, config: SessionConfig, name: str) -> Collection[str]:
        """The tools whose calls in the same step must end before a call of this name begins."""
        return self.binding(config, name).rules.after

    def start(
        self,
        config: SessionConfig,
        call: CapturedCall,
        initial_state: InitialState,
        step: RunningStep,
        limit: asyncio.Semaphore,
        loop_id: str,
    ) -> None:
        """Begin a call of a step. Its task in `step` returns the functionResponse's `response`. A call without a
        handler waits for its result by hand. A call that does not begin gets no task: calls that must run after it wait
        for its record in the store."""
        binding = self.binding(config, call.name)
        if not initial_state.begins:
            if initial_state.error is not None:
                report_failure(config.session, call, initial_state.error)
            elif config.delivery != "passthrough":
                report_waiting(config.session, call, needs_approval=initial_state.approval)
            step.add_external(call.call_id, call.name, partial(self._results.final_call, config.session, call.call_id))
            return
        run = CallRun(self._context, config, call, initial_state, binding, limit, loop_id)
        self._track(step.add(call.call_id, call.name, binding.rules.after, run))

    def background(self, config: SessionConfig) -> "BackgroundStep":
        """A step that continues without a loop."""
        return BackgroundStep(self, config)

    async def abandon(
        self, config: SessionConfig, step: RunningStep, calls: Iterable[str]
    ) -> list[asyncio.Task[Document]]:
        """Stop waiting for these calls of a step. Calls that may be running and must not run twice continue, and their
        results are stored; the others are cancelled, and expire. Final calls stay unchanged. Returns the cancelled
        tasks, for `wait_cancelled`."""
        cancelled: list[str] = []
        tasks: list[asyncio.Task[Document]] = []
        # calls of workers come last: while the store is queried about them, another call could begin
        for call_id in sorted(calls, key=lambda one: one in step.runs and step.runs[one].has_worker):
            if not await _outlives_loop(step.runs.get(call_id)):
                cancelled.append(call_id)
                if (task := step.tasks.get(call_id)) is not None:
                    task.cancel()
                    tasks.append(task)
        for call_id in cancelled:
            await self._settle(config, step, call_id, "cancelled: its answer was not waited for")
        return tasks

    async def wait_cancelled(self, tasks: Iterable[asyncio.Task[Document]]) -> None:
        """Wait until cancelled calls have ended, at most a few seconds."""
        await _cancel_all(tasks)

    async def cancel_calls(self, config: SessionConfig, step: RunningStep, calls: Sequence[str], why: str) -> None:
        """Cancel only these calls of a step."""
        await _cancel_all([step.tasks[call_id] for call_id in calls if call_id in step.tasks])
        for call_id in calls:
            await self._settle(config, step, call_id, why)

    def behavior(self, config: SessionConfig, name: str) -> tuple[str | None, str | None]:
        """`behavior` and `scheduling` of a tool, for the Live API."""
        rules = self.binding(config, name).rules
        return rules.behavior, rules.scheduling

    async def _invoke(self, binding: Binding, call: CapturedCall) -> Any:
        if binding.handler is Handler.SOURCE and self.source is not None:
            return await self.source.call(call.name, call.args, call_id=call.call_id)
        assert binding.executor is not None
        endpoint = HttpExecutor(binding.executor.model_dump(exclude_none=True), self._http)
        return await endpoint.call(call.name, call.args, call_id=call.call_id)

    def _abandon(self, task: asyncio.Task[Any]) -> None:
        task.cancel()
        self._track(task)

    def _track(self, task: asyncio.Task[Any]) -> None:
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _settle(self, config: SessionConfig, step: RunningStep, call_id: str, error: str) -> None:
        has_begun = (run := step.runs.get(call_id)) is not None and run.has_begun
        await self._results.settle(config.session, call_id, Status.EXPIRED, error, has_begun=has_begun)


class BackgroundStep:
    """The calls of a step that workers run while the client has them, with a loop's order and limit. Nobody waits for
    them."""

    def __init__(self, executors: Executors, config: SessionConfig) -> None:
        self._executors = executors
        self._config = config
        self._step = RunningStep()
        self._limit = asyncio.Semaphore(config.parallel)
        self._loop_id = secrets.token_hex(8)

    def start(self, call: CapturedCall, initial_state: InitialState) -> None:
        self._executors.start(self._config, call, initial_state, self._step, self._limit, self._loop_id)

    def complete(self) -> None:
        """The step has no more calls."""
        self._step.complete.set()


async def _outlives_loop(run: CallRun | None) -> bool:
    try:
        return run is not None and await run.outlives_its_loop()
    except StoreError:
        return True  # unknown: the call ends within its time limit


async def _cancel_all(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """Cancel the tasks, and wait at most _GRACE seconds for them to end. Cancels repeatedly, because a tool may swallow
    a cancellation. A tool that swallows all of them continues to run, and keeps the event loop open."""
    running = {task for task in tasks if not task.done()}
    for _ in range(_CANCELLATIONS):
        if not running:
            return
        for task in running:
            task.cancel()
        _, running = await asyncio.wait(running, timeout=_GRACE / _CANCELLATIONS)
    if running:
        names = ", ".join(sorted({task.get_name() for task in running}))
        logger.warning("still running %g s after it was cancelled, and not waited for: %s", _GRACE, names)
