"""The start message: the proxy's addresses, and how to point a client at each."""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from mitmproxy.proxy.mode_specs import RegularMode, ReverseMode

from addon.core.summaries import shortened
from addon.hooks.runtime import Runtime
from addon.hooks.tool_overview import tool_groups, tool_rows
from addon.loop.executors import Executors
from store.models import Session

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
