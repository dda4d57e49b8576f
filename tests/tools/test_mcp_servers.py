"""MCP servers as processes, over stdio and over streamable HTTP."""

import asyncio
import json
import logging
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from addon.core.summaries import FIELDS
from addon.tools import mcp_connection, mcp_servers
from addon.tools.attempts import bounded
from addon.tools.base import SourceError, ToolError, ToolSource
from addon.tools.combined import Combined, prefixed
from addon.tools.mcp_config import Selection, Server, read_servers
from addon.tools.mcp_servers import McpSource
from addon.tools.mcp_transport import McpBounds

pytestmark = pytest.mark.e2e

SCRIPT = str(Path(__file__).with_name("mcp_server.py"))
STDIO = Server(command=sys.executable, args=[SCRIPT, "stdio"])
TOOLS = ["add", "text", "picture", "fail", "hang", "about", "grow"]


@asynccontextmanager
async def serving(port: int) -> AsyncIterator[asyncio.subprocess.Process]:
    """The server over HTTP, killed at the end."""
    process = await asyncio.create_subprocess_exec(sys.executable, SCRIPT, str(port))
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


@pytest.fixture
def port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def load(path: Path) -> list[ToolSource]:
    """The servers of a file."""
    return [prefixed(McpSource(name, server), server.prefix) for name, server in read_servers(path).items()]


async def names(source: McpSource) -> list[str]:
    return [tool.name for tool in await source.list_tools()]


async def call(source: McpSource, name: str, **args: Any) -> Any:
    async with asyncio.timeout(15):
        return await source.call(name, args, call_id="c")


def lines(file: Path) -> list[str]:
    return file.read_text().split() if file.exists() else []


async def check_everything(source: McpSource, file: Path, until: Any) -> None:
    """The checks for both transports."""
    assert await names(source) == TOOLS
    assert await call(source, "add", a=1, b=2) == {"sum": 3}
    assert await call(source, "text", value="one|two") == "one\ntwo"
    assert await call(source, "text", value='{"a":|1}') == {"a": 1}
    assert (await call(source, "picture")).mime_type == "image/png"
    with pytest.raises(ToolError, match="fail") as raised:
        await call(source, "fail", message="oh")
    assert not raised.value.retryable
    with pytest.raises(ToolError, match="there is no tool 'other'"):
        await call(source, "other")
    results = await asyncio.gather(*(call(source, "add", a=number, b=0) for number in range(20)))
    assert [result["sum"] for result in results] == list(range(20))

    task = asyncio.ensure_future(call(source, "hang", file=str(file)))
    await until(lambda: lines(file) == ["started"])
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await until(lambda: lines(file) == ["started", "cancelled"])

    changed = asyncio.Event()
    source.changed = changed.set
    await call(source, "grow", tool="grown")
    await asyncio.wait_for(changed.wait(), 5)
    assert await names(source) == [*TOOLS, "grown"]
    assert await call(source, "grown", a=1, b=2) == {"sum": 3}


async def test_a_server_over_stdio(tmp_path: Path, until: Any) -> None:
    async with McpSource("s", STDIO) as source:
        await check_everything(source, tmp_path / "notes", until)
        pid = (await call(source, "about"))["pid"]
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


async def test_a_server_over_http(tmp_path: Path, port: int, until: Any, caplog: pytest.LogCaptureFixture) -> None:
    source = McpSource("s", Server(url=f"http://127.0.0.1:{port}/mcp"), start_timeout=5)
    changed = asyncio.Event()
    source.changed = changed.set
    with caplog.at_level(logging.WARNING):
        await source.__aenter__()
    try:
        assert await names(source) == []
        assert "MCP server 's' is not up: All connection attempts failed" in caplog.text
        (down,) = [record.__dict__[FIELDS] for record in caplog.records if FIELDS in record.__dict__]
        assert (down["event"], down["server"]) == ("server_down", "s")
        async with serving(port):
            with caplog.at_level(logging.INFO):
                await asyncio.wait_for(changed.wait(), 15)
            assert "MCP server 's' is up, " in caplog.text
            found = [record.__dict__[FIELDS] for record in caplog.records if FIELDS in record.__dict__]
            assert (found[-1]["event"], found[-1]["server"]) == ("server_up", "s")
            await check_everything(source, tmp_path / "notes", until)
        with pytest.raises(ToolError, match="MCP server 's'") as raised:
            await call(source, "add", a=1, b=2)
        assert raised.value.retryable
        async with serving(port):
            assert await eventually(source) == {"sum": 3}
    finally:
        await source.__aexit__(None, None, None)
    assert not [record for record in caplog.records if record.levelno > logging.WARNING]


async def test_a_server_of_the_older_protocol_is_followed_too(caplog: pytest.LogCaptureFixture) -> None:
    source = McpSource("s", Server(command=sys.executable, args=[str(Path(SCRIPT).with_name("mcp_old_server.py"))]))
    changed = asyncio.Event()
    source.changed = changed.set
    async with source:
        assert await names(source) == ["one"]
        assert not changed.is_set()
        assert await call(source, "one") == "one"
        await asyncio.wait_for(changed.wait(), 5)
        assert await names(source) == ["one", "two"]
        assert await call(source, "two") == "two"
    noise = [record for record in caplog.records if "not an MCP message" in record.getMessage()]
    assert [record.levelno for record in noise] == [logging.WARNING]


async def eventually(source: McpSource) -> Any:
    """The sum, from a server that is starting."""
    async with asyncio.timeout(15):
        while True:
            try:
                return await source.call("add", {"a": 1, "b": 2}, call_id="c")
            except ToolError as e:
                assert e.retryable  # noqa: PT017 - it is tried again until the time is over
            await asyncio.sleep(0.02)


async def test_a_server_killed_in_the_middle_of_a_call_is_back_for_the_next(tmp_path: Path, until: Any) -> None:
    file = tmp_path / "notes"
    async with McpSource("s", STDIO) as source:
        pid = (await call(source, "about"))["pid"]
        hanging = [asyncio.ensure_future(call(source, "hang", file=str(file))) for _ in range(2)]
        await until(lambda: lines(file) == ["started", "started"])
        os.kill(pid, signal.SIGKILL)
        for outcome in await asyncio.gather(*hanging, return_exceptions=True):
            assert isinstance(outcome, ToolError)
            assert outcome.retryable
            assert outcome.sent
        results = await asyncio.gather(*(call(source, "about") for _ in range(3)))
        assert len({result["pid"] for result in results} | {pid}) == 2


async def test_a_server_that_hangs_is_ended_and_its_other_calls_are_errors(
    tmp_path: Path, until: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(mcp_connection, "ANSWER_TIMEOUT", 0.5)
    file = tmp_path / "notes"
    async with McpSource("s", STDIO) as source:
        pid = (await call(source, "about"))["pid"]
        other = asyncio.ensure_future(call(source, "hang", file=str(file)))
        await until(lambda: lines(file) == ["started"])
        os.kill(pid, signal.SIGSTOP)
        with pytest.raises(ToolError, match="took longer"):
            await bounded(lambda: source.call("add", {"a": 1, "b": 2}, call_id="c"), 0.2, "add")
        with pytest.raises(ToolError, match="MCP server 's'") as raised:
            await other
        assert raised.value.retryable
        assert await call(source, "add", a=1, b=2) == {"sum": 3}
        assert (await call(source, "about"))["pid"] != pid
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    assert "MCP server 's' no longer answers: it is stopped, and the next call starts it again" in caplog.text


async def test_a_connection_over_http_that_hangs_is_ended_too(
    port: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(mcp_connection, "ANSWER_TIMEOUT", 0.5)
    async with serving(port) as process:
        source = McpSource("s", Server(url=f"http://127.0.0.1:{port}/mcp"))
        changed = asyncio.Event()
        source.changed = changed.set
        async with source:
            if not await names(source):
                await asyncio.wait_for(changed.wait(), 15)
            assert await call(source, "add", a=1, b=2) == {"sum": 3}
            process.send_signal(signal.SIGSTOP)
            with pytest.raises(ToolError, match="took longer"):
                await bounded(lambda: source.call("add", {"a": 1, "b": 2}, call_id="c"), 0.2, "add")
            async with asyncio.timeout(10):
                while "no longer answers" not in caplog.text:  # noqa: ASYNC110 - there is no event
                    await asyncio.sleep(0.01)
            process.send_signal(signal.SIGCONT)
            assert await eventually(source) == {"sum": 3}


async def test_a_server_that_answers_is_not_ended_for_one_slow_tool(
    tmp_path: Path, until: Any, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "notes"
    async with McpSource("s", STDIO) as source:
        pid = (await call(source, "about"))["pid"]
        with pytest.raises(ToolError, match="took longer"):
            await bounded(lambda: source.call("hang", {"file": str(file)}, call_id="c"), 0.2, "hang")
        await until(lambda: source._connection._probe_task is not None and source._connection._probe_task.done())
        assert (await call(source, "about"))["pid"] == pid
    assert "no longer answers" not in caplog.text


async def test_arguments_that_json_cannot_hold_end_no_connection() -> None:
    async with McpSource("s", STDIO) as source:
        pid = (await call(source, "about"))["pid"]
        with pytest.raises(ToolError, match="cannot be sent as JSON") as raised:
            await call(source, "text", value="\ud800")
        assert not raised.value.sent
        assert await call(source, "add", a=2**64, b=2**53 + 1) == {"sum": 2**64 + 2**53 + 1}
        assert (await call(source, "about"))["pid"] == pid


async def test_a_server_sees_no_environment_but_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GEMINI_API_KEY", "secret")
    monkeypatch.setenv("TOOLGRAFT_TOKEN", "secret")
    async with McpSource("s", STDIO.model_copy(update={"env": {"MINE": "yes"}})) as source:
        environment = (await call(source, "about"))["environment"]
    assert environment["MINE"] == "yes"
    assert environment.keys() <= {"MINE", "HOME", "LOGNAME", "PATH", "SHELL", "TERM", "USER", "LC_CTYPE"}


async def test_the_configuration_selects_and_names_tools(tmp_path: Path) -> None:
    server = {
        "command": sys.executable,
        "args": [SCRIPT, "stdio"],
        "prefix": "p_",
        "tools": ["add"],
        "rules": {"add": {"timeout": 3}},
    }
    path = tmp_path / "mcp.json"
    path.write_text(json.dumps({"mcpServers": {"s": server}}))
    async with Combined(load(path)) as source:
        (tool,) = await source.list_tools()
        assert (tool.name, tool.rules.timeout) == ("p_add", 3)
        assert await source.call("p_add", {"a": 1, "b": 2}, call_id="c") == {"sum": 3}


async def test_names_that_are_no_tools_are_an_error_at_the_start() -> None:
    server = STDIO.model_copy(update={"tools": Selection(include=["other"])})
    with pytest.raises(SourceError, match=r"MCP server 's': tools\.include names 'other'"):
        await McpSource("s", server).__aenter__()


async def test_closing_that_is_cancelled_ends_the_process_first() -> None:
    source = McpSource("s", STDIO)
    async with source:
        pid = (await call(source, "about"))["pid"]
        closing = asyncio.ensure_future(source.__aexit__(None, None, None))
        for _ in range(3):
            await asyncio.sleep(0)
            closing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await closing
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


async def test_closing_that_fails_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    async def fails() -> None:
        raise RuntimeError("oh")

    source = McpSource("s", STDIO)
    monkeypatch.setattr(source._connection, "close", fails)
    with pytest.raises(RuntimeError, match="oh"):
        await source.__aexit__(None, None, None)


async def test_a_tool_that_cannot_be_used_is_left_out_with_a_warning_whenever_it_is_listed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    server = STDIO.model_copy(update={"args": [SCRIPT, "stdio", "no spaces"]})
    async with McpSource("s", server) as source:
        assert await names(source) == TOOLS
        changed = asyncio.Event()
        source.changed = changed.set
        await call(source, "grow", tool="grown")
        await asyncio.wait_for(changed.wait(), 5)
        changed.clear()
        await call(source, "grow", tool="neither this")
        await call(source, "grow", tool="last")
        await asyncio.wait_for(changed.wait(), 5)
        assert [name for name in await names(source) if name not in TOOLS] == ["grown", "last"]
    messages = [record.getMessage() for record in caplog.records if record.name.startswith("addon.")]
    assert [words.partition("; ")[0][:70] for words in messages] == [
        "MCP server 's': the tool 'no spaces' is left out: name is 'no spaces'"[:70],
        "MCP server 's': the tool 'neither this' is left out: name is 'neither this'"[:70],
    ]


@pytest.mark.parametrize(
    ("server", "words"),
    [
        (Server(command="there-is-no-such-program"), "No such file or directory: there-is-no-such-program"),
        (Server(command=sys.executable, args=["-c", "print('hello')"]), "Connection closed"),
        (Server(command=sys.executable, args=["-c", "import sys; sys.stdin.read()"]), "it is starting"),
    ],
    ids=["no program", "no server", "says nothing"],
)
async def test_a_server_that_does_not_come_up_is_a_warning(
    server: Server, words: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG):
        async with asyncio.timeout(10), McpSource("s", server, start_timeout=0.5) as source:
            assert await names(source) == []
    warnings = [record.getMessage() for record in caplog.records if record.name.startswith("addon.")]
    assert len(warnings) == 1
    assert words in warnings[0]
    assert not [record for record in caplog.records if record.levelno > logging.WARNING]


async def test_a_server_that_stays_down_is_an_error_at_once(until: Callable[..., Any]) -> None:
    source = McpSource("s", STDIO)
    async with source:
        pid = (await call(source, "about"))["pid"]
        source._connection.server = Server(command="there-is-no-such-program")
        os.kill(pid, signal.SIGKILL)
        errors = []
        async with asyncio.timeout(15):
            for _ in range(4):
                with pytest.raises(ToolError) as raised:
                    await source.call("add", {"a": 1, "b": 2}, call_id="c")
                errors.append(raised.value)
    assert all(error.retryable for error in errors)
    assert not errors[-1].sent
    assert "is down: No such file or directory: there-is-no-such-program" in str(errors[-1])


async def test_closing_ends_calls_that_wait() -> None:
    source = McpSource(
        "s", Server(command=sys.executable, args=["-c", "import sys; sys.stdin.read()"]), start_timeout=0.1
    )
    await source.__aenter__()
    waiting = asyncio.ensure_future(source._connection.client())
    await asyncio.sleep(0)
    await source.__aexit__(None, None, None)
    with pytest.raises(ToolError, match="is down: it is closed"):
        await asyncio.wait_for(waiting, 5)


async def test_a_line_that_is_too_long_ends_the_connection_and_another_one_begins(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with McpSource("s", STDIO, bounds=McpBounds(line=100_000)) as source:
        assert await call(source, "text", value="x" * 50_000)
        with pytest.raises(ToolError, match="MCP server 's'"):
            await call(source, "text", value="x" * 300_000)
        assert await eventually(source) == {"sum": 3}
    assert "a line of more than 100000 bytes (graft_max_line)" in caplog.text


# --- restarts -------------------------------------------------------------------------------------------------------


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A restart is waited for, however busy the machine is."""
    monkeypatch.setattr(mcp_servers, "RESTART_TIMEOUT", 60.0)


async def restarted(source: McpSource, name: str = "s") -> bool:
    async with asyncio.timeout(90):
        return await source.restart(name)


@pytest.mark.usefixtures("patient")
async def test_a_server_that_has_just_been_started_is_left_to_its_start() -> None:
    async with McpSource("s", STDIO, start_timeout=0.0) as source:
        before = source._connection._attempts
        assert await restarted(source)
        (state,) = source.server_states()
        assert (state.is_up, source._connection._attempts - before) in [(True, 0), (True, 1)]


@pytest.mark.usefixtures("patient")
async def test_a_restart_is_another_process_and_ends_calls_in_progress(tmp_path: Path, until: Any) -> None:
    file = tmp_path / "notes"
    async with McpSource("s", STDIO) as source:
        pid = (await call(source, "about"))["pid"]
        hanging = asyncio.ensure_future(call(source, "hang", file=str(file)))
        await until(lambda: lines(file) == ["started"])
        assert not await restarted(source, "another")
        assert (await call(source, "about"))["pid"] == pid
        assert await restarted(source)
        with pytest.raises(ToolError):
            await hanging
        (state,) = source.server_states()
        assert (state.is_up, state.tools, state.error, state.last_error) == (True, len(TOOLS), None, None)
        assert (await call(source, "about"))["pid"] != pid
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


@pytest.mark.usefixtures("patient")
async def test_a_server_that_hangs_is_restarted_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mcp_connection, "_CLOSE_TIMEOUT", 0.5)
    async with McpSource("s", STDIO) as source:
        pid = (await call(source, "about"))["pid"]
        os.kill(pid, signal.SIGSTOP)
        assert await restarted(source)
        assert (await call(source, "about"))["pid"] != pid


@pytest.mark.usefixtures("patient")
async def test_a_restart_does_not_wait_for_the_pause_after_a_failure() -> None:
    async with McpSource("s", Server(command="there-is-no-such-program"), start_timeout=5) as source:
        connection = source._connection
        before = connection._attempts
        assert await restarted(source)
        assert connection._attempts > before
        (state,) = source.server_states()
        assert not state.is_up
        assert state.error == state.last_error
        assert "No such file or directory: there-is-no-such-program" in str(state.error)
        assert state.last_error_at is not None
        connection.server = STDIO
        assert await restarted(source)
        (state,) = source.server_states()
        assert (state.is_up, state.error) == (True, None)
        assert "there-is-no-such-program" in str(state.last_error)
        assert await call(source, "add", a=1, b=2) == {"sum": 3}


@pytest.mark.usefixtures("patient")
async def test_a_server_that_is_starting_is_started_anew(until: Any) -> None:
    silent = Server(command=sys.executable, args=["-c", "import sys; sys.stdin.read()"])
    async with McpSource("s", silent, start_timeout=0.1) as source:
        await until(lambda: source._connection._watch.has_streams)
        source._connection.server = STDIO
        assert await restarted(source)
        (state,) = source.server_states()
        assert (state.is_up, state.last_error) == (True, None)


async def test_the_end_of_a_server_is_its_last_error() -> None:
    async with McpSource("s", STDIO) as source:
        os.kill((await call(source, "about"))["pid"], signal.SIGKILL)
        assert await eventually(source) == {"sum": 3}
        (state,) = source.server_states()
        assert (state.is_up, state.last_error) == (True, "the connection has ended")


async def test_a_closed_server_is_not_restarted() -> None:
    source = McpSource("s", STDIO)
    async with source:
        pass
    assert await restarted(source)
    assert [state.is_up for state in source.server_states()] == [False]


@pytest.mark.usefixtures("patient")
async def test_a_restart_reaches_the_server_below_prefixes_and_others(tmp_path: Path) -> None:
    path = tmp_path / "mcp.json"
    server = {"command": sys.executable, "args": [SCRIPT, "stdio"]}
    path.write_text(json.dumps({"mcpServers": {"a": server | {"prefix": "a_"}, "b": server | {"prefix": "b_"}}}))

    async def pid(name: str) -> Any:
        return (await combined.call(name, {}, call_id="c"))["pid"]

    async with Combined(load(path)) as combined:
        before = await pid("a_about"), await pid("b_about")
        async with asyncio.timeout(90):
            assert await combined.restart("b")
            assert not await combined.restart("c")
        assert await pid("a_about") == before[0]
        assert await pid("b_about") != before[1]
