"""A worker: it registers its tools in a session, claims their calls, runs them, and posts what came of them.

All of it over the control API: it may run on another machine, and any number may share the work. It prints nothing;
what happens is told to `report`, as dicts with an `event`.
"""

import asyncio
import random
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import httpx2
import pydantic_core
import tenacity

type Document = dict[str, Any]

WAIT = 30.0  # seconds that a claim waits for a call
GRACE = 5.0  # seconds that calls have to finish in when the worker stops
_FIRST_DELAY, _MAX_DELAY = 0.2, 5.0  # seconds between attempts while the proxy does not answer
_RULES = ("approval", "after", "idempotent", "cache_ttl", "timeout", "retries", "behavior", "scheduling")


class Source(Protocol):
    """What runs calls: tools with `declaration` and `rules`, listed once; `call` raises for what the model is told."""

    async def list_tools(self) -> Sequence[Any]: ...
    async def call(self, name: str, args: Mapping[str, Any], *, call_id: str) -> Any: ...


class Unreachable(Exception):
    """The proxy does not answer now, or cannot: it is worth trying again."""


class Refused(Exception):
    """The proxy understood, and said no: `status` and its words. 0: it was not even asked."""

    def __init__(self, detail: str, status: int = 0) -> None:
        super().__init__(detail)
        self.status = status


class _TooSlow(Exception):
    retryable = True


class Worker:
    """`client` is one of the control API, with its base URL and token. `lease` is in seconds."""

    def __init__(
        self,
        source: Source,
        client: httpx2.AsyncClient,
        *,
        session: str,
        name: str,
        concurrency: int,
        lease: float,
        report: Callable[[Document], None],
    ) -> None:
        self._source = source
        self._client = client
        self._session = session
        self._name = name
        self._lease = lease
        self._report = report
        self._free = asyncio.Semaphore(concurrency)
        self._running: set[asyncio.Task[None]] = set()
        self._tools: dict[str, Any] = {}

    async def run(self, stop: asyncio.Event, hurry: asyncio.Event) -> None:
        """Serve until `stop` is set; then calls have GRACE seconds to finish in, less where `hurry` is set, and what
        still runs is given back. Raises Refused where the proxy does not take the tools, or knows no such token."""
        self._tools = {tool.declaration["name"]: tool for tool in await self._source.list_tools()}
        serving = asyncio.ensure_future(self._serve())
        stopping = asyncio.ensure_future(stop.wait())
        try:
            await asyncio.wait((serving, stopping), return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (serving, stopping):
                task.cancel()
            outcome, _ = await asyncio.gather(serving, stopping, return_exceptions=True)
            await self._finish(hurry)
        if isinstance(outcome, Exception):
            raise outcome
        self._report({"event": "stopped"})

    async def _finish(self, hurry: asyncio.Event) -> None:
        if not self._running:
            return
        all_done = asyncio.gather(*self._running, return_exceptions=True)
        hurrying = asyncio.ensure_future(hurry.wait())
        await asyncio.wait((all_done, hurrying), timeout=GRACE, return_when=asyncio.FIRST_COMPLETED)
        hurrying.cancel()
        for task in list(self._running):
            task.cancel()
        await asyncio.gather(*self._running, hurrying, return_exceptions=True)

    async def _serve(self) -> None:
        delay, reachable = _FIRST_DELAY, True
        while True:
            try:
                await self._register()
                self._report(
                    {"event": "serving", "session": self._session, "worker": self._name, "tools": list(self._tools)}
                )
                delay, reachable = _FIRST_DELAY, True
                await self._claim_for_ever()
            except Unreachable as error:
                if reachable:
                    self._report({"event": "unreachable", "error": str(error)})
                reachable = False
            await asyncio.sleep(delay * random.uniform(0.5, 1))  # not all workers at once
            delay = min(2 * delay, _MAX_DELAY)

    async def _register(self) -> None:
        """Put the tools in the session beside those that are there. Others may do so at the same time."""
        path = f"/v1/sessions/{self._session}/tools"
        declarations = [declared(tool) for tool in self._tools.values()]
        while True:
            seen: Document = {"tools": []}
            condition = {"If-None-Match": "*"}
            try:
                answer = await self._request("GET", path)
                seen, condition = answer.json(), {"If-Match": answer.headers["etag"]}
            except Refused as error:
                if error.status != 404:
                    raise
            wanted = with_tools(seen, declarations)
            if wanted == seen:
                return
            try:
                await self._request("PUT", path, wanted, headers=condition)
                return
            except Refused as error:
                if error.status != 412:
                    raise

    async def _claim_for_ever(self) -> None:
        asked = {"session": self._session, "names": list(self._tools), "wait": WAIT}
        claim = {**asked, "lease": self._lease, "worker": self._name}
        while True:
            await self._free.acquire()
            begun = False
            try:
                answer = await self._request("POST", "/v1/calls/claim", claim, timeout=WAIT + 10)
                if answer.status_code == 200:
                    self._begin(answer.json())
                    begun = True
            finally:
                if not begun:
                    self._free.release()

    # --- one call ---------------------------------------------------------------------------------------------

    def _begin(self, call: Document) -> None:
        def ended(task: asyncio.Task[None]) -> None:
            self._running.discard(task)
            self._free.release()

        self._tell("claimed", call, args=call["args"])
        task = asyncio.ensure_future(self._handle(call))
        self._running.add(task)
        task.add_done_callback(ended)

    async def _handle(self, call: Document) -> None:
        began = time.monotonic()
        work = asyncio.ensure_future(self._answer_of(call))
        try:
            await self._keep_while(work, call)
            status = await self._post(call, await work)
            self._tell("answered", call, status=status, seconds=round(time.monotonic() - began, 3))
        except Refused as error:
            self._tell("lost", call, error=str(error))
        except asyncio.CancelledError:
            await self._give_back(call, work)
            raise
        finally:
            work.cancel()

    async def _keep_while(self, work: asyncio.Future[bytes], call: Document) -> None:
        """Renew the lease until the work is done. Raises Refused where the call is not ours any more."""
        pause = self._lease / 2
        while not (await asyncio.wait((work,), timeout=pause))[0]:
            try:
                await self._renew(call, self._lease, timeout=self._lease / 2)
                pause = self._lease / 2
            except Unreachable:
                pause = min(self._lease / 2, 1.0)

    async def _renew(self, call: Document, lease: float, *, timeout: float) -> None:
        body = {"worker": self._name, "lease": lease}
        await self._request("POST", f"/v1/calls/{call['call_id']}/renew", body, timeout=timeout)

    async def _give_back(self, call: Document, work: asyncio.Future[bytes]) -> None:
        work.cancel()
        await asyncio.wait((work,), timeout=1)
        try:
            await self._renew(call, 0, timeout=2)
            self._tell("returned", call)
        except (Refused, Unreachable) as error:
            self._tell("lost", call, error=str(error))

    async def _answer_of(self, call: Document) -> bytes:
        """Run the call; the body of its answer, whatever comes of it."""
        rules = self._tools[call["name"]].rules

        async def once() -> Any:
            limit = asyncio.timeout(rules.timeout)
            try:
                async with limit:
                    return await self._source.call(call["name"], call["args"], call_id=call["call_id"])
            except TimeoutError:
                if not limit.expired():
                    raise
                raise _TooSlow(f"{call['name']} took longer than {rules.timeout:g} s") from None

        retries = tenacity.AsyncRetrying(
            stop=tenacity.stop_after_attempt(1 + (rules.retries or 0)),
            wait=tenacity.wait_random_exponential(multiplier=0.1, max=5),
            retry=tenacity.retry_if_exception(lambda error: getattr(error, "retryable", False)),
            reraise=True,
        )
        try:
            return _json({"result": await retries(once)})
        except Exception as error:
            words = str(error) or type(error).__name__
            return _json({"error": words.encode(errors="replace").decode()})

    async def _post(self, call: Document, body: bytes) -> str:
        """Send the answer, however long the proxy is away; the status that it gives the call. Raises Refused."""
        path, delay = f"/v1/calls/{call['call_id']}/result", _FIRST_DELAY
        while True:
            try:
                answer = await self._request("POST", path, body)
                return str(answer.json()["status"])
            except Unreachable:
                await asyncio.sleep(delay)
                delay = min(2 * delay, _MAX_DELAY)
            except Refused as error:
                if error.status not in (400, 413, 422) or body.startswith(_ERROR):
                    raise
                body = _json({"error": f"the result cannot be sent: {error}"})

    def _tell(self, event: str, call: Document, **fields: Any) -> None:
        self._report({"event": event, "call_id": call["call_id"], "name": call["name"], **fields})

    async def _request(
        self,
        method: str,
        path: str,
        body: Document | bytes | None = None,
        *,
        timeout: float = 30,
        headers: Mapping[str, str] | None = None,
    ) -> httpx2.Response:
        content = _json(body) if isinstance(body, dict) else body
        given = {"Content-Type": "application/json", **(headers or {})}
        try:
            answer = await self._client.request(method, path, content=content, headers=given, timeout=timeout)
        except httpx2.TransportError as error:
            raise Unreachable(str(error) or type(error).__name__) from None
        if answer.is_success:
            return answer
        try:
            detail = str(answer.json()["detail"])
        except (ValueError, TypeError, KeyError):
            detail = f"it answers {answer.status_code}, and not as the control API does"
        if answer.status_code >= 500 or answer.status_code == 429:
            raise Unreachable(detail)
        raise Refused(detail, answer.status_code)


def declared(tool: Any) -> Document:
    """The tool's declaration as the control API takes it: run by workers, by the tool's own rules."""
    rules = {name: getattr(tool.rules, name) for name in _RULES}
    said = {name: rule for name, rule in rules.items() if rule is not None and rule is not False and rule != ()}
    if "after" in said:
        said["after"] = list(said["after"])
    return {**tool.declaration, "executor": {"type": "worker"}, **said}


def with_tools(document: Document, declarations: Sequence[Document]) -> Document:
    """The session's tools with these declarations, in the place of workers' tools of the same names where there are
    some. Raises Refused where a name is another tool's."""
    new = {declaration["name"]: declaration for declaration in declarations}
    functions: list[Document] = []
    others: list[Document] = []
    for tool in document["tools"]:
        functions += tool.get("functionDeclarations", [])
        if rest := {kind: value for kind, value in tool.items() if kind != "functionDeclarations"}:
            others.append(rest)
    for index, function in enumerate(functions):
        name = function["name"]
        if name in new:
            if function.get("executor") != {"type": "worker"}:
                raise Refused(f"the session has a tool {name} already, which is no worker's: rename one of the two")
            functions[index] = new.pop(name)
    return {**document, "tools": [{"functionDeclarations": [*functions, *new.values()]}, *others]}


_ERROR = b'{"error":'


def _json(body: Document) -> bytes:
    return pydantic_core.to_json(body, inf_nan_mode="null")
