"""The measured processes: an upstream, mitmdump bare, mitmdump with the addon.

The proxies have a separate core; the load and the upstream share another one. Everything is on loopback, with the state
in a temporary folder.
"""

import contextlib
import http.client
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Self

ROOT = Path(__file__).resolve().parent.parent
_CORES = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
_TICK = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")
OPTIONS = ("connection_strategy=lazy", "keep_host_header=true")
"""Options of both proxies besides `-q`: those that the addon requires."""

addon_options: list[str] = []
"""Further options of every proxy with the addon."""


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port


def pin(pid: int, *, proxy: bool) -> None:
    """Move a process to the proxies' core, or to the other one. Does nothing with a single core, or if the system
    cannot."""
    if len(_CORES) > 1:
        os.sched_setaffinity(pid, {_CORES[0] if proxy else _CORES[1]})


@dataclass(slots=True)
class Process:
    port: int
    popen: subprocess.Popen[bytes]
    log: IO[bytes]

    @classmethod
    def start(
        cls,
        port: int,
        command: list[str],
        *,
        proxy: bool,
        home: Path,
        patience: float = 90,
        environ: Mapping[str, str] | None = None,
    ) -> Self:
        """Returns once the port is open. Raises RuntimeError with the process's output if the process ends before, or
        does not open the port within `patience` seconds."""
        log = tempfile.TemporaryFile(dir=home)
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "TOOLGRAFT_HOME": str(home / "state"), **(environ or {})}
        popen = subprocess.Popen(command, stdout=log, stderr=log, cwd=ROOT, env=environment)
        pin(popen.pid, proxy=proxy)
        self = cls(port, popen, log)
        self.wait_for(port, patience)
        return self

    def wait_for(self, port: int, patience: float = 90) -> None:
        """Wait until the port is open."""
        deadline = time.monotonic() + patience
        while True:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                return
            if self.popen.poll() is not None or time.monotonic() > deadline:
                self.stop()
                raise RuntimeError(f"{self.popen.args!r} did not start:\n{self.printed()}")
            time.sleep(0.02)

    def printed(self) -> str:
        self.log.seek(0)
        return self.log.read().decode(errors="replace")

    def stop(self) -> None:
        self.popen.terminate()
        try:
            self.popen.wait(10)
        except subprocess.TimeoutExpired:
            self.popen.kill()
            self.popen.wait()

    @property
    def cpu(self) -> float:
        """Seconds of CPU so far: all threads, user and system."""
        return _cpu(self.popen.pid)

    @property
    def memory(self) -> int:
        """Bytes of resident memory."""
        return int(Path(f"/proc/{self.popen.pid}/statm").read_text().split()[1]) * _PAGE


def _cpu(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICK


@dataclass(slots=True)
class Side:
    """A proxy. `control`: the control API's port, 0 for the bare proxy."""

    process: Process
    control: int = 0

    @property
    def port(self) -> int:
        return self.process.port

    def counted(self, name: str) -> int:
        """The sum of a counter of the proxy over all labels."""
        connection = http.client.HTTPConnection("127.0.0.1", self.control, timeout=10)
        with contextlib.closing(connection):
            connection.request("GET", "/metrics")
            lines = connection.getresponse().read().decode().splitlines()
        return sum(int(float(line.split()[-1])) for line in lines if line.startswith(f"{name}_total"))

    def check_hits(self, each: int) -> None:
        """Raises RuntimeError unless every request so far had `each` ledger hits."""
        hits, requests = self.counted("toolgraft_ledger_hits"), self.counted("toolgraft_requests")
        if hits != each * requests:
            raise RuntimeError(f"{hits} ledger hits in {requests} requests, which should have {each} each")

    def api(self, method: str, path: str, document: Any = None) -> Any:
        """A request to the control API. Raises RuntimeError if it is refused."""
        connection = http.client.HTTPConnection("127.0.0.1", self.control, timeout=10)
        with contextlib.closing(connection):
            body = None if document is None else json.dumps(document).encode()
            connection.request(method, path, body, {"content-type": "application/json"} if body else {})
            answer = connection.getresponse()
            text = answer.read().decode()
            if answer.status >= 300:
                raise RuntimeError(f"{method} {path}: {answer.status} {text}")
            return json.loads(text) if text else None


@contextlib.contextmanager
def upstream() -> Iterator[int]:
    """Runs an upstream without delays, and yields its port. Moves the benchmark itself to the upstream's core."""
    pin(0, proxy=False)
    port = free_port()
    with tempfile.TemporaryDirectory() as home:
        command = [sys.executable, "-m", "bench.light", "--port", str(port)]
        process = Process.start(port, command, proxy=False, home=Path(home))
        try:
            yield port
        finally:
            process.stop()


def mitmdump(upstream: int, port: int, home: Path, options: list[str], *scripts: Path) -> Process:
    """mitmdump in reverse mode."""
    program = Path(sys.executable).with_name("mitmdump")
    mode = f"reverse:http://127.0.0.1:{upstream}"
    command = [str(program), "-q", "--mode", f"{mode}@127.0.0.1:{port}"]
    for option in (f"confdir={home}", *OPTIONS, *options):
        command += ["--set", option]
    for script in scripts:
        command += ["-s", str(script)]
    return Process.start(port, command, proxy=True, home=home)


@contextlib.contextmanager
def bare(upstream: int, *, streams: bool = False) -> Iterator[Side]:
    """mitmdump without the addon. `streams`: with a script that passes event streams on as they arrive, because
    mitmdump otherwise buffers whole answers."""
    with tempfile.TemporaryDirectory() as folder:
        scripts = [ROOT / "bench" / "scripts" / "streaming.py"] if streams else []
        process = mitmdump(upstream, free_port(), Path(folder), [], *scripts)
        try:
            yield Side(process)
        finally:
            process.stop()


@contextlib.contextmanager
def grafted(upstream: int, home: Path | None = None, *more: str) -> Iterator[Side]:
    """mitmdump with the addon and its default store, an SQLite file. `home`: a folder with a store in `state`. `more`:
    options of the addon."""
    with contextlib.ExitStack() as stack:
        home = home or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        control = free_port()
        options = [f"graft_control=127.0.0.1:{control}", "graft_token=off", *addon_options, *more]
        process = mitmdump(upstream, free_port(), home, options, ROOT / "addon" / "entry.py")
        try:
            process.wait_for(control)
            yield Side(process, control)
        finally:
            process.stop()
