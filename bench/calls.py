"""What one call of a tool costs: from its start to its stored answer, in this process, by the proxy's own executors.

The tools do nothing, so all of it is added. The store is the default one, an SQLite file.
"""

import asyncio
import itertools
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median

from addon.core.answers.answer import CapturedCall
from addon.graft.grafter import Grafter
from addon.graft.owners import InitialState
from addon.graft.session_config import SessionConfig
from addon.loop.executors import Executors
from addon.loop.steps import RunningStep
from addon.metrics import Metrics
from addon.settings import Settings
from addon.tools.combined import Combined
from addon.tools.mcp_config import Server
from addon.tools.mcp_servers import McpSource
from addon.tools.python import PythonSource
from bench.measure import Effort
from bench.processes import ROOT, unpin
from bench.report import Row, at_most
from bench.seed import default_store
from store.models import Call, Executor, Slot, Step, ToolRules, Toolset, Turn

TOOLS = ROOT / "bench" / "tools.py"
_TARGETS = {"noop": ("a Python function", 0.3), "mcp_noop": ("MCP over stdio", 4), "http_noop": ("HTTP on loopback", 3)}
_NAMES = (*_TARGETS, "async_noop")


async def rows(effort: Effort, port: int) -> list[Row]:
    """`port` is an upstream's, which answers calls over HTTP as well."""
    unpin()
    each = max(5, round(100 * effort.seconds))
    server = Server(command=sys.executable, args=[str(ROOT / "bench" / "mcp_server.py")])
    declaration = {"name": "http_noop", "description": "Do nothing."}
    rules = {"http_noop": ToolRules(executor=Executor(type="http", url=f"http://127.0.0.1:{port}/run"))}
    with tempfile.TemporaryDirectory() as folder:
        store = default_store(Path(folder))
        await store.open()
        await store.put_toolset("default", Toolset(declarations=[declaration], rules=rules))
        config = await Grafter(store, Settings(), Metrics()).session_config("default")
        assert config is not None
        executors = Executors(store, Combined([PythonSource(TOOLS), McpSource("bench", server)]))
        await executors.open()
        numbers = itertools.count(1)
        try:
            for name in _NAMES:
                await _calls(executors, config, name, 5, numbers)
            times: dict[str, list[float]] = {name: [] for name in _NAMES}
            for number in range(effort.rounds):
                for name in _NAMES if number % 2 == 0 else reversed(_NAMES):
                    times[name].append(median(await _calls(executors, config, name, each, numbers)))
        finally:
            await executors.close()
            await store.close()
    made = []
    for name, (what, limit) in _TARGETS.items():
        detail = f"async: {median(times['async_noop']):.2f} ms" if name == "noop" else ""
        made.append(at_most(f"one call added: {what}", limit, median(times[name]), "ms", detail))
    return made


async def _calls(
    executors: Executors, config: SessionConfig, name: str, count: int, numbers: Iterator[int]
) -> list[float]:
    """Milliseconds of calls one after the other."""
    taken = []
    for number in itertools.islice(numbers, count):
        call = await _captured(executors, name, number)
        step = RunningStep()
        begun = time.perf_counter()
        executors.start(config, call, InitialState(begins=True), step, asyncio.Semaphore(config.parallel), "bench")
        answer = await step.tasks[call.call_id]
        taken.append(1000 * (time.perf_counter() - begun))
        if "error" in answer:
            raise RuntimeError(f"{name} failed: {answer['error']}")
    return taken


async def _captured(executors: Executors, name: str, number: int) -> CapturedCall:
    """A call as a loop has it when it is run: stored, without an answer."""
    turn_id, call_id, now = f"turn_{number:016x}", f"call_{number:024x}", time.time()
    args = {"sent": now}
    part = {"functionCall": {"id": "f1", "name": name, "args": args}}
    turn = Turn(
        turn_id=turn_id,
        session="default",
        visible=[],
        steps=[Step(content={"role": "model", "parts": [part]}, slots=[Slot(name=name, call_id=call_id)])],
        user_key=number.to_bytes(16),
        delivered=False,
        created_at=now,
    )
    record = Call(
        call_id=call_id, session="default", name=name, args=args, turn_id=turn_id, created_at=now, updated_at=now
    )
    await executors.store.save_turn(turn, [record], [])
    return CapturedCall(call_id, name, args, "f1", 0)
