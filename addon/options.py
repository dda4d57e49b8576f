"""The table of the proxy's options: mitmproxy registers it, the README lists it, `Settings` parses its values.

Nothing here imports mitmproxy.
"""

import difflib
from collections.abc import Sequence
from typing import Any, NamedTuple


class Option(NamedTuple):
    """One option of the proxy: `--set graft_NAME=VALUE`. Types are those mitmproxy knows."""

    name: str
    typespec: Any
    default: Any
    help: str


OPTIONS: tuple[Option, ...] = (
    Option("graft_session", str, "default", "The session of requests that name none."),
    Option(
        "graft_client_tools",
        str,
        "strip",
        "What becomes of the client's own tools: `strip` removes them, `keep` adds the session's tools to them.",
    ),
    Option(
        "graft_delivery",
        str,
        "auto",
        "What the client gets when the model calls a grafted tool: `placeholder` (a text), `passthrough` (the call "
        "itself), `loop` (the proxy runs it and answers), or `auto`.",
    ),
    Option(
        "graft_on_pending",
        str,
        "pass",
        "What happens to a request whose last step has calls without results: `pass` sends it as it stands, `wait` "
        "waits for the results, `block` answers with the placeholder again and sends nothing.",
    ),
    Option("graft_pending_timeout", str, "30", "How long `wait` waits, in seconds (0 to 3600)."),
    Option(
        "graft_placeholder",
        str,
        "Tool call completed: {names} [{turn_id}]",
        "The text that stands in the client's history for calls. Holds {turn_id}, by which it is found again; "
        "{names} are the tools' names.",
    ),
    Option(
        "graft_tools",
        Sequence[str],
        (),
        "A Python file whose public functions are tools of every session, run by the proxy. Repeatable.",
    ),
    Option(
        "graft_mcp",
        Sequence[str],
        (),
        "A JSON file of MCP servers (`mcpServers`) whose tools are tools of every session. Repeatable.",
    ),
    Option(
        "graft_mcp_pin",
        str,
        "on",
        "Whether a tool of an MCP server whose description or schema has changed since it was first seen is held back "
        "until `toolgraft tools accept`: `on`, or `off`.",
    ),
    Option(
        "graft_max_rounds",
        str,
        "10",
        "How many requests a tool loop sends upstream at most (1 to 100); the last one forbids calls.",
    ),
    Option("graft_parallel", str, "8", "How many calls of one loop run at once (1 to 64)."),
    Option(
        "graft_max_calls",
        str,
        "128",
        "How many calls of one step are taken (1 to 10000); the model is told that the others were left out.",
    ),
    Option(
        "graft_max_args",
        str,
        "4194304",
        "How many bytes the arguments of one step's calls may have together (1024 or more); beyond them a call fails, "
        "and the model is told why.",
    ),
    Option(
        "graft_max_answer",
        str,
        "67108864",
        "How many bytes an answer of the model's may have, decompressed (1024 or more); a longer one is an error.",
    ),
    Option(
        "graft_max_event",
        str,
        "33554432",
        "How many bytes one event of a stream may have (1024 or more); a longer one is an error.",
    ),
    Option("graft_tool_timeout", str, "30", "How long a call may take, in seconds (more than 0, at most 3600)."),
    Option(
        "graft_approval_timeout",
        str,
        "300",
        "How long a call that needs approval waits for it, in seconds (0 to 86400).",
    ),
    Option(
        "graft_retry_window",
        str,
        "60",
        "For how many seconds a request that is sent again goes on where its answer broke off, and keeps the results "
        "of its tools (0 to 3600); 0: never.",
    ),
    Option(
        "graft_keepalive",
        str,
        "10",
        "After how many seconds of waiting for tools a stream is sent an event that clients ignore; 0: never.",
    ),
    Option(
        "graft_stream",
        str,
        "on",
        "Whether answers stream: `on`, or `off` for whole answers, which the `response` hooks of scripts can change. "
        "Answers that a `modify_body` rule may match come whole in any case.",
    ),
    Option(
        "graft_drain_timeout",
        str,
        "5",
        "How long requests in flight may take to finish when the proxy is told to end, in seconds (0 to 3600). New "
        "connections are refused meanwhile; a second signal ends the wait.",
    ),
    Option("graft_filter", str, "", "A mitmproxy flow filter: only requests that match it are grafted at all."),
    Option(
        "graft_redirect",
        Sequence[str],
        (),
        "HOST=URL: send the requests for a Gemini host to another base URL; recorded URLs stay true. Repeatable.",
    ),
    Option(
        "graft_upstream",
        str,
        "https://generativelanguage.googleapis.com",
        "Where the front doors (/v1/responses, /v1/gemini) send their requests: the base URL of a Gemini API.",
    ),
    Option(
        "graft_control",
        str,
        "127.0.0.1:8741",
        "Where the control API listens, host:port; `off` for none.",
    ),
    Option(
        "graft_token",
        str,
        "",
        "The control API's bearer token; empty: the one in the environment variable TOOLGRAFT_TOKEN, else one that is "
        "made at the first start and kept in the state folder. `off` asks for none (loopback only).",
    ),
    Option(
        "graft_allow_origins",
        Sequence[str],
        (),
        "An origin (https://app.example) whose web pages may use the proxy and the control API. Repeatable.",
    ),
    Option(
        "graft_allow_hosts",
        Sequence[str],
        (),
        "A host name besides localhost and plain IP addresses under which clients may address the reverse proxy and "
        "the control API. Repeatable.",
    ),
    Option(
        "graft_egress",
        Sequence[str],
        (),
        "A host that HTTP tools may call, and then no other: tools.example, *.tools.example, 192.168.1.7, 10.0.0.0/8, "
        "`public`, `loopback`, each with :PORT or without. Empty: public hosts and this machine, but no private or "
        "link-local addresses. The proxy's own ports never. Repeatable.",
    ),
    Option(
        "graft_session_access",
        Sequence[str],
        (),
        "SESSION=USER,USER: users besides its own who may use a session; `*` for all. It counts where users sign in "
        "(mitmproxy's `proxyauth`): there a session belongs to the user of its name. Repeatable.",
    ),
    Option(
        "graft_store",
        str,
        "",
        "Where calls and turns are kept: sqlite:///PATH or memory://; empty: toolgraft.db in the state folder.",
    ),
    Option(
        "graft_durability",
        str,
        "power",
        "What the control API's acknowledgements survive: `power` waits until the disk has what they tell of, "
        "`process` does not, and a power failure may take the last of it.",
    ),
    Option("graft_state", str, "", "The state folder; empty: TOOLGRAFT_HOME, else the user's own (XDG) one."),
    Option("graft_ttl", str, "604800", "How long records are kept, in seconds (60 or more)."),
    Option(
        "graft_on_store_error",
        str,
        "fail",
        "What a client gets when the store fails, or the proxy itself with a request: `fail` answers with an error "
        "(503, or 500), `pass` forwards the request untouched.",
    ),
    Option(
        "graft_max_tools",
        str,
        "1000",
        "How many tools of one MCP server are taken (1 to 100000); the others are left out, with a warning.",
    ),
    Option(
        "graft_max_tool",
        str,
        "262144",
        "How many bytes a tool of an MCP server may have, description and schemas (1024 or more); a larger one is left "
        "out, with a warning.",
    ),
    Option(
        "graft_max_line",
        str,
        "4194304",
        "How many bytes a message of an MCP server may have (1024 or more); a longer one ends its connection.",
    ),
    Option(
        "graft_max_connections",
        str,
        "4096",
        "How many connections the control API's port may have at once, and all ports of the proxy together (8 or "
        "more); fewer where there are not enough file descriptors.",
    ),
    Option(
        "graft_max_headers",
        str,
        "65536",
        "How many bytes the headers of a request to the control API may have (1024 or more).",
    ),
    Option(
        "graft_header_timeout",
        str,
        "10",
        "How long the headers of a request to the control API may take, in seconds (more than 0, at most 3600).",
    ),
    Option(
        "graft_max_body",
        str,
        "67108864",
        "The largest body that the control API takes, in bytes, and what a compressed request to the model may hold.",
    ),
    Option(
        "graft_record",
        str,
        "",
        "A file to write grafted exchanges to, in mitmproxy's format, without secrets.",
    ),
)


def parse_options(texts: Sequence[str]) -> dict[str, Any]:
    """Option values by full name, from texts as `--set` takes them: `graft_NAME=VALUE`. Raises ValueError."""
    values: dict[str, Any] = {}
    for text in texts:
        name, _, value = text.partition("=")
        option = next((o for o in OPTIONS if o.name == name), None)
        if option is None:
            raise ValueError(unknown_option(name))
        values[name] = value if option.typespec is str else [*values.get(name, ()), value]
    return values


def unknown_option(name: str) -> str:
    """Error message for an unknown option."""
    near = difflib.get_close_matches(name, [o.name for o in OPTIONS], 1)
    return f"{name}: there is no such option{f'; did you mean {near[0]}?' if near else ''}"
