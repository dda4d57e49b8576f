"""One of four processes is killed every second, while chats with tools go on."""

import itertools
import math
import os
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event

import httpx2
import pytest
from google import genai
from google.genai.types import HttpOptions

from tests.crash import runs
from tests.e2e.processes import ROOT, until
from tests.e2e.proxies import Proxy
from tests.e2e.upstreams import Gemini
from tests.store import servers

pytestmark = [pytest.mark.long, pytest.mark.skipif(sys.platform != "linux", reason="--workers needs Linux")]

WORKERS = 4
CLIENTS = 6
TURNS = 10
SECONDS = 60.0
KILLS = 15
PATIENCE = 90.0
"""Seconds within which a request succeeds, however often it is sent again."""


@pytest.fixture
def proxy(tmp_path: Path, strict: Gemini) -> Iterator[Proxy]:
    with servers.running(servers.program_under_test()) as port:
        proxy = Proxy(
            tmp_path,
            strict.url,
            workers=WORKERS,
            environ={runs.VARIABLE: str(tmp_path / "runs")},
            store=f"redis://127.0.0.1:{port}",
            tools=str(ROOT / "tests" / "crash" / "tools.py"),
        )
        wait_for_all(proxy)
        yield proxy
        assert proxy.stop() == 0


def wait_for_all(proxy: Proxy) -> None:
    def count() -> int:
        with httpx2.Client(headers=proxy.control.http.headers, timeout=30) as client:
            return len(client.get(f"{proxy.control.url}/v1/processes").json()["items"])

    until(lambda: count() == WORKERS, "all processes serve")


def children(proxy: Proxy) -> list[int]:
    pid = proxy.process.pid
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def owner(proxy: Proxy, client_port: int) -> int | None:
    """The process that has the other end of this connection. None: none has it now."""
    own = int(proxy.url.rpartition(":")[2])
    ends = f"0100007F:{own:04X}", f"0100007F:{client_port:04X}"
    rows = (line.split() for line in Path("/proc/net/tcp").read_text().splitlines())
    socket = next((f"socket:[{row[9]}]" for row in rows if (row[1], row[2]) == ends), None)
    for pid in children(proxy):
        with suppress(OSError):
            if any(os.readlink(one) == socket for one in Path(f"/proc/{pid}/fd").iterdir()):
                return pid
    return None


def kill(proxy: Proxy, victim: int, killed: dict[int, float]) -> None:
    """Kill a process, and note when it was gone: it takes connections until then."""
    killed[victim] = math.inf
    os.kill(victim, signal.SIGKILL)
    until(lambda: victim not in children(proxy), "the killed process is gone")
    killed[victim] = time.monotonic()


@dataclass
class Client:
    """A google-genai chat. `pid`: the process that its connection is with, None if it has none that is known. `killed`:
    when each killed process was gone."""

    proxy: Proxy
    number: int
    killed: dict[int, float]
    pid: int | None = None
    figures: Counter[str] = field(default_factory=Counter)

    def play(self, over: Event) -> None:
        """One chat after the other, each on a connection of its own."""
        for number in itertools.count():
            self.pid = None
            with httpx2.Client(event_hooks={"response": [self._note_owner]}, timeout=PATIENCE) as http:
                options = HttpOptions(base_url=f"{self.proxy.url}/@killed{self.number}", httpx_client=http)
                client = genai.Client(api_key="a-secret-key", http_options=options)
                chat = client.chats.create(model="gemini-3-flash-preview")
                for turn in range(TURNS):
                    if over.is_set():
                        return
                    marks = [f"{self.number}-{number}-{turn}-{step}" for step in range(2)]
                    calls = (f'call coroutine {{"mark": "{mark}", "seconds": 0.05}}' for mark in marks)
                    text = self._insist(chat, " then ".join(calls))
                    lost = [mark for mark in marks if runs.result(mark)["value"] not in text]
                    self.figures["results lost"] += len(lost)

    def _note_owner(self, response: httpx2.Response) -> None:
        if self.pid is None:
            stream = response.extensions["network_stream"]
            self.pid = owner(self.proxy, stream.get_extra_info("client_addr")[1])

    def _insist(self, chat: genai.chats.Chat, words: str) -> str:
        self.figures["requests"] += 1
        deadline = time.monotonic() + PATIENCE
        while True:
            began, pid = time.monotonic(), self.pid
            try:
                if self.number % 2:
                    return "".join(part.text or "" for part in chat.send_message_stream(words))
                return chat.send_message(words).text or ""
            except httpx2.TransportError:
                self.figures["errors"] += 1
                if time.monotonic() > deadline or not self._lost(pid or self.pid, began):
                    raise
                self.pid = None
            self.figures["retries"] += 1

    def _lost(self, pid: int | None, since: float) -> bool:
        """Whether the client's process was killed; if it is not known which that was, whether any was meanwhile."""
        return pid in self.killed if pid else any(moment >= since for moment in self.killed.values())


def test_clients_of_other_processes_notice_nothing_and_no_tool_runs_twice(
    tmp_path: Path, proxy: Proxy, gemini: Gemini
) -> None:
    over, killed, rng = Event(), dict[int, float](), random.Random(1)
    clients = [Client(proxy, number, killed) for number in range(CLIENTS)]
    pause = Event()
    with ThreadPoolExecutor(CLIENTS) as pool:
        chats = [pool.submit(client.play, over) for client in clients]
        try:
            end = time.monotonic() + SECONDS
            latest = end + 3 * SECONDS  # a process takes some seconds to serve, and one must be left each time
            while time.monotonic() < (end if len(killed) >= KILLS else latest) and not any(
                chat.done() for chat in chats
            ):
                living = children(proxy)
                serving = sorted({client.pid for client in clients if client.pid in living and client.pid})
                if len(serving) > 1:
                    kill(proxy, rng.choice(serving), killed)
                pause.wait(1)
        finally:
            over.set()
        for chat in chats:
            chat.result(2 * PATIENCE)
    lines = runs.read(tmp_path / "runs")
    begun = Counter(line.mark for line in lines if not line.done)
    finished = Counter(line.mark for line in lines if line.done)
    figures = sum((client.figures for client in clients), Counter())
    figures |= {"kills": len(killed), "tools begun": begun.total(), "tools finished": finished.total()}
    twice = [mark for mark, count in begun.items() if count > 1]
    print({**figures, "run twice": len(twice)})
    assert gemini.errors == []
    assert twice == [], "no tool that was begun runs again, finished or not: none is idempotent"
    assert len(killed) >= KILLS
