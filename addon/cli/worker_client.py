"""A worker registers its tools with a session, claims their calls, runs them, and posts the results.

It uses only the control API, so it may run on another machine, and any number of workers may share the calls. It prints
nothing: it passes events to `report`, as dicts with an `event`.
"""

import asyncio
import random
from collections.abc import Callable, Sequence
from typing import Any

import httpx2

from addon.cli.control_client import ControlClient, Refused, Unreachable
from addon.cli.worker_calls import FIRST_DELAY, MAX_DELAY, CallSource, WorkerCall
from addon.core.framing.documents import Document

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
