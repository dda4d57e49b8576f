"""Every kind of executor, with tools that a test controls: all of them call `Acts.act`."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import httpx2
import msgspec
import uvicorn

from addon.cli.worker_client import Worker
from addon.control.app import create_app
from addon.core.framing.documents import Document
from addon.monitoring.metrics import Metrics
from addon.settings import Settings
from addon.tools.base import RunRules, ToolSource
from addon.tools.mcp_config import Server
from addon.tools.mcp_servers import McpSource
from addon.tools.python import PythonSource
from store.models import Executor, ToolRules
from tests.loop.conftest import Proxy

KINDS = ("sync", "async", "mcp", "http", "worker")
SCHEMA: Document = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}


class Acts:
    """The actions of tools. `does`: by name; without an entry, the result is the number of calls that have begun.
    `begun`: the names of calls in that order; `most`: the most concurrent calls."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.does: dict[str, Callable[[], Awaitable[Any]]] = {}
        self.begun: list[str] = []
        self.running = 0
        self.most = 0

    async def act(self, name: str) -> Any:
        self.begun.append(name)
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            done = self.does.get(name)
            return {"at": len(self.begun)} if done is None else await done()
        finally:
            self.running -= 1

    def act_in_thread(self, name: str) -> Any:
        return asyncio.run_coroutine_threadsafe(self.act(name), self.loop).result(30)


current: list[Acts] = []
"""The actions of the running test's tools, because tools files cannot get arguments."""

_TOOL = '''
@tool({rules})
{head} {name}(n: int) -> object:
    """Do what the test says."""
    return {call}(kinds.current[-1], {name!r})
'''


def _python(folder: Path, tools: Mapping[str, Mapping[str, Any]], *, is_async: bool) -> PythonSource:
    head, call = ("async def", "await kinds.Acts.act") if is_async else ("def", "kinds.Acts.act_in_thread")
    text = "from toolgraft import tool\nfrom tests.loop import kinds\n"
    for name, rules in tools.items():
        written = ", ".join(f"{key}={value!r}" for key, value in rules.items())
        text += _TOOL.format(rules=written, head=head, name=name, call=call)
    file = folder / f"tools_{'async' if is_async else 'sync'}.py"
    file.write_text(text)
    return PythonSource(file)


@contextlib.asynccontextmanager
async def _mcp(acts: Acts, tools: Mapping[str, Mapping[str, Any]]) -> AsyncIterator[ToolSource]:
    """A server over HTTP, in this event loop."""
    from mcp.server.mcpserver import MCPServer

    server = MCPServer("tests")
    for name in tools:
        server.add_tool(_acting(acts, name), name=name, description="Do what the test says.")
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP) as listener:
        listener.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/mcp"
        config = uvicorn.Config(server.streamable_http_app(), log_level="critical", timeout_graceful_shutdown=1)
        served = uvicorn.Server(config)
        served.install_signal_handlers = lambda: None  # type: ignore[attr-defined]
        serving = asyncio.ensure_future(served.serve(sockets=[listener]))
        rules = {name: RunRules(**{**given, "after": tuple(given.get("after", ()))}) for name, given in tools.items()}
        try:
            yield McpSource("kinds", Server(url=url, rules=rules))
        finally:
            served.should_exit = True
            await asyncio.wait({serving}, timeout=5)


def _acting(acts: Acts, name: str) -> Callable[[int], Awaitable[dict[str, Any]]]:
    async def tool(n: int) -> dict[str, Any]:
        result = await acts.act(name)
        return result if isinstance(result, dict) else {"result": result}

    return tool


def _http(acts: Acts) -> httpx2.AsyncClient:
    """A client of an endpoint that answers 503 if the tool fails."""

    async def answers(request: httpx2.Request) -> httpx2.Response:
        name = msgspec.json.decode(await request.aread())["name"]
        try:
            return httpx2.Response(200, stream=httpx2.ByteStream(msgspec.json.encode(await acts.act(name))))
        except ConnectionError:
            return httpx2.Response(503)

    return httpx2.AsyncClient(transport=httpx2.MockTransport(answers))


@contextlib.asynccontextmanager
async def _worker(proxy: Proxy, folder: Path, tools: Mapping[str, Mapping[str, Any]]) -> AsyncIterator[None]:
    """A worker with a tools file, over the control API in process."""
    app = create_app(store=proxy.store, settings=Settings(state=folder), token="t", metrics=Metrics(), version="1")
    client = httpx2.AsyncClient(
        transport=httpx2.ASGITransport(app), base_url="http://127.0.0.1:8741", headers={"Authorization": "Bearer t"}
    )
    serving = asyncio.Event()
    stop, hurry = asyncio.Event(), asyncio.Event()
    async with _python(folder, tools, is_async=True) as source, client:
        worker = Worker(
            source,
            client,
            session="default",
            name="w",
            concurrency=8,
            lease=10,
            report=lambda event: serving.set() if event["event"] == "serving" else None,
        )
        running = asyncio.ensure_future(worker.run(stop, hurry))
        async with asyncio.timeout(30):
            await serving.wait()
        try:
            yield
        finally:
            stop.set()
            hurry.set()
            await running


@contextlib.asynccontextmanager
async def having(proxy: Proxy, folder: Path, kind: str, **given: Mapping[str, Any] | None) -> AsyncIterator[Acts]:
    """Opens a proxy with these tools of a kind, each with its rules. Calls of tools without rules are answered by
    hand."""
    acts = Acts()
    tools = {name: rules for name, rules in given.items() if rules is not None}
    by_hand = [{"name": name, "description": "d"} for name in given if name not in tools]
    current.append(acts)
    async with contextlib.AsyncExitStack() as stack:
        stack.callback(current.pop)
        if kind in ("sync", "async"):
            proxy.executors.source = _python(folder, tools, is_async=kind == "async")
        elif kind == "mcp":
            proxy.executors.source = await stack.enter_async_context(_mcp(acts, tools))
        else:
            proxy.executors.source = None
        if kind == "http":
            await proxy.executors._http.aclose()
            proxy.executors._http = _http(acts)
        await proxy.open()
        stack.push_async_callback(proxy.close)
        if by_hand:
            await proxy.declare(*by_hand)
        if kind == "http":
            executor = Executor(type="http", url="http://tools.test/run")
            declarations = [{"name": name, "description": "d", "parametersJsonSchema": SCHEMA} for name in tools]
            ruled = {name: ToolRules(executor=executor, **rules) for name, rules in tools.items()}
            await proxy.declare(*declarations, *by_hand, **ruled)
        elif kind == "worker":
            await stack.enter_async_context(_worker(proxy, folder, tools))
        yield acts
