"""Running calls: found, checked, timed, tried again, shared, cached; and whatever comes of it told to the model.

`Executors.run` never raises but for cancellation: a tool that fails is an answer, `{"error": …}`, like any other.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx2
import msgspec
import tenacity
from cachetools import TLRUCache

from addon.core.answer import Captured
from addon.core.calls import response_of
from addon.core.documents import Document, encode
from addon.core.schema import to_json_schema
from addon.core.turns import canonical
from addon.graft.records import fault_of
from addon.graft.scope import Scope
from addon.loop.clients import no_cookies
from addon.tools.arguments import check
from addon.tools.base import MAX_MESSAGE, Rules, Tool, ToolError, ToolSource, words_of
from addon.tools.endpoint import HttpExecutor
from store.base import AlreadyAnswered, Decided, NotPending, Store, StoreError, StoreUnavailable, UnknownCall
from store.models import Call, Status, ToolRules

logger = logging.getLogger("toolgraft")

MAX_RESULT = 1024 * 1024
"""Bytes of JSON. A model cannot use more, and each later request of the chat would carry it again."""

MAX_CACHE = 64 * 1024 * 1024  # bytes of results that are kept for `cache_ttl`
_SAYS_NOTHING = ToolRules()
_WORKERS = 4  # that may take a call, one after the other
_TAKEOVER = 1.0  # seconds in which another worker takes a call whose lease is out
_GRACE = 2.0  # seconds that a cancelled call has to come to its end
_TIMES = 2  # that it is cancelled in these: what cleans up is not disturbed too soon

type _Key = tuple[str, str, bytes]  # session, tool, arguments


@dataclass(slots=True)
class Step:
    """The calls of one step under way: tasks by call id, in call order, and what later ones wait for."""

    tasks: dict[str, asyncio.Task[Document]] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)
    complete: asyncio.Event = field(default_factory=asyncio.Event)


@dataclass(slots=True)
class _Flight:
    """One run that identical calls share, and how many wait for it."""

    task: asyncio.Task[bytes]
    waiting: int = 0


class Executors:
    """What can run calls: the proxy's own sources, and what a session's toolset names. Opened with `open`.

    `http` reaches the tools' endpoints; it is closed with the rest.
    """

    def __init__(self, store: Store, source: ToolSource | None = None, http: httpx2.AsyncClient | None = None) -> None:
        self.store = store
        self.source = source
        self.tools: Mapping[str, Tool] = {}
        self._listing: set[asyncio.Task[None]] = set()
        self._http = http or httpx2.AsyncClient(cookies=no_cookies(), follow_redirects=False, trust_env=False)
        self._tasks: set[asyncio.Task[Document]] = set()
        self._running: dict[str, float] = {}
        self._flying: dict[_Key, _Flight] = {}
        self._cache: TLRUCache[_Key, tuple[bytes, float]] = TLRUCache(
            maxsize=MAX_CACHE,
            ttu=lambda _key, value, now: now + value[1],
            timer=time.monotonic,
            getsizeof=lambda value: len(value[0]) + 512,
        )

    async def open(self, changed: Callable[[], None] = lambda: None) -> None:
        """`changed` is called when `tools` have become others: a server came up late, or lists new ones. Raises
        SourceError."""
        if self.source is None:
            return
        source = self.source

        async def list_tools() -> None:
            self.tools = {tool.name: tool for tool in await source.list_tools()}

        async def list_again() -> None:
            await list_tools()
            changed()

        def again() -> None:
            task = asyncio.ensure_future(list_again())
            self._listing.add(task)
            task.add_done_callback(self._listing.discard)

        source.changed = again
        await source.__aenter__()
        await list_tools()

    async def close(self) -> None:
        await _cancelled(self._tasks)
        await self._http.aclose()
        if self.source is not None:
            await self.source.__aexit__(None, None, None)

    def can_run(self, scope: Scope, name: str) -> bool:
        """Whether a call of this name is run by the proxy, or by a worker of its, and need not be answered by hand."""
        own = _own_rules(scope, name)
        return name in self.tools if own is None else own.executor is not None

    def seconds_left(self, call_id: str) -> float | None:
        """How long a call that is being run may still take, at most; None for one that is not, or not before somebody
        approves it."""
        return self._running.get(call_id)

    def start(self, scope: Scope, call: Captured, step: Step, limit: asyncio.Semaphore, loop_id: str) -> None:
        """Begin a call of a step. Its answer is the result of its task in `step`: the functionResponse's `response`.
        A call that nobody runs waits for its answer by hand."""
        step.names[call.call_id] = call.name
        task = asyncio.ensure_future(self._answered(scope, call, step, limit, loop_id))
        task.set_name(call.name)
        step.tasks[call.call_id] = task
        self._tasks.add(task)
        self._running[call.call_id] = self._seconds(scope, call.name)

        def done(task: asyncio.Task[Document]) -> None:
            self._tasks.discard(task)
            self._running.pop(call.call_id, None)

        task.add_done_callback(done)

    async def cancel(self, step: Step, calls: Iterable[str]) -> None:
        """End what runs of a step, and these calls with it: nobody waits for them any more. Final ones stay."""
        await _cancelled(step.tasks.values())
        for call_id in calls:
            await self._settle(call_id, Status.EXPIRED, "cancelled: its answer was not waited for")

    async def cancel_calls(self, step: Step, calls: Sequence[str], why: str) -> None:
        """End these calls of a step, and no others of it."""
        await _cancelled([step.tasks[call_id] for call_id in calls if call_id in step.tasks])
        for call_id in calls:
            await self._settle(call_id, Status.EXPIRED, why)

    def behavior(self, scope: Scope, name: str) -> tuple[str | None, str | None]:
        """`behavior` and `scheduling` of a tool, for the Live API."""
        rules = self._rules(scope, name)
        return rules.behavior, rules.scheduling

    async def _answered(
        self, scope: Scope, call: Captured, step: Step, limit: asyncio.Semaphore, loop_id: str
    ) -> Document:
        try:
            if (fault := fault_of(call)) is not None:
                return response_of(None, fault)
            if wrong := self._misfits(scope, call):
                return await self._keep(call, error=f"the arguments do not fit: {'; '.join(wrong)}")
            needs_approval = self._rules(scope, call.name).approval
            if needs_approval:  # before anything is waited for: until then the call is any worker's
                await self._ask(call, loop_id)
            await self._in_turn(scope, call, step)
            if needs_approval and (denial := await self._unless_approved(scope, call)) is not None:
                return denial
            if not self.can_run(scope, call.name):
                return await self._wait_for_hand(scope, call)
            async with limit:
                return await self._run(scope, call, loop_id)
        except StoreError as error:
            return await self._keep(call, error=f"the call could not be run: {error}")
        except (asyncio.CancelledError, GeneratorExit):
            raise
        except BaseException as error:
            logger.exception("a call of %s failed", call.name)
            return await self._keep(call, error=f"the call could not be run: {type(error).__name__}")

    async def _in_turn(self, scope: Scope, call: Captured, step: Step) -> None:
        if not self._rules(scope, call.name).after:
            return
        await step.complete.wait()  # a call that comes first may come later in the stream
        if first := self._before(scope, call, step):
            await asyncio.wait(first)

    def _before(self, scope: Scope, call: Captured, step: Step) -> list[asyncio.Task[Document]]:
        """The calls of a step that come first. Tools that wait for each other go in the order of their calls."""
        ids = list(step.tasks)
        waits = {
            one: [other for other in ids if other != one and step.names[other] in self._rules(scope, name).after]
            for one, name in step.names.items()
        }

        def waits_for_this(call_id: str) -> bool:
            seen, left = {call_id}, [call_id]
            while left:
                more = [other for other in waits[left.pop()] if other not in seen]
                seen.update(more)
                left += more
            return call.call_id in seen

        place = ids.index(call.call_id)
        mine = waits[call.call_id]
        return [step.tasks[one] for one in mine if ids.index(one) < place or not waits_for_this(one)]

    # --- one call ---------------------------------------------------------------------------------------------

    async def _run(self, scope: Scope, call: Captured, loop_id: str) -> Document:
        if self._is_worker_s(scope, call.name):
            return await self._wait_for_worker(scope, call)
        try:
            await self.store.start(call.call_id, loop_id=loop_id)
        except NotPending:  # it has its answer already, or a worker has the call
            return await self._wait_for_worker(scope, call)
        try:
            result = await self._result(scope, call)
        except ToolError as error:
            return await self._keep(call, error=str(error))
        except Exception as error:
            words = words_of(error)
            logger.warning("the tool %s failed: %s", call.name, words)
            return await self._keep(call, error=words)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            return await self._keep(call, error=f"{call.name} was cancelled from within")
        return await self._keep(call, result=msgspec.json.decode(result))

    async def _result(self, scope: Scope, call: Captured) -> bytes:
        rules = self._rules(scope, call.name)
        key = (scope.session, call.name, encode(canonical(call.args)))
        if rules.cache_ttl and (cached := self._cache.get(key)) is not None:
            return cached[0]

        async def once() -> bytes:
            timeout = self._timeout(scope, call.name)
            try:
                async with asyncio.timeout(timeout) as clock:
                    return plain(await self._called(scope, call))
            except TimeoutError:
                if clock.expired():
                    raise ToolError(f"{call.name} took longer than {timeout:g} s", retryable=True) from None
                raise
            except (Exception, asyncio.CancelledError, GeneratorExit):
                raise
            except BaseException as error:  # a task that ends with it would take the event loop along
                raise ToolError(words_of(error)) from error

        async def tried() -> bytes:
            retries = tenacity.AsyncRetrying(
                stop=tenacity.stop_after_attempt(1 + (rules.retries or 0)),
                wait=tenacity.wait_random_exponential(multiplier=0.1, max=5),
                retry=tenacity.retry_if_exception(_is_retryable),
                reraise=True,
            )
            return await retries(once)

        result = await (self._shared(key, tried) if rules.idempotent else tried())
        if rules.cache_ttl:
            self._cache[key] = (result, rules.cache_ttl)
        return result

    async def _shared(self, key: _Key, run: Callable[[], Coroutine[Any, Any, bytes]]) -> bytes:
        """Identical calls in flight run once. The run ends with the last one that waits for it."""
        flight = self._flying.get(key)
        if flight is None:
            flight = self._flying[key] = _Flight(asyncio.ensure_future(run()))
        flight.waiting += 1
        try:
            return await asyncio.shield(flight.task)
        finally:
            flight.waiting -= 1
            if not flight.waiting or flight.task.done():
                flight.task.cancel()
                if self._flying.get(key) is flight:
                    del self._flying[key]

    async def _called(self, scope: Scope, call: Captured) -> Any:
        if self._tool(scope, call.name) is not None and self.source is not None:
            return await self.source.call(call.name, call.args, call_id=call.call_id)
        rules = _own_rules(scope, call.name)
        assert rules is not None
        assert rules.executor is not None
        endpoint = HttpExecutor(rules.executor.model_dump(exclude_none=True), self._http)
        return await endpoint.call(call.name, call.args, call_id=call.call_id)

    async def _wait_for_worker(self, scope: Scope, call: Captured) -> Document:
        """The time of a call begins again with each worker that takes it, up to _WORKERS. One that has given no sign of
        life has until its lease is out, and then another has a moment to take the call."""
        seconds, clock = self._seconds(scope, call.name), asyncio.get_running_loop().time
        worker: str | None = None
        lease: float | None = None  # while it is as the worker got it
        workers, deadline = 0, clock() + seconds
        while True:
            seen = await self.store.last_event_id()
            record = await self.store.call(call.call_id)
            if record.status.final:
                return response_of(record.result, record.error)
            if record.worker not in (None, worker) and workers < _WORKERS:
                worker, lease, workers, deadline = record.worker, record.lease_until, workers + 1, clock() + seconds
            left = deadline - clock()
            if left <= 0 and lease is not None and record.lease_until == lease:
                left = min(max(lease - self.store.clock(), 0), seconds) + _TAKEOVER
                lease, deadline = None, clock() + left
            if left <= 0:
                return await self._keep(call, error=f"no worker answered {call.name} within {seconds:g} s")
            await self.store.wait(after=seen, timeout=left, session=scope.session)

    async def _wait_for_hand(self, scope: Scope, call: Captured) -> Document:
        """Somebody answers the call through the control API."""
        timeout = self._rules(scope, call.name).timeout
        seconds = scope.pending_timeout if timeout is None else timeout
        record = await self._until(scope, call, seconds, lambda one: one.status.final)
        if record is None:
            return await self._keep(call, error=f"nobody answered {call.name} within {seconds:g} s")
        return response_of(record.result, record.error)

    # --- approval ---------------------------------------------------------------------------------------------

    async def _ask(self, call: Captured, loop_id: str) -> None:
        self._running.pop(call.call_id, None)
        with contextlib.suppress(NotPending, Decided):  # how it stands is seen when its time has come
            await self.store.ask_approval(call.call_id, loop_id)

    async def _unless_approved(self, scope: Scope, call: Captured) -> Document | None:
        """Wait for a human's word; None if it is yes, else what the model is told."""
        timeout = scope.approval_timeout
        done = await self._until(scope, call, timeout, lambda one: one.status.final or one.approval != "waiting")
        if done is None:
            said = f"nobody approved this call within {timeout:g} s"
            done = await self.store.settle(call.call_id, Status.DENIED, error=said)
        if done.status.final:
            return response_of(done.result, done.error)
        self._running[call.call_id] = self._seconds(scope, call.name)
        return None

    async def _until(self, scope: Scope, call: Captured, timeout: float, fits: Callable[[Call], bool]) -> Call | None:
        """Wait until the call's record fits; None if the time is out first."""
        clock = asyncio.get_running_loop().time
        deadline = clock() + timeout
        while True:
            seen = await self.store.last_event_id()
            record = await self.store.call(call.call_id)
            if fits(record):
                return record
            left = deadline - clock()
            if left <= 0 or not await self.store.wait(after=seen, timeout=left, session=scope.session):
                return None

    # --- the store --------------------------------------------------------------------------------------------

    async def _keep(self, call: Captured, *, result: Any = None, error: str | None = None) -> Document:
        """Store the answer; an answer that came first from elsewhere is the one that counts."""
        if error is not None:
            error = error[:MAX_MESSAGE].encode("utf-8", "replace").decode()
        try:
            await self.store.answer(call.call_id, result=result, error=error)
        except AlreadyAnswered as other:
            return response_of(other.call.result, other.call.error)
        except (UnknownCall, StoreUnavailable) as failure:  # it was run, and its answer counts
            logger.warning("the answer of a call was not stored: %s", failure)
        return response_of(result, error)

    async def _settle(self, call_id: str, status: Status, error: str) -> None:
        try:
            await self.store.settle(call_id, status, error=error)
        except StoreError as failure:
            logger.debug("a call could not be settled: %s", failure)

    # --- the rules of a tool ----------------------------------------------------------------------------------

    def _tool(self, scope: Scope, name: str) -> Tool | None:
        """The source's tool, where it is the source that runs this session's calls of the name."""
        return None if name in scope.declared else self.tools.get(name)

    def _is_worker_s(self, scope: Scope, name: str) -> bool:
        rules = _own_rules(scope, name)
        return rules is not None and rules.executor is not None and rules.executor.type == "worker"

    def _misfits(self, scope: Scope, call: Captured) -> list[str]:
        tool = self._tool(scope, call.name)
        schema = tool.schema if tool is not None else _declared_schema(scope, call.name)
        return check(schema, call.args) if schema is not None else []

    def _timeout(self, scope: Scope, name: str) -> float:
        timeout = self._rules(scope, name).timeout
        return scope.tool_timeout if timeout is None else timeout

    def _seconds(self, scope: Scope, name: str) -> float:
        """What all the tries of a call take at most, less the pauses between them."""
        return self._timeout(scope, name) * (1 + (self._rules(scope, name).retries or 0))

    def _rules(self, scope: Scope, name: str) -> Rules:
        given = _own_rules(scope, name)
        if given is None:
            tool = self.tools.get(name)
            return tool.rules if tool is not None else Rules()
        return Rules(
            timeout=given.timeout,
            retries=given.retries,
            after=tuple(given.after),
            idempotent=given.idempotent,
            cache_ttl=given.cache_ttl or None,
            approval=given.approval,
            behavior=given.behavior,
            scheduling=given.scheduling,
        )


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


def _own_rules(scope: Scope, name: str) -> ToolRules | None:
    """None where the session does not declare the tool. Where it does, nothing of the proxy's tool of that name counts:
    an approval that either asks for must not be lost by mixing them."""
    return scope.toolset.rules.get(name, _SAYS_NOTHING) if name in scope.declared else None


def _declared_schema(scope: Scope, name: str) -> Document | None:
    """The JSON Schema that a toolset's declaration asks of the arguments."""
    declaration = next((d for d in scope.toolset.declarations if d["name"] == name), {})
    if "parametersJsonSchema" in declaration:
        schema: Document = declaration["parametersJsonSchema"]
        return schema
    return to_json_schema(declaration["parameters"]) if "parameters" in declaration else None


def _is_retryable(error: BaseException) -> bool:
    return isinstance(error, TimeoutError) or (isinstance(error, ToolError) and error.retryable)


def plain(result: Any) -> bytes:
    """A result as JSON. Raises ToolError for what is not JSON, and for what is too much of it."""
    if hasattr(result, "model_dump"):
        result = result.model_dump(mode="json")
    if isinstance(result, (bytes, bytearray, memoryview)):
        raise ToolError("the tool returned bytes, which are not JSON: return text, or base64 in a field")
    try:
        data = msgspec.json.encode(result)
    except (TypeError, ValueError, RecursionError, OverflowError, msgspec.MsgspecError) as error:
        raise ToolError(f"the tool returned what is not JSON: {error}") from None
    if len(data) > MAX_RESULT:
        raise ToolError(f"the tool returned {len(data)} bytes, more than the {MAX_RESULT} that a result may have")
    return data
