"""A worker: it registers its tools in a session, claims their calls, runs them, and posts what came of them.

All of it over the control API: it may run on another machine, and any number may share the work. It prints nothing;
what happens is told to `report`, as dicts with an `event`.
"""

import asyncio
import random
from collections.abc import Callable, Sequence
from typing import Any

import httpx2

from addon.cli.control_client import ControlClient, Document, Refused, Unreachable
from addon.cli.worker_calls import FIRST_DELAY, MAX_DELAY, Source, WorkerCall

WAIT = 30.0  # seconds that a claim waits for a call
GRACE = 5.0  # seconds that calls have to finish in when the worker stops
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
        self._api = ControlClient(client)
        self._session = session
        self._name = name
        self._lease = lease
        self._report = report
        self._free = asyncio.Semaphore(concurrency)
        self._running: set[asyncio.Task[None]] = set()
        self._begun: set[str] = set()  # calls that may have run here, and that the proxy has no answer of
        self._tools: dict[str, Any] = {}
        self._is_serving = False

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
        left = list(self._running)
        for task in left:
            task.cancel()
        await asyncio.gather(*left, hurrying, return_exceptions=True)

    async def _serve(self) -> None:
        delay, reachable = FIRST_DELAY, True
        while True:
            try:
                await self._register()
                self._report(
                    {"event": "serving", "session": self._session, "worker": self._name, "tools": list(self._tools)}
                )
                delay, reachable = FIRST_DELAY, True
                if self._is_serving:  # the claim before this one broke off
                    await self._return_unknown()
                self._is_serving = True
                await self._claim_for_ever()
            except Unreachable as error:
                if reachable:
                    self._report({"event": "unreachable", "error": str(error)})
                reachable = False
            await asyncio.sleep(delay * random.uniform(0.5, 1))  # not all workers at once
            delay = min(2 * delay, MAX_DELAY)

    async def _register(self) -> None:
        """Put the tools in the session beside those that are there. Others may do so at the same time."""
        path = f"/v1/sessions/{self._session}/tools"
        declarations = [declared(tool) for tool in self._tools.values()]
        while True:
            seen: Document = {"tools": []}
            condition = {"If-None-Match": "*"}
            try:
                answer = await self._api.request("GET", path)
                if (shown := answer.json())["tools"] is not None:  # else the proxy's own are all that there are
                    seen, condition = shown, {"If-Match": answer.headers["etag"]}
            except Refused as error:
                if error.status != 404:
                    raise
            wanted = with_tools(seen, declarations)
            if wanted == seen:
                return
            try:
                await self._api.request("PUT", path, wanted, headers=condition)
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
                answer = await self._api.request("POST", "/v1/calls/claim", claim, timeout=WAIT + 10)
                if answer.status_code == 200:
                    self._begin(answer.json())
                    begun = True
            finally:
                if not begun:
                    self._free.release()

    async def _return_unknown(self) -> None:
        """Give back the calls that are leased to this worker and that it never heard of, because the answer to a claim
        was lost. They have not run."""
        path = f"/v1/calls?session={self._session}&status=running&limit=1000"
        try:
            calls = (await self._api.request("GET", path, timeout=2)).json()["items"]
            for call in calls:
                if call["worker"] == self._name and call["call_id"] not in self._begun:
                    body = {"worker": self._name, "lease": 0}
                    await self._api.request("POST", f"/v1/calls/{call['call_id']}/renew", body, timeout=2)
        except (Refused, Unreachable):
            return  # their leases run out

    def _begin(self, call: Document) -> None:
        rules = self._tools[call["name"]].rules
        handled = WorkerCall(
            call, rules, self._source, self._api, worker=self._name, lease=self._lease, report=self._report
        )
        task = asyncio.ensure_future(handled.handle())
        self._running.add(task)
        self._begun.add(handled.call_id)

        def ended(task: asyncio.Task[None]) -> None:
            self._running.discard(task)
            if handled.settled:
                self._begun.discard(handled.call_id)
            self._free.release()

        task.add_done_callback(ended)


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
