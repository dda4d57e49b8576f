"""The command `toolgraft worker`: its file, output and signals, and two workers together."""

import inspect
import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from addon.cli.worker import serve
from addon.settings import Settings
from store.models import Status
from tests.cli.conftest import Cli, Proxy

TOOLS = '''
import asyncio
import pathlib
import time

from addon import process
from addon.cli import worker_client

process.GRACE = worker_client.GRACE = 0.5  # tests wait for them

def get_weather(city: str) -> dict[str, object]:
    """The weather of a city.

    Args:
        city: Its name.
    """
    return {"city": city, "celsius": -3}

async def broken() -> None:
    """Always fails."""
    raise ValueError("it is broken")

async def stubborn() -> None:
    """Swallows each cancellation."""
    while True:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            pass

def slow(seconds: float) -> str:
    """Takes its time."""
    time.sleep(seconds)
    return "done"

def hangs_once(mark: str) -> str:
    """Comes to no end when it runs for the first time."""
    first = not pathlib.Path(mark).exists()
    pathlib.Path(mark).touch()
    time.sleep(3600 if first else 0)
    return "done"
'''


@pytest.fixture
def file(tmp_path: Path) -> Path:
    file = tmp_path / "tools.py"
    file.write_text(TOOLS)
    return file


@contextmanager
def worker(file: Path, *options: str) -> Iterator[subprocess.Popen[str]]:
    """A worker process that is already serving."""
    command = [sys.executable, "-m", "addon", "worker", str(file), *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        try:
            first = (process.stdout if "--json" in options else process.stderr).readline()
            assert "serving" in first, first + process.stderr.read()
            yield process
        finally:
            process.kill()


def lines(process: subprocess.Popen[str], count: int) -> list[str]:
    assert process.stdout is not None
    return [process.stdout.readline() for _ in range(count)]


def events(process: subprocess.Popen[str], count: int) -> list[Any]:
    return [json.loads(line) for line in lines(process, count)]


def wait_for(mark: Path) -> None:
    deadline = time.monotonic() + 20
    while not mark.exists():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def ended(process: subprocess.Popen[str], number: signal.Signals) -> str:
    """End the worker with a signal, and return the rest of its output."""
    process.send_signal(number)
    rest, errors = process.communicate(timeout=20)
    assert process.returncode == 0, errors
    return rest


@pytest.mark.e2e
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_worker_serves_until_a_signal_ends_it(proxy: Proxy, file: Path, number: signal.Signals) -> None:
    with worker(file, "--url", proxy.url) as process:
        session = proxy.run(proxy.store.session("default"))
        assert session is not None
        assert session.toolset is not None
        assert [d["name"] for d in session.toolset.declarations] == [
            "get_weather",
            "broken",
            "stubborn",
            "slow",
            "hangs_once",
        ]
        proxy.capture("call_1", city="Oslo")
        proxy.capture("call_2", name="broken")
        outcomes = sorted(line.rpartition(",")[0] for line in lines(process, 2))
        assert outcomes == ["call_1 get_weather: done", "call_2 broken: failed"]
        assert ended(process, number) == ""
    assert proxy.run(proxy.store.call("default", "call_1")).result == {"city": "Oslo", "celsius": -3}
    assert "it is broken" in (proxy.run(proxy.store.call("default", "call_2")).error or "")


@pytest.mark.e2e
def test_events_are_lines_of_json(proxy: Proxy, file: Path) -> None:
    with worker(file, "--json", "--session", "mine") as process:
        proxy.capture("call_1", session="mine", city="Oslo")
        claimed, answered = events(process, 2)
        assert claimed == {"event": "claimed", "call_id": "call_1", "name": "get_weather", "args": {"city": "Oslo"}}
        assert answered.pop("seconds") >= 0
        assert answered == {"event": "answered", "call_id": "call_1", "name": "get_weather", "status": "done"}
        assert json.loads(ended(process, signal.SIGTERM)) == {"event": "stopped"}


@pytest.mark.e2e
def test_a_second_signal_ends_what_runs_with_an_answer(proxy: Proxy, file: Path) -> None:
    with worker(file, "--json") as process:
        proxy.capture("call_1", name="slow", seconds=60)
        events(process, 1)
        process.send_signal(signal.SIGINT)
        (reply, *_) = map(json.loads, ended(process, signal.SIGTERM).splitlines())
        assert reply == {"event": "abandoned", "call_id": "call_1", "name": "slow"}
    call = proxy.run(proxy.store.call("default", "call_1"))
    assert (call.status, "may have run" in (call.error or "")) == (Status.FAILED, True)


@pytest.mark.e2e
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_a_worker_whose_tool_swallows_its_cancellation(
    proxy: Proxy, file: Path, number: signal.Signals
) -> None:
    with worker(file, "--json") as process:
        proxy.capture("call_1", name="stubborn")
        events(process, 1)
        process.send_signal(number)
        reported = [json.loads(line)["event"] for line in ended(process, number).splitlines()]
        assert reported == ["abandoned", "stopped"]
    assert proxy.run(proxy.store.call("default", "call_1")).status is Status.FAILED


@pytest.mark.e2e
def test_the_call_of_a_worker_that_is_killed_goes_to_another(proxy: Proxy, file: Path, tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    with worker(file, "--json", "--lease", "1") as first:
        proxy.capture("call_1", name="hangs_once", redeliver=True, mark=str(mark))
        events(first, 1)
        wait_for(mark)
        with worker(file, "--json") as second:
            first.kill()
            claimed, answered = events(second, 2)
            assert (claimed["call_id"], answered["status"]) == ("call_1", "done")
    assert proxy.run(proxy.store.call("default", "call_1")).result == "done"


@pytest.mark.parametrize(
    ("text", "words"),
    [("import nothing_such", ["tools.py:1", "nothing_such"]), ("x = 1", ["tools.py", "no tools"])],
)
def test_a_file_that_is_no_tools_file_is_refused_with_its_place(
    cli: Cli, tmp_path: Path, text: str, words: list[str]
) -> None:
    (tmp_path / "tools.py").write_text(text)
    stderr = cli("worker", str(tmp_path / "tools.py"), status=1).stderr
    assert all(word in stderr for word in words)
    assert stderr.count("\n") == 1


def test_a_name_that_is_taken_is_told_and_nothing_is_changed(cli: Cli, proxy: Proxy, file: Path) -> None:
    cli("tools", "set", "-", stdin='[{"name": "get_weather"}]')
    before = proxy.run(proxy.store.session("default"))
    assert "already has a tool get_weather" in cli("worker", str(file), status=1).stderr
    assert proxy.run(proxy.store.session("default")) == before


def test_a_token_that_is_not_known_is_told(cli: Cli, proxy: Proxy, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOOLGRAFT_TOKEN", "another")
    assert "does not know this token" in cli("worker", str(file), status=1).stderr


@pytest.mark.parametrize("options", [["--lease", "0"], ["--concurrency", "0"], ["--url", "x"], ["--session", "a b"]])
def test_options_that_do_not_fit_are_refused(cli: Cli, file: Path, options: list[str]) -> None:
    assert options[0] in cli("worker", str(file), *options, status=2).stderr


def test_the_call_of_a_dead_worker_is_free_again_long_before_it_is_given_up() -> None:
    assert inspect.signature(serve).parameters["lease"].default * 2 < Settings().tool_timeout
