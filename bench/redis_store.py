"""A store in Redis against SQLite. The redis-server runs on the upstream's core."""

import contextlib
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from addon.settings import Settings
from bench.conversations import text_kind
from bench.measure import Effort, compare
from bench.processes import Process, free_port, grafted, upstream
from bench.proxy import TEXT_2K
from bench.report import Row, at_least
from bench.seed import capture, default_store
from store.factory import open_url

_HITS = 20


@contextlib.contextmanager
def server() -> Iterator[str]:
    """Runs a redis-server, and yields its URL."""
    port = free_port()
    with tempfile.TemporaryDirectory() as folder:
        options = ["--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir", folder]
        process = Process.start(port, ["redis-server", *options], proxy=False, home=Path(folder))
        try:
            yield f"redis://127.0.0.1:{port}"
        finally:
            process.stop()


async def table(effort: Effort) -> list[Row]:
    if shutil.which("redis-server") is None:
        return [Row("a store in Redis", "", "not measured", None, "redis-server is not installed")]
    with upstream() as port, server() as url, tempfile.TemporaryDirectory() as folder:
        kinds = []
        for store in (default_store(Path(folder)), open_url(url, ttl=Settings().ttl)):
            await store.open()
            captured = await capture(store, "default", _HITS)
            await store.close()
            placeholders = [(one.question, one.text) for one in captured]
            kinds.append(text_kind("100 KB, 200 turns, 20 of them rewritten", 100_000, 200, placeholders))
        with grafted(port, Path(folder)) as one, grafted(port, None, f"graft_store={url}") as other:
            large = await compare(effort, (one, other), (kinds[0], kinds[1]))
            for side in (one, other):
                side.check_hits(_HITS)
            small = await compare(effort, (one, other), TEXT_2K)
    return [
        at_least(f"Redis instead of SQLite: {kind.name}", 0.6, pair.rate, pair.rates)
        for kind, pair in ((TEXT_2K, small), (kinds[0], large))
    ]
