"""What the proxy shows when it starts: the MCP servers that are still coming up, then its addresses, how to point a
client at each, and the tools."""

import asyncio
import contextlib
import itertools
import logging
import shutil
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from mitmproxy import ctx
from mitmproxy.proxy.mode_specs import RegularMode, ReverseMode

from addon.core.framing.documents import Document
from addon.core.summaries import shortened
from addon.graft.session_config import shared_with
from addon.hooks.runtime import Runtime
from addon.loop.executors import Executors
from addon.tools.base import ToolSource
from store.models import Session, ToolRules, Toolset

_LONGEST_TOOL_NAME = 128
_LONGEST_SOURCE = 120
_OWN = "the session"
_MOST_NAMES = 20
"""The most tools that are named."""


class ToolRow(NamedTuple):
    name: str
    source: str
    run_by: str
    description: str


def tool_rows(toolset: Toolset | None, shared: Sequence[Document], executors: Executors) -> list[ToolRow]:
    """The session's own tools, then the proxy's tools that it has too (`shared`)."""
    rows: list[ToolRow] = []
    for declaration in toolset.declarations if toolset is not None else ():
        rules = toolset.rules.get(str(declaration["name"]), ToolRules()) if toolset is not None else ToolRules()
        rows.append(_tool_row(declaration, _OWN, _handler(rules) + (", after an approval" if rules.approval else "")))
    for declaration in shared_with(toolset, shared):
        name, source = str(declaration["name"]), executors.source
        tool = executors.tools.get(name)
        approval = ", after an approval" if tool is not None and tool.rules.approval else ""
        rows.append(
            _tool_row(declaration, "" if source is None else source.name_of(name), f"run by the proxy{approval}")
        )
    return rows


def tool_groups(rows: Sequence[ToolRow]) -> Iterator[str]:
    """One line for the tools of each source that are run in the same way."""
    groups: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        groups.setdefault((row.source, row.run_by), []).append(row.name)
    for (source, run_by), names in groups.items():
        more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
        where = run_by if source == _OWN else f"{source}, {run_by}"
        yield f"{where}: {', '.join(names[:_MOST_NAMES])}{more}"


def _tool_row(declaration: Document, source: str, run_by: str) -> ToolRow:
    name, description = str(declaration["name"]), str(declaration.get("description", ""))
    return ToolRow(
        shortened(name, _LONGEST_TOOL_NAME), shortened(source, _LONGEST_SOURCE), run_by, shortened(description, 100)
    )


def _handler(rules: ToolRules) -> str:
    executor = rules.executor
    if executor is None:
        return "answered by hand"
    if executor.type == "worker":
        return "run by workers"
    return f"run by {shortened(urlsplit(executor.url or '').hostname or 'HTTP', _LONGEST_SOURCE)}"


logger = logging.getLogger("toolgraft")

_PAUSE = 0.1
_QUICK = 0.3
"""Seconds within which most servers start. Nothing is shown before."""
_FRAMES, _ASCII_FRAMES = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏", "|/-\\"
_ERASE = "\r\x1b[K"


@contextlib.asynccontextmanager
async def start_progress(source: ToolSource | None) -> AsyncIterator[None]:
    """Shows progress while the body starts this source."""
    if source is None or not source.server_states():
        yield
        return
    task = asyncio.ensure_future(_show(source))
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def _show(source: ToolSource) -> None:
    await asyncio.sleep(_QUICK)
    handler = _terminal_handler()
    if handler is None:
        down = _down(source)
        logger.info("%s coming up: %s", _subject(len(down)), ", ".join(down))
        return
    frames = _FRAMES if "utf" in (handler.file.encoding or "").lower() else _ASCII_FRAMES

    def draw(text: str) -> None:
        with contextlib.suppress(OSError):
            handler.file.write(text)
            handler.file.flush()

    def erase(record: logging.LogRecord) -> bool:
        draw(_ERASE)  # a line of the log takes its place
        return True

    handler.addFilter(erase)
    clock = asyncio.get_running_loop().time
    began = clock()
    try:
        for frame in itertools.cycle(frames):
            down = _down(source)
            seconds = f"{clock() - began + _QUICK:.0f} s"
            line = f"{frame} {_subject(len(down))} coming up, {seconds}: {', '.join(down)}"
            draw(f"{_ERASE}{line[: shutil.get_terminal_size().columns - 1]}")
            await asyncio.sleep(_PAUSE)
    finally:
        handler.removeFilter(erase)
        draw(_ERASE)


def _down(source: ToolSource) -> list[str]:
    return [shortened(state.name, _LONGEST_NAME) for state in source.server_states() if not state.is_up]


def _subject(number: int) -> str:
    return "an MCP server is" if number == 1 else f"{number} MCP servers are"


def _terminal_handler() -> Any:
    """The handler that writes mitmdump's log to a terminal; None if there is none."""
    termlog: Any = ctx.master.addons.get("termlog")
    if termlog is None or ctx.options.graft_log == "json":
        return None
    return termlog.logger if termlog.logger.has_vt_codes and termlog.logger.file.isatty() else None


_MOST_SESSIONS = 10
_LONGEST_NAME = 64


def addresses(servers: Iterable[Any]) -> dict[str, Any]:
    """The URLs of the open regular and reverse proxies, as clients on this machine write them."""
    found: dict[str, list[str]] = {"regular": [], "reverse": []}
    for server in servers:
        kind = {RegularMode: "regular", ReverseMode: "reverse"}.get(type(server.mode))
        if kind is None or not server.listen_addrs:
            continue
        host, port = server.listen_addrs[0][:2]
        host = {"0.0.0.0": "127.0.0.1", "::": "127.0.0.1"}.get(host, host)
        found[kind].append(f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}")
    return found


def ca_file(confdir: str) -> str:
    """The file of mitmproxy's CA. `confdir`: mitmproxy's option."""
    return str(Path(confdir).expanduser().absolute() / "mitmproxy-ca-cert.pem")


def banner(listening: dict[str, Any], runtime: Runtime, ca: str, sessions: Sequence[Session] = ()) -> Iterator[str]:
    """`ca`: the file of mitmproxy's CA. `sessions`: those in the store."""
    settings = runtime.settings
    yield "toolgraft is up."
    for url in listening["reverse"]:
        yield f"  Gemini at {url}, no CA needed:    export GOOGLE_GEMINI_BASE_URL={url}"
    for url in listening["regular"]:
        yield f"  proxy at {url}, with mitmproxy's CA:  export HTTPS_PROXY={url} SSL_CERT_FILE={ca}"
    if runtime.control_url is not None:
        token = "no token" if settings.token == "off" else "token: `./run_proxy.sh token` or `toolgraft token`"
        yield f"  control API at {runtime.control_url} ({token}), described at {runtime.control_url}/docs"
        yield f"  console at {_console(runtime)}"
        key = "" if runtime.has_gemini_key else " (no GEMINI_API_KEY is set: callers send x-goog-api-key)"
        doors = f"{runtime.control_url}/v1/responses, as OpenAI's, and {runtime.control_url}/v1/gemini"
        yield f"  front doors at {doors}{key}"
    yield from _tools(runtime.executors)
    yield from _sessions(runtime, sessions)
    if settings.config:
        yield f"  settings of {settings.config}"
    yield f"  session {settings.session}, store {settings.store_url}"


def _console(runtime: Runtime) -> str:
    """The console's URL, with a sign-in code if one is needed."""
    url = f"{runtime.control_url}/console"
    sessions = None if runtime.control is None else runtime.control.api.page_sessions
    if sessions is None:
        return url
    return f"{url}#{sessions.new_link()} (signs in once, within 15 minutes; `./run_proxy.sh console` prints another)"


def _tools(executors: Executors) -> Iterator[str]:
    """The tools that every session has, and the MCP servers, which may still come up."""
    if executors.source is None:
        return
    shared = [tool.declaration for tool in executors.tools.values()]
    if not shared and not executors.source.server_states():
        return
    yield "  tools of every session:" + ("" if shared else " none yet")
    for line in tool_groups(tool_rows(None, shared, executors)):
        yield f"    {line}"
    for server in executors.source.server_states():
        state = (
            f"is up, {server.tools} tools" if server.is_up else f"is down: {server.error or 'it is not started yet'}"
        )
        yield f"  MCP server {shortened(server.name, _LONGEST_NAME)} {state}"


def _sessions(runtime: Runtime, sessions: Sequence[Session]) -> Iterator[str]:
    """The sessions that have tools of their own."""
    found = [session for session in sessions if session.toolset is not None]
    for session in found[:_MOST_SESSIONS]:
        rows = tool_rows(session.toolset, (), runtime.executors)
        builtins = [kind for tool in session.toolset.builtins for kind in tool] if session.toolset is not None else []
        if not rows and not builtins:
            yield f"  session {session.name}: no tools, and clients keep none"
            continue
        yield f"  session {session.name}:"
        for line in tool_groups(rows):
            yield f"    {line}"
        if builtins:
            yield f"    run by Gemini: {', '.join(builtins)}"
    if len(found) > _MOST_SESSIONS:
        yield f"  and {len(found) - _MOST_SESSIONS} more sessions with tools: `./run_proxy.sh sessions`"
