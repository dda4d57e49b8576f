"""The proxy's control API with a store in memory, in its own thread, and a runner of commands."""

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Coroutine, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from typer import testing
from typer.main import get_command
from typer.testing import CliRunner, Result

from addon.cli.app import app
from addon.control.app import create_app
from addon.monitoring.metrics import Metrics
from addon.settings import Settings
from addon.state_folder import write_address, write_file
from addon.tools.mcp_pins import Pins
from addon.web.own_token import load_token
from addon.web.server import ControlServer, bind
from store.backends.memory import MemoryStore
from store.base import StoreUnavailable
from store.models import Call, Slot, Step, Turn
from tests.cli.worker_bench import Bench
from tests.leaping import leaping

__all__ = ["leaping"]


class Proxy:
    """A running control API, with its address and token in the state folder, like the real proxy."""

    def __init__(self, state: Path) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        self._state, self._settings = state, Settings(state=state)
        self.store = MemoryStore()
        self.run(self.store.open())
        self.pins = Pins(state / "mcp_pins.json", write_file)
        self.shared: list[dict[str, Any]] = []
        self.restart()

    def restart(self, token: str | None = None) -> None:
        """Serve the store at another address."""
        app = create_app(
            store=self.store,
            settings=self._settings,
            token=token or load_token(self._settings, {}),
            metrics=Metrics(),
            version="test",
            pins=self.pins,
            shared=lambda: self.shared,
        )
        self.app = app
        self._server = ControlServer(app, bind("127.0.0.1", 0))
        self.run(self._server.start())
        self.url = self._server.url
        write_address(self._state, self.url)

    def replace_store(self) -> None:
        """Use a new, empty store. Only while the API is stopped."""
        self.run(self.store.close())
        self.store = MemoryStore()
        self.run(self.store.open())

    def run[T](self, coroutine: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(10)

    def fail_ping(self) -> None:
        async def ping() -> None:
            raise StoreUnavailable("gone")

        self.store.ping = ping  # type: ignore[method-assign]

    def capture(
        self,
        call_id: str,
        *,
        name: str = "get_weather",
        session: str = "default",
        redeliver: bool = False,
        needs_approval: bool = False,
        **args: Any,
    ) -> None:
        """Store a call of a workers' tool, as the proxy does."""
        turn_id = f"turn_{call_id}"
        now = self.store.clock()
        call = Call(
            call_id=call_id,
            session=session,
            name=name,
            args=args,
            owner="workers",
            released=True,
            redeliver=redeliver,
            approval="waiting" if needs_approval else None,
            turn_id=turn_id,
            created_at=now,
            updated_at=now,
        )
        content = {"role": "model", "parts": [{"functionCall": {"name": name, "args": args}}]}
        step = Step(content=content, slots=[Slot(name=name, call_id=call_id)])
        turn = Turn(turn_id=turn_id, session=session, visible=[], steps=[step], created_at=now)
        self.run(self.store.save_turn(turn, [call]))

    def stop(self) -> None:
        self.run(self._server.stop())

    def close(self) -> None:
        self.stop()
        self.run(self.store.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The test's own state folder, without the user's environment variables."""
    for name in ("TOOLGRAFT_SESSION", "TOOLGRAFT_URL", "TOOLGRAFT_TOKEN", "NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    home = tmp_path / "state"
    monkeypatch.setenv("TOOLGRAFT_HOME", str(home))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    return home


@pytest.fixture
def proxy(state: Path) -> Iterator[Proxy]:
    running = Proxy(state)
    yield running
    running.close()


_built_once = cache(get_command)
"""Typer would otherwise build all commands again for each run."""


class Cli:
    """`cli("calls", "--json")` runs a command in this process; stdout and stderr are separate."""

    def __call__(self, *arguments: str, status: int = 0, stdin: str | bytes | None = None) -> Result:
        result = CliRunner().invoke(app, arguments, input=stdin, prog_name="toolgraft")
        assert result.exit_code == status, (result.output, result.exception)
        return result


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch) -> Cli:
    monkeypatch.setattr(testing, "_get_command", _built_once)
    return Cli()


@pytest.fixture
async def bench(tmp_path: Path, leaping: None) -> AsyncIterator[Bench]:
    store = MemoryStore()
    store.clock = lambda: 1e9 + time.monotonic()
    store.uptime = time.monotonic
    await store.open()
    bench = Bench(store, tmp_path)
    yield bench
    await bench.client.aclose()
    await store.close()
