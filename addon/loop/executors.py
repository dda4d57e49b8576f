"""Running calls: found, checked, timed, tried again, shared, cached; and whatever comes of it told to the model.

`Executors.run` never raises but for cancellation: a tool that fails is an answer, `{"error": …}`, like any other.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
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
from addon.graft.scope import Scope
from addon.tools.arguments import check
from addon.tools.base import Rules, Tool, ToolError, ToolSource
from addon.tools.endpoint import HttpExecutor
from store.base import AlreadyAnswered, Store, StoreError, UnknownCall
from store.models import Call, Status, ToolRules

logger = logging.getLogger("toolgraft")

MAX_RESULT = 1024 * 1024
"""Bytes of JSON. A model cannot use more, and each later request of the chat would carry it again."""

Run = Callable[[], Awaitable[Any]]


@dataclass(slots=True)
class Step:
    """The calls of one step under way: tasks by call id, in call order, and what later ones wait for."""

    tasks: dict[str, asyncio.Task[Document]] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)
    complete: asyncio.Event = field(default_factory=asyncio.Event)


class Executors:
    """What can run calls: the proxy's own sources, and what a session's toolset names. Opened with `open`."""

    def __init__(self, store: Store, source: ToolSource | None = None) -> None:
        self.store = store
        self.source = source
        self.tools: Mapping[str, Tool] = {}
        self._http = httpx2.AsyncClient(follow_redirects=False, trust_env=False)
        self._flying: dict[tuple[str, str, bytes], asyncio.Task[Any]] = {}
        self._cache: TLRUCache[tuple[str, str, bytes], Any] = TLRUCache(
            maxsize=1024, ttu=lambda _key, value, now: now + value[1], timer=time.monotonic
        )

    async def open(self) -> None:
        if self.source is not None:
            await self.source.__aenter__()
            self.tools = {tool.name: tool for tool in await self.source.list_tools()}

    async def close(self) -> None:
        await self._http.aclose()
        if self.source is not None:
            await self.source.__aexit__(None, None, None)

    def can_run(self, scope: Scope, name: str) -> bool:
        """Whether a call of this name is run by the proxy, or by a worker of its, and need not be answered by hand."""
        rules = _rules_of(scope, name)
        return name in self.tools or (rules is not None and rules.executor is not None)

    def start(self, scope: Scope, call: Captured, step: Step, limit: asyncio.Semaphore, loop_id: str) -> None:
        """Begin a call of a step. Its answer is the result of its task in `step`: the functionResponse's `response`."""
        step.names[call.call_id] = call.name
        task = asyncio.ensure_future(self._answered(scope, call, step, limit, loop_id))
        step.tasks[call.call_id] = task

    async def _answered(
        self, scope: Scope, call: Captured, step: Step, limit: asyncio.Semaphore, loop_id: str
    ) -> Document:
        try:
            if not call.known:
                return response_of(None, f"unknown tool: {call.name}")
            await self._in_turn(scope, call, step)
            refusal = await self._refused(scope, call, loop_id)
            if refusal is not None:
                return refusal
            async with limit:
                return await self._run(scope, call, loop_id)
        except asyncio.CancelledError:
            await self._settle(call, Status.EXPIRED, "cancelled: the client hung up")
            raise
        except StoreError as error:
            return response_of(None, f"the proxy's store failed: {error}")

    async def _in_turn(self, scope: Scope, call: Captured, step: Step) -> None:
        after = self._rules(scope, call.name).after
        if not after:
            return
        await step.complete.wait()  # a call that comes first may come later in the stream
        first = [task for call_id, task in step.tasks.items() if step.names[call_id] in after]
        if first:
            await asyncio.wait(first)

    # --- one call ---------------------------------------------------------------------------------------------

    async def _run(self, scope: Scope, call: Captured, loop_id: str) -> Document:
        rules = self._rules(scope, call.name)
        timeout = scope.tool_timeout if rules.timeout is None else rules.timeout
        given = _rules_of(scope, call.name)
        if call.name not in self.tools and given is not None and given.executor is not None:
            if given.executor.type == "worker":
                return await self._wait_for_worker(scope, call, timeout)
        await self.store.start(call.call_id, loop_id=loop_id)
        try:
            result = await self._result(scope, call, rules, timeout)
        except ToolError as error:
            return await self._keep(call, error=str(error))
        except TimeoutError:
            return await self._keep(call, error=f"{call.name} took longer than {timeout:g} s")
        except Exception as error:
            logger.warning("the tool %s failed: %s: %s", call.name, type(error).__name__, error)
            return await self._keep(call, error=f"{type(error).__name__}: {error}")
        return await self._keep(call, result=result)

    async def _result(self, scope: Scope, call: Captured, rules: Rules, timeout: float) -> Any:
        tool = self.tools.get(call.name)
        schema = tool.schema if tool is not None else _declared_schema(scope, call.name)
        if schema is not None and (wrong := check(schema, call.args)):
            raise ToolError(f"the arguments do not fit: {'; '.join(wrong)}")
        key = (scope.session, call.name, encode(canonical(call.args)))
        if rules.cache_ttl and key in self._cache:
            return self._cache[key][0]

        async def once() -> Any:
            async with asyncio.timeout(timeout):
                return plain(await self._called(scope, call))

        async def tried() -> Any:
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

    async def _shared(self, key: tuple[str, str, bytes], run: Run) -> Any:
        """Identical calls in flight run once. The run ends with the last one that waits for it."""
        task = self._flying.get(key)
        if task is None:
            task = self._flying[key] = asyncio.ensure_future(run())
            task.add_done_callback(lambda _: self._flying.pop(key, None))
        return await asyncio.shield(task)

    async def _called(self, scope: Scope, call: Captured) -> Any:
        if call.name in self.tools and self.source is not None:
            return await self.source.call(call.name, call.args, call_id=call.call_id)
        rules = _rules_of(scope, call.name)
        assert rules is not None
        assert rules.executor is not None
        endpoint = HttpExecutor(rules.executor.model_dump(exclude_none=True), self._http)
        return await endpoint.call(call.name, call.args, call_id=call.call_id)

    async def _wait_for_worker(self, scope: Scope, call: Captured, timeout: float) -> Document:
        done = await self._until(scope, call, timeout, lambda record: record.status.final)
        if done is None:
            return await self._keep(call, error=f"no worker answered {call.name} within {timeout:g} s")
        return response_of(done.result, done.error)

    # --- approval ---------------------------------------------------------------------------------------------

    async def _refused(self, scope: Scope, call: Captured, loop_id: str) -> Document | None:
        """Wait for a human's word where the tool asks for it; the response if it is no, or never came."""
        if not self._rules(scope, call.name).approval:
            return None
        timeout = scope.approval_timeout
        await self.store.ask_approval(call.call_id, loop_id)
        done = await self._until(scope, call, timeout, lambda record: record.approval != "waiting")
        if done is not None and done.approval == "approved":
            return None
        said = "the user denied this call" if done is not None else f"nobody approved this call within {timeout:g} s"
        await self._settle(call, Status.DENIED, said)
        return response_of(None, said)

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
        try:
            await self.store.answer(call.call_id, result=result, error=error)
        except AlreadyAnswered as other:
            return response_of(other.call.result, other.call.error)
        except UnknownCall:  # its session was deleted meanwhile
            pass
        return response_of(result, error)

    async def _settle(self, call: Captured, status: Status, error: str) -> None:
        try:
            await self.store.settle(call.call_id, status, error=error)
        except StoreError as failure:
            logger.debug("a call could not be settled: %s", failure)

    def _rules(self, scope: Scope, name: str) -> Rules:
        given = _rules_of(scope, name)
        tool = self.tools.get(name)
        if given is None:
            return tool.rules if tool is not None else Rules()
        return Rules(
            timeout=given.timeout,
            retries=given.retries,
            after=tuple(given.after),
            idempotent=given.idempotent,
            cache_ttl=given.cache_ttl,
            approval=given.approval,
        )


def _rules_of(scope: Scope, name: str) -> ToolRules | None:
    return scope.toolset.rules.get(name)


def _declared_schema(scope: Scope, name: str) -> Document | None:
    """The JSON Schema that a toolset's declaration asks of the arguments."""
    declaration = next((d for d in scope.toolset.declarations if d["name"] == name), {})
    if "parametersJsonSchema" in declaration:
        schema: Document = declaration["parametersJsonSchema"]
        return schema
    return to_json_schema(declaration["parameters"]) if "parameters" in declaration else None


def _is_retryable(error: BaseException) -> bool:
    return isinstance(error, TimeoutError) or (isinstance(error, ToolError) and error.retryable)


def plain(result: Any) -> Any:
    """A result as JSON values. Raises ToolError for what is not JSON, and for what is too much of it."""
    if hasattr(result, "model_dump"):
        result = result.model_dump(mode="json")
    if isinstance(result, (bytes, bytearray, memoryview)):
        raise ToolError("the tool returned bytes, which are not JSON: return text, or base64 in a field")
    try:
        data = msgspec.json.encode(result)
        if len(data) > MAX_RESULT:
            raise ToolError(f"the tool returned {len(data)} bytes, more than the {MAX_RESULT} that a result may have")
        return msgspec.json.decode(data)
    except (TypeError, ValueError, RecursionError, OverflowError, msgspec.MsgspecError) as error:
        raise ToolError(f"the tool returned what is not JSON: {error}") from None
