"""The processes of the crash harness: a strict local Gemini, a proxy, workers, an HTTP endpoint."""

import json
import os
import random
import shutil
import signal
import sqlite3
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack, closing
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, NamedTuple, Self

from tests.crash import power, runs
from tests.crash.endpoint import endpoint
from tests.e2e.processes import ROOT, Process, environment
from tests.e2e.proxies import Proxy
from tests.e2e.upstreams import Gemini
from tests.ports import free_port
from tests.store import servers

Json = dict[str, Any]
Store = Literal["sqlite", "redis"]

_HERE = Path(__file__).parent
WORKER_SESSION = "workers"
_WORKERS = 2
_LEASE = 1  # seconds, the shortest that the command takes


class Finding(NamedTuple):
    """A broken promise. `kind` is one of `KINDS`."""

    kind: str
    who: str
    words: str


KINDS = {
    "opens": "the database does not open, or is damaged",
    "lost": "something acknowledged is gone, or has another value",
    "turn": "the next request does not tell the finished calls",
    "twice": "a call ran twice",
    "late": "a call ran although nobody waited for it any more",
    "kept": "a retried request did not get the result of a finished call",
    "open": "a call was left running or pending",
    "refused": "a request was refused",
    "ends": "a proxy that was told to end did not end well",
    "words": "an answer says something else than what happened",
}


class RedisServer:
    """A Redis server that writes to disk before each answer."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._port = free_port()
        self._process: Process | None = None
        self.url = f"redis://127.0.0.1:{self._port}"

    def start(self) -> None:
        """Start it, unless it runs. Returns when it serves."""
        if self._process is not None:
            return
        self._folder.mkdir(exist_ok=True)
        keeps = ["--appendonly", "yes", "--appendfsync", "always", "--save", ""]
        place = ["--bind", "127.0.0.1", "--port", str(self._port), "--dir", str(self._folder)]
        self._process = Process(
            "redis", [servers.need(servers.program_under_test()), *place, *keeps], environment(self._folder)
        )
        self._process.wait_for("Ready to accept connections")

    def kill(self) -> None:
        assert self._process is not None
        os.kill(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._process = None

    def stop(self) -> None:
        if self._process is not None:
            self._process.stop()


class Trace:
    """Counts events, so that the time of a kill does not depend on the machine's speed."""

    def __init__(self) -> None:
        self._count = 0
        self._players = 0
        self._changed = threading.Condition()

    def tick(self) -> None:
        with self._changed:
            self._count += 1
            self._changed.notify_all()

    def wait(self, more: int, timeout: float) -> None:
        """Wait until `more` events have been counted, all players have ended, or the time is over."""
        with self._changed:
            target = self._count + more
            self._changed.wait_for(lambda: self._count >= target or not self._players, timeout)

    def playing(self, job: Callable[[], None]) -> Callable[[], None]:
        """The job, counted as a player while it runs."""
        self._players += 1

        def play() -> None:
            try:
                job()
            finally:
                with self._changed:
                    self._players -= 1
                    self._changed.notify_all()

        return play


class Rig:
    """`with Rig(folder, seed) as rig`. `findings`: the promises broken so far; `outcomes`: counts of events.

    With `cuts_power`, each kill is also a power failure. With the store `redis`, every second kill of the proxy also
    kills the server.
    """

    def __init__(self, folder: Path, seed: int, *, cuts_power: bool = False, store: Store = "sqlite") -> None:
        self.cuts_power = cuts_power
        self.redis = RedisServer(folder / "redis") if store == "redis" else None
        self.flushed = folder / "flushed"
        self.folder = folder
        self.random = random.Random(seed)
        self.trace = Trace()
        self.findings: list[Finding] = []
        self.outcomes: Counter[tuple[str, str]] = Counter()
        self.runs_file = folder / "runs"
        self.started_at = 0.0
        self.workers: list[Process] = []
        self.left_open: set[str] = set()
        """Calls that are known to have been left running or pending."""
        self._stack = ExitStack()
        self._names = iter(range(1, sys.maxsize))

    def __enter__(self) -> Self:
        os.environ[runs.VARIABLE] = str(self.runs_file)  # the endpoint runs in this process
        self.gemini = self._stack.enter_context(Gemini())
        self.gemini.watch(self.trace.tick)
        self.endpoint_url = self._stack.enter_context(endpoint())
        environ = {runs.VARIABLE: str(self.runs_file)}
        if self.cuts_power:
            self.flushed.mkdir()
            environ[power.VARIABLE] = str(self.flushed)
        mcp = self.folder / "mcp.json"
        python_path = {"PYTHONPATH": str(ROOT)}
        server = {"command": sys.executable, "args": [str(_HERE / "mcp_tools.py")], "env": environ | python_path}
        mcp.write_text(json.dumps({"mcpServers": {"crash": server}}))
        options: dict[str, Any] = {}
        if self.redis is not None:
            self.redis.start()
            self._stack.callback(self.redis.stop)
            options["store"] = self.redis.url
        self.proxy = Proxy(
            self.folder / "proxy",
            self.gemini.url,
            tools=str(_HERE / "tools.py"),
            mcp=str(mcp),
            control=f"127.0.0.1:{free_port()}",
            upstream=self.gemini.url,
            retry_window="600",  # a busy machine needs longer than a minute to start a proxy again
            environ=environ | {"GEMINI_API_KEY": "key-of-the-proxy"},
            **options,
        )
        self.started_at = time.time()
        self.add_workers()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in self.workers:
            process.stop()
        self.proxy.stop()
        self._stack.close()

    def name(self, beginning: str) -> str:
        """A new, unique name."""
        return f"{beginning}{next(self._names)}"

    def note(self, who: str, what: str) -> None:
        self.outcomes[who, what] += 1

    def broken(self, kind: str, who: str, words: str) -> None:
        assert kind in KINDS, kind
        self.findings.append(Finding(kind, who, words))

    # --- killing and starting ---------------------------------------------------------------------------------

    def kill_proxy(self) -> None:
        os.kill(self.proxy.process.pid, signal.SIGKILL)
        if self.redis is not None and self.random.random() < 1 / 2:  # first, everyone would be refused
            self.redis.kill()
            self.note("redis", "killed")
        self.proxy.process.wait()
        if self.cuts_power:
            try:
                lost = power.cut(self.proxy.state / "toolgraft.db", self.flushed, self.random)
            except sqlite3.DatabaseError as error:
                self.broken("opens", "store", str(error))
            else:
                self.note("proxy", "something was lost" if lost else "nothing was lost")

    def end_proxy(self) -> None:
        """Ask the proxy to end (SIGTERM), and kill it if it does not."""
        status = self.proxy.process.stop()
        if status != 0:
            self.broken("ends", "proxy", f"exit status {status}")

    def start_proxy(self) -> None:
        """Raises AssertionError if the proxy does not start."""
        self.proxy.control.close()
        if self.redis is not None:
            self.redis.start()
        elif damage := self._damage():
            self.broken("opens", "store", damage)
        self.proxy.start()
        self.started_at = time.time()

    def _damage(self) -> str:
        """SQLite's complaint about a copy of the database after the kill, or ""."""
        with tempfile.TemporaryDirectory() as folder:
            for path in self.proxy.state.glob("toolgraft.db*"):
                shutil.copy(path, folder)
            with closing(sqlite3.connect(Path(folder) / "toolgraft.db")) as database:
                try:
                    (verdict,) = database.execute("PRAGMA integrity_check").fetchone()
                except sqlite3.DatabaseError as error:
                    return str(error)
        return "" if verdict == "ok" else str(verdict)

    def kill_worker(self) -> None:
        victim = self.workers.pop(self.random.randrange(len(self.workers)))
        os.kill(victim.pid, signal.SIGKILL)
        victim.wait()

    def add_workers(self) -> None:
        """Start the missing workers. Returns when they serve."""
        new = [self._worker() for _ in range(_WORKERS - len(self.workers))]
        for process in new:
            process.wait_for("serving")
        self.workers += new

    def _worker(self) -> Process:
        control = self.proxy.control
        command: list[str | Path] = [
            sys.executable,
            "-m",
            "addon",
            "worker",
            _HERE / "worker_tools.py",
            "--session",
            WORKER_SESSION,
        ]
        command += ["--url", control.url, "--lease", str(_LEASE)]
        environ = {runs.VARIABLE: str(self.runs_file), "TOOLGRAFT_TOKEN": control.token}
        return Process("worker", command, environment(self.folder, **environ))


def together(*jobs: Callable[[], None]) -> None:
    """Run these concurrently, and wait for all. Raises the first error."""
    errors: list[BaseException] = []

    def guarded(job: Callable[[], None]) -> None:
        try:
            job()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(job,), daemon=True) for job in jobs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
