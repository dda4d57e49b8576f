"""One page of the list of 100,000 calls: the server's time, at the control API and at the console, in this process."""

import shutil
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from statistics import median

import httpx2

from addon.console.mount import console_routes
from addon.control.app import ControlApp, create_app
from addon.metrics import Metrics
from addon.settings import Settings
from bench.measure import Effort, main
from bench.report import Row, at_most
from bench.seed import RESULT, default_store
from bench.shared_store import server
from store.base import Store
from store.factory import open_url
from store.models import Call, Slot, Status, Step, Turn

_CALLS = 100_000
_PER_TURN = 100
_RARE = 5_000
"""One call in so many has a tool of its own, and one has failed."""
_BEGAN = 1_800_000_000.0

_LISTS = {
    "the newest": "/v1/calls?order=newest&limit=50",
    "the oldest": "/v1/calls?limit=50",
    "of a rare tool": "/v1/calls?order=newest&limit=50&name=rare",
    "that failed, which are rare": "/v1/calls?order=newest&limit=50&status=failed",
    "from the middle of the time": f"/v1/calls?order=newest&limit=50&until={_BEGAN + _CALLS / 2}",
    "with a text that none has, the first page": "/v1/calls?order=newest&limit=50&text=nowhere",
    "the page of the console": "/console/parts/calls",
}


async def table(effort: Effort) -> list[Row]:
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as folder:
        rows += await _rows(effort, "SQLite", default_store(Path(folder)), Path(folder))
        if shutil.which("redis-server") is None:
            return [*rows, Row("lists of calls in Redis", "", "not measured", None, "redis-server is not installed")]
        with server() as url:
            rows += await _rows(effort, "Redis", open_url(url, ttl=Settings().ttl), Path(folder))
    return rows


async def _rows(effort: Effort, kind: str, store: Store, folder: Path) -> list[Row]:
    await store.open()
    try:
        await _fill(store)
        app = create_app(
            store=store,
            settings=Settings(state=folder / "state", token="off"),
            token=None,
            metrics=Metrics(),
            version="bench",
            extra_routes=console_routes(),
        )
        found = []
        async with _client(app) as client:
            for name, path in _LISTS.items():
                times = [await _time(client, path) for _ in range(3 + 3 * effort.rounds)]
                detail = f"the longest {max(times):.1f} ms"
                found.append(at_most(f"calls {name}: {kind}", 50, median(times), "ms", detail, digits=1))
        return found
    finally:
        await store.close()


async def _fill(store: Store) -> None:
    for first in range(0, _CALLS, _PER_TURN):
        calls = [_call(first + number) for number in range(_PER_TURN)]
        slots = [Slot(name=call.name, call_id=call.call_id) for call in calls]
        step = Step(content={"role": "model", "parts": []}, slots=slots)
        turn_id = calls[0].turn_id
        turn = Turn(turn_id=turn_id, session="default", visible=[], steps=[step], created_at=calls[0].created_at)
        await store.save_turn(turn, calls)


def _call(number: int) -> Call:
    is_rare = number % _RARE == 0
    outcome = {"status": Status.FAILED, "error": "no"} if is_rare else {"status": Status.DONE, "result": RESULT}
    moment = _BEGAN + number
    return Call(
        call_id=f"call_{number:024x}",
        session="default",
        name="rare" if is_rare else f"tool_{number % 20}",
        args={"city": f"City {number}", "unit": "celsius"},
        turn_id=f"turn_{number // _PER_TURN:024x}",
        created_at=moment,
        updated_at=moment,
        owner="hand",
        **outcome,
    )


@asynccontextmanager
async def _client(app: ControlApp) -> AsyncIterator[httpx2.AsyncClient]:
    transport = httpx2.ASGITransport(app)
    async with httpx2.AsyncClient(transport=transport, base_url="http://127.0.0.1:8741") as client:
        yield client


async def _time(client: httpx2.AsyncClient, path: str) -> float:
    """Milliseconds."""
    began = time.perf_counter()
    answer = await client.get(path)
    taken = time.perf_counter() - began
    answer.raise_for_status()
    return 1000 * taken


if __name__ == "__main__":
    sys.exit(main(__doc__, [("call_lists", table)]))
