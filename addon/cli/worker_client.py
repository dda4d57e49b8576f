"""A worker registers its tools with a session, claims their calls, runs them, and posts the results.

It uses only the control API, so it may run on another machine, and any number of workers may share the calls. It prints
nothing: it passes events to `report`, as dicts with an `event`.
"""

import asyncio
import random
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import httpx2
import pydantic_core

from addon.core.framing.documents import Document
from addon.tools.attempts import bounded, with_retries
from addon.tools.outputs import Media, collector


class Unreachable(Exception):
    """The proxy does not answer, or answers with a temporary error."""


class Refused(Exception):
    """The proxy refused the request, with this HTTP status and message. Status 0: no request was sent."""

    def __init__(self, detail: str, status: int = 0) -> None:
        super().__init__(detail)
        self.status = status


class ControlClient:
    """`client` must have the control API's base URL and token."""

    def __init__(self, client: httpx2.AsyncClient) -> None:
        self._client = client

    async def request(
        self,
        method: str,
        path: str,
        body: Document | bytes | None = None,
        *,
        timeout: float = 30,
        headers: Mapping[str, str] | None = None,
    ) -> httpx2.Response:
        """Send a request and return the successful answer. Raises Unreachable, Refused."""
        content = json_of(body) if isinstance(body, dict) else body
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
            detail = f"it answers {answer.status_code}, but not as the control API would"
        if answer.status_code >= 500 or answer.status_code == 429:
            raise Unreachable(detail)
        raise Refused(detail, answer.status_code)


def json_of(body: Document, fallback: Callable[[Any], Any] | None = None) -> bytes:
    return pydantic_core.to_json(body, inf_nan_mode="null", fallback=fallback)


PATIENCE = 300.0  # seconds for repeated attempts to send a result
FIRST_DELAY, MAX_DELAY = 0.2, 5.0  # seconds between attempts while the proxy does not answer
_STOP_TIMEOUT = 2.0  # seconds for the last request when the worker stops
_STOPPED = "the worker was stopped while it ran this call: the call may have run"
_ERROR = b'{"error":'


def _body_of(result: Any) -> bytes:
    """The body with a result; its images, sounds and files are in `parts`."""
    media: list[Media] = []
    body = json_of({"result": result}, collector(media))
    return body if not media else body[:-1] + b"," + json_of({"parts": [one.part for one in media]})[1:]


class CallSource(Protocol):
    """Lists tools with `declaration` and `rules` (once), and runs calls. Exceptions of `call` are for the model."""

    async def list_tools(self) -> Sequence[Any]: ...
    async def call(self, name: str, args: Mapping[str, Any], *, call_id: str) -> Any: ...


class WorkerCall:
    """`rules`: those of the call's tool. `lease`: seconds. `report` is called with each event."""

    def __init__(
        self,
        call: Document,
        rules: Any,
        source: CallSource,
        api: ControlClient,
        *,
        worker: str,
        lease: float,
        report: Callable[[Document], None],
    ) -> None:
        self.call_id: str = call["call_id"]
        self.settled = False
        self._call = call
        self._rules = rules
        self._source = source
        self._api = api
        self._worker = worker
        self._lease = lease
        self._report = report

    async def handle(self) -> None:
        """Run the call and send its result. Ends when the proxy has accepted the result (`settled`), or when the call
        no longer belongs to this worker. If this is cancelled, a call that may run twice is returned to the proxy; the
        result of any other call is an error, which says that it may have run."""
        began = time.monotonic()
        self._report_event("claimed", args=self._call["args"])
        work = asyncio.ensure_future(self._run())
        renewal = asyncio.ensure_future(self._renew_repeatedly())
        try:
            await asyncio.wait((work, renewal), return_when=asyncio.FIRST_COMPLETED)
            if not work.done():
                renewal.result()  # raises Refused: this worker has lost the call
            status = await self._post(work.result())
            self.settled = True
            self._report_event("answered", status=status, seconds=round(time.monotonic() - began, 3))
        except (Refused, Unreachable) as error:
            self._report_event("lost", error=str(error))
        except asyncio.CancelledError:
            await self._stop(work)
            raise
        finally:
            renewal.cancel()
            work.cancel()
            await asyncio.wait((renewal,))
            if not renewal.cancelled():
                renewal.exception()  # only the result matters

    async def _renew_repeatedly(self) -> None:
        """Renew the lease until cancelled. Raises Refused if another worker has the call, or it is final."""
        pause = self._lease / 2
        while True:
            await asyncio.sleep(pause)
            try:
                await self.renew(self._lease, timeout=self._lease / 2)
                pause = self._lease / 2
            except Unreachable:
                pause = min(self._lease / 2, 1.0)

    async def renew(self, lease: float, *, timeout: float) -> None:
        body = {"worker": self._worker, "lease": lease}
        await self._api.request("POST", f"/v1/calls/{self.call_id}/renew", body, timeout=timeout)

    async def _stop(self, work: asyncio.Future[bytes]) -> None:
        """Return the call, or send its result, because the worker stops."""
        work.cancel()
        await asyncio.wait((work,), timeout=1)
        try:
            if work.done() and not work.cancelled():
                await self._result(work.result(), timeout=_STOP_TIMEOUT)
                self._report_event("answered", status="done", seconds=0.0)
            elif self._rules.idempotent or self._rules.redeliver:
                await self.renew(0, timeout=_STOP_TIMEOUT)
                self._report_event("returned")
            else:
                await self._result(json_of({"error": _STOPPED}), timeout=_STOP_TIMEOUT)
                self._report_event("abandoned")
        except (Refused, Unreachable) as error:
            self._report_event("lost", error=str(error))

    async def _run(self) -> bytes:
        """Run the call. Returns the body with its result or error."""
        name, rules = self._call["name"], self._rules

        async def run() -> Any:
            return await self._source.call(name, self._call["args"], call_id=self.call_id)

        def may_retry(error: Exception) -> bool:
            safe = rules.idempotent or not getattr(error, "sent", True)
            return safe and getattr(error, "retryable", False)

        try:
            result = await with_retries(lambda: bounded(run, rules.timeout, name), rules.retries or 0, may_retry)
            return _body_of(result)
        except Exception as error:
            message = str(error) or type(error).__name__
            return json_of({"error": message.encode(errors="replace").decode()})

    async def _post(self, body: bytes) -> str:
        """Send the result, with retries for PATIENCE seconds. Returns the call's new status. Raises Refused,
        Unreachable."""
        delay, deadline = FIRST_DELAY, time.monotonic() + PATIENCE
        while True:
            try:
                return await self._result(body, timeout=30)
            except Unreachable as error:
                if time.monotonic() + delay > deadline:
                    raise Unreachable(f"the result was not accepted within {PATIENCE:g} s: {error}") from None
                await asyncio.sleep(delay)
                delay = min(2 * delay, MAX_DELAY)
            except Refused as error:
                if error.status not in (400, 413, 422) or body.startswith(_ERROR):
                    raise
                body = json_of({"error": f"the result cannot be sent: {error}"})

    async def _result(self, body: bytes, *, timeout: float) -> str:
        answer = await self._api.request("POST", f"/v1/calls/{self.call_id}/result", body, timeout=timeout)
        return str(answer.json()["status"])

    def _report_event(self, event: str, **fields: Any) -> None:
        self._report({"event": event, "call_id": self.call_id, "name": self._call["name"], **fields})


WAIT = 30.0  # seconds that a claim waits for a call
GRACE = 5.0  # seconds for running calls to finish when the worker stops
_RULES = (
    "approval",
    "after",
    "idempotent",
    "redeliver",
    "cache_ttl",
    "timeout",
    "retries",
    "behavior",
    "scheduling",
)


class Worker:
    """`client` must have the control API's base URL and token. `lease`: seconds."""

    def __init__(
        self,
        source: CallSource,
        client: httpx2.AsyncClient,
        *,
        session: str,
        name: str,
        concurrency: int,
        lease: float,
        report: Callable[[Document], None],
    ) -> None:
        self._source = source
        self._api = ControlClient(client)
        self._session = session
        self._name = name
        self._lease = lease
        self._report = report
        self._free = asyncio.Semaphore(concurrency)
        self._running: set[asyncio.Task[None]] = set()
        self._unsettled: set[str] = set()  # calls that may have run here and have no accepted answer
        self._tools: dict[str, Any] = {}
        self._is_serving = False

    async def run(self, stop: asyncio.Event, hurry: asyncio.Event) -> None:
        """Serve until `stop` is set. Running calls then have GRACE seconds to finish, or less if `hurry` is set; the
        rest is returned. Raises Refused if the proxy refuses the tools or the token."""
        self._tools = {tool.declaration["name"]: tool for tool in await self._source.list_tools()}
        serving = asyncio.ensure_future(self._serve(stop))
        stopping = asyncio.ensure_future(stop.wait())
        try:
            await asyncio.wait((serving, stopping), return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (serving, stopping):
                task.cancel()
            outcome, _ = await asyncio.gather(serving, stopping, return_exceptions=True)
            if self._is_serving:
                await self._return_unknown()
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
        unfinished = list(self._running)
        for task in unfinished:
            task.cancel()
        await asyncio.gather(*unfinished, hurrying, return_exceptions=True)

    async def _serve(self, stop: asyncio.Event) -> None:
        delay, reachable = FIRST_DELAY, True
        while True:
            try:
                await self._register()
                self._report(
                    {"event": "serving", "session": self._session, "worker": self._name, "tools": list(self._tools)}
                )
                delay, reachable = FIRST_DELAY, True
                if self._is_serving:  # the previous claim was interrupted
                    await self._return_unknown()
                self._is_serving = True
                await self._claim_until(stop)
                return
            except Unreachable as error:
                if reachable:
                    self._report({"event": "unreachable", "error": str(error)})
                reachable = False
            await asyncio.sleep(delay * random.uniform(0.5, 1))  # so that workers do not retry simultaneously
            delay = min(2 * delay, MAX_DELAY)

    async def _register(self) -> None:
        """Add the tools to the session's. Safe against concurrent changes."""
        path = f"/v1/sessions/{self._session}/tools"
        declarations = [worker_declaration(tool) for tool in self._tools.values()]
        while True:
            current: Document = {"tools": [], "shared": []}
            condition = {"If-None-Match": "*"}
            try:
                answer = await self._api.request("GET", path)
                found = answer.json()
                if found["tools"] is None:  # only the proxy's own tools exist
                    current["shared"] = found["shared"]
                else:
                    current, condition = found, {"If-Match": answer.headers["etag"]}
            except Refused as error:
                if error.status != 404:
                    raise
            updated = with_tools(current, declarations)
            if updated == current:
                return
            try:
                await self._api.request("PUT", path, updated, headers=condition)
                return
            except Refused as error:
                if error.status != 412:
                    raise

    async def _claim_until(self, stop: asyncio.Event) -> None:
        """Claim calls until `stop`. A call that is claimed after that is returned without being run."""
        query = {"session": self._session, "names": list(self._tools), "wait": WAIT}
        claim = {**query, "lease": self._lease, "worker": self._name}
        while not stop.is_set():
            await self._free.acquire()
            has_begun = False
            try:
                answer = await self._api.request("POST", "/v1/calls/claim", claim, timeout=WAIT + 10)
                if answer.status_code == 200 and not stop.is_set():
                    self._begin(answer.json())
                    has_begun = True
            finally:
                if not has_begun:
                    self._free.release()

    async def _return_unknown(self) -> None:
        """Return calls that are leased to this worker but never reached it, because the answer to a claim was lost."""
        path = f"/v1/calls?session={self._session}&status=running&limit=1000"
        try:
            calls = (await self._api.request("GET", path, timeout=2)).json()["items"]
            for call in calls:
                if call["worker"] == self._name and call["call_id"] not in self._unsettled:
                    body = {"worker": self._name, "lease": 0}
                    await self._api.request("POST", f"/v1/calls/{call['call_id']}/renew", body, timeout=2)
        except (Refused, Unreachable):
            return  # their leases expire

    def _begin(self, call: Document) -> None:
        rules = self._tools[call["name"]].rules
        worker_call = WorkerCall(
            call, rules, self._source, self._api, worker=self._name, lease=self._lease, report=self._report
        )
        task = asyncio.ensure_future(worker_call.handle())
        self._running.add(task)
        self._unsettled.add(worker_call.call_id)

        def ended(task: asyncio.Task[None]) -> None:
            self._running.discard(task)
            if worker_call.settled:
                self._unsettled.discard(worker_call.call_id)
            self._free.release()

        task.add_done_callback(ended)


def worker_declaration(tool: Any) -> Document:
    """The tool's declaration for the control API, with workers as executor and the tool's own rules."""
    rules = {name: getattr(tool.rules, name) for name in _RULES}
    given = {name: rule for name, rule in rules.items() if rule is not None and rule is not False and rule != ()}
    if "after" in given:
        given["after"] = list(given["after"])
    return {**tool.declaration, "executor": {"type": "worker"}, **given}


def with_tools(document: Document, declarations: Sequence[Document]) -> Document:
    """The session's tools with these declarations, which replace worker tools of the same names. Raises Refused if
    another kind of tool has one of the names."""
    new = {declaration["name"]: declaration for declaration in declarations}
    for tool in document.get("shared", ()):
        if tool["name"] in new:
            raise Refused(f"the proxy itself has a tool {tool['name']}: rename one of the two")
    functions: list[Document] = []
    builtins: list[Document] = []
    for tool in document["tools"]:
        functions += tool.get("functionDeclarations", [])
        if rest := {kind: value for kind, value in tool.items() if kind != "functionDeclarations"}:
            builtins.append(rest)
    for index, function in enumerate(functions):
        name = function["name"]
        if name in new:
            if function.get("executor") != {"type": "worker"}:
                raise Refused(
                    f"the session already has a tool {name} that is not run by workers: rename one of the two"
                )
            functions[index] = new.pop(name)
    return {**document, "tools": [{"functionDeclarations": [*functions, *new.values()]}, *builtins]}
