"""A store in Redis: against SQLite, by its round trips and its memory, and with two proxies on it.

redis-server runs beside the upstream, on its core, and is this machine's own, without a network in between.
"""

import asyncio
import contextlib
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median

import redis

from addon.settings import Settings
from bench.calls import TOOLS
from bench.conversations import bodies, text_kind
from bench.load import Clients, head
from bench.measure import PATH, Effort, compare, main
from bench.processes import Process, Side, free_port, grafted, upstream
from bench.proxy import TEXT_2K, TOOLSET
from bench.report import Row, at_least, at_most
from bench.seed import capture, default_store
from store.factory import open_url

_HITS = 20
_WAKES = 200
_TURNS = 2_000


@contextlib.contextmanager
def server() -> Iterator[str]:
    """A redis-server; its URL."""
    port = free_port()
    with tempfile.TemporaryDirectory() as folder:
        options = ["--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir", folder]
        process = Process.start(port, ["redis-server", *options], proxy=False, home=Path(folder))
        try:
            yield f"redis://127.0.0.1:{port}"
        finally:
            process.stop()


async def table(effort: Effort) -> list[Row]:
    rows: list[Row] = []
    if shutil.which("redis-server") is None:
        return [Row("a store in Redis", "", "not measured", None, "redis-server is not installed")]
    with upstream() as port, server() as url:
        rows += await _against_sqlite(effort, port, url)
        rows += await _round_trips(effort, port, f"{url}?prefix=trips")
        rows.append(await _wake(effort, port, f"{url}?prefix=wake"))
    with server() as url:
        rows += await _memory(effort, url)
    return rows


async def _against_sqlite(effort: Effort, port: int, url: str) -> list[Row]:
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        kinds = []
        for store in (default_store(Path(folder)), open_url(url, ttl=Settings().ttl)):
            await store.open()
            captured = await capture(store, "default", _HITS, answered=True)
            await store.close()
            kinds.append(text_kind("100 KB, 20 ledger hits", 100_000, 200, [one.text for one in captured]))
        with grafted(port, Path(folder)) as one, grafted(port, None, f"graft_store={url}") as other:
            for what, hits, target in (((TEXT_2K, TEXT_2K), 0, 0.6), ((kinds[0], kinds[1]), _HITS, 0.6)):
                name = what[0].name
                before = [_hits_and_requests(side) for side in (one, other)]
                pair = await compare(effort, (one, other), what)
                for side, (old_hits, old_requests) in zip((one, other), before, strict=True):
                    new_hits, requests = _hits_and_requests(side)
                    if new_hits - old_hits != hits * (requests - old_requests):
                        raise RuntimeError(f"{name}: some requests did not have {hits} ledger hits")
                rows.append(at_least(f"Redis instead of SQLite: {name}", target, pair.rate, pair.rates))
    return rows


def _hits_and_requests(side: Side) -> tuple[int, int]:
    return side.counted("toolgraft_ledger_hits"), side.counted("toolgraft_requests")


class _Reads:
    """Counts what a Redis server reads: one per round trip. The notices that wake those who wait are left out: nobody
    waits for their round trips."""

    def __init__(self, url: str) -> None:
        self._client = redis.Redis.from_url(url.partition("?")[0])
        self._before = self._now()

    def _now(self) -> int:
        notices = self._client.info("commandstats").get("cmdstat_xread", {}).get("calls", 0)
        return int(self._client.info("stats")["total_reads_processed"]) - int(notices)

    def since(self) -> int:
        """Reads since the last question, this one's own left out."""
        now = self._now()
        count, self._before = now - self._before - 2, now
        return count


async def _round_trips(effort: Effort, port: int, url: str) -> list[Row]:
    """By one client. The lease has its own, which are measured idle and taken off."""
    requests = max(10, round(300 * effort.seconds))
    rows = []
    with grafted(port, None, f"graft_store={url}", f"graft_tools={TOOLS}") as side:
        side.api("PUT", "/v1/sessions/default/tools", TOOLSET)
        reads = _Reads(url)
        for what, limit, query in (
            ("a request with nothing new", 2, "?same"),
            ("a captured call", 4, "?call=get_weather"),
            ("a loop of one step", 9, "?loop=noop"),
        ):
            clients = await Clients.connect(
                side.port, head(side.port, f"{PATH}{query}"), [bodies(TEXT_2K, 0, cold=False)]
            )
            await clients.run(requests=4)
            reads.since()
            begun = time.perf_counter()
            await clients.run(requests=requests)
            busy, seconds = reads.since(), time.perf_counter() - begun
            await asyncio.sleep(seconds)
            each = max(0.0, busy - reads.since()) / requests
            rows.append(at_most(f"round trips to Redis: {what}", limit, each, "", digits=1))
            clients.close()
    return rows


async def _wake(effort: Effort, port: int, url: str) -> Row:
    """From a result that is posted at one proxy to the answer of the request that waits for it at another."""
    count = max(4, round(_WAKES * effort.seconds))
    option = f"graft_store={url}"
    times = []
    with grafted(port, None, option) as one, grafted(port, None, option) as other:
        one.api("PUT", "/v1/sessions/default/tools", TOOLSET)
        one.api("PATCH", "/v1/sessions/default", {"on_pending": "wait"})
        for number in range(count):
            question = {"role": "user", "parts": [{"text": f"What about city {number}?"}]}
            given = await _post(one, f"{PATH}?call=get_weather", [question])
            following = {"role": "user", "parts": [{"text": "And?"}]}
            waiting = asyncio.ensure_future(_post(one, PATH, [question, given, following]))
            (call,) = other.api("GET", "/v1/calls?session=default&status=pending")["items"]
            await asyncio.sleep(0.02)  # the request waits by now
            begun = time.perf_counter()
            await asyncio.to_thread(
                other.api, "POST", f"/v1/calls/{call['call_id']}/result", {"result": {"celsius": 4}}
            )
            await waiting
            times.append(1000 * (time.perf_counter() - begun))
    times.sort()
    slowest = times[min(len(times) - 1, int(0.99 * len(times)))]
    what = "a result posted at one proxy until the request at another has its answer, p99"
    return at_most(what, 50, slowest, "ms", f"{len(times)} calls, p50 {median(times):.1f} ms")


async def _post(side: Side, path: str, contents: list[object]) -> object:
    """A request; the Content of its answer."""
    reader, writer = await asyncio.open_connection("127.0.0.1", side.port)
    try:
        body = json.dumps({"contents": contents}).encode()
        writer.write(head(side.port, path, "connection: close\r\n") % len(body) + body)
        text = (await reader.read()).partition(b"\r\n\r\n")[2]
        return json.loads(text[text.index(b"{") : text.rindex(b"}") + 1])["candidates"][0]["content"]
    finally:
        writer.close()


async def _memory(effort: Effort, url: str) -> list[Row]:
    """Turns as the proxy stores them: a call with its signature, and a result; together one kilobyte of JSON. What a
    turn takes more once its client has the answer is in its events, of which a session keeps the last 10,000."""
    count = max(50, round(_TURNS * effort.seconds))
    store = open_url(url, ttl=Settings().ttl)
    await store.open()
    await capture(store, "first", 50, answered=True)  # with what is made once
    client = redis.Redis.from_url(url)
    rows = []
    for session, delivered, what, limit in (
        ("second", False, "memory of Redis for a turn with a call of 1 KB", 4),
        ("third", True, "the same once the client has the answer", None),
    ):
        before = client.info("memory")["used_memory"]
        await capture(store, session, count, answered=True, delivered=delivered)
        each = (client.info("memory")["used_memory"] - before) / count / 1024
        rows.append(at_most(what, limit, each, "KB", f"{count} turns"))
    client.close()
    await store.close()
    return rows


if __name__ == "__main__":
    sys.exit(main(__doc__, [("shared_store", table)]))
