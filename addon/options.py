"""The table of the proxy's options. mitmproxy registers them, docs/options.md lists them, `Settings` parses their
values.

Nothing here imports mitmproxy.
"""

import difflib
from collections.abc import Sequence
from typing import Any, NamedTuple


class Option(NamedTuple):
    """One option of the proxy, set with `--set graft_NAME=VALUE`. `typespec` is a type that mitmproxy supports."""

    name: str
    typespec: Any
    default: Any
    help: str


OPTIONS: tuple[Option, ...] = (
    Option(
        "graft_config",
        str,
        "",
        "A toolgraft.toml, which sets other options, MCP servers and sessions. `toolgraft serve` finds it, or takes it "
        "from `--config FILE`.",
    ),
    Option(
        "graft_config_trusted",
        str,
        "off",
        "`on` uses `graft_config` only with the contents that `toolgraft trust` has recorded. `toolgraft serve` sets "
        "it for a file of the working folder.",
    ),
    Option(
        "graft_reload",
        str,
        "on",
        "`on` applies changes of tools files, MCP files and the toolgraft.toml while the proxy runs; `off` leaves them "
        "to the next SIGHUP or start.",
    ),
    Option("graft_session", str, "default", "The session of requests that do not name one."),
    Option(
        "graft_client_tools",
        str,
        "strip",
        "How to treat the client's own tools: `strip` removes them, `keep` adds the session's tools to them.",
    ),
    Option(
        "graft_delivery",
        str,
        "auto",
        "What the client gets when the model calls a grafted tool: `placeholder` (a text), `passthrough` (the call "
        "itself), `loop` (the proxy runs it and answers), `hold` (like `loop`, and the request waits for results by "
        "hand as well), or `auto`.",
    ),
    Option(
        "graft_on_pending",
        str,
        "pass",
        "How to treat a request that follows calls without results: `pass` sends it unchanged, `wait` "
        "waits for the results, `block` sends nothing and answers with the placeholder again.",
    ),
    Option("graft_pending_timeout", str, "30", "How many seconds `wait` waits (0 to 3600)."),
    Option(
        "graft_placeholder",
        str,
        "Tool call completed: {names} [{turn_id}]",
        "The text that replaces calls in the client's history. It must contain {turn_id}, by which the proxy "
        "recognises it; {names} are the tools' names; {status} is `requested` while a call is pending, else "
        "`completed`.",
    ),
    Option(
        "graft_tools",
        Sequence[str],
        (),
        "A Python file whose public functions are tools of every session. The proxy runs them. Repeatable.",
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
        "`on` holds back a tool of an MCP server if its description or schema has changed since it was first seen, "
        "until `toolgraft tools accept`; `off` does not.",
    ),
    Option(
        "graft_max_rounds",
        str,
        "10",
        "How many requests a tool loop may send upstream (1 to 100). The last one forbids calls.",
    ),
    Option("graft_parallel", str, "8", "How many calls of one loop may run at once (1 to 64)."),
    Option(
        "graft_max_calls",
        str,
        "128",
        "How many calls one step may have (1 to 10000). More are left out, and the model is told so.",
    ),
    Option(
        "graft_max_args",
        str,
        "4194304",
        "How many bytes the arguments of all calls of one step may have together (1024 or more). A call beyond the "
        "limit fails, and the model is told why.",
    ),
    Option(
        "graft_max_media",
        str,
        "10485760",
        "How many bytes the images, sounds and files of one result may have together, decoded (0 or more).",
    ),
    Option(
        "graft_max_answer",
        str,
        "67108864",
        "How many bytes an answer of the model may have after decompression (1024 or more). A longer one is an error.",
    ),
    Option(
        "graft_max_event",
        str,
        "33554432",
        "How many bytes one event of a stream may have, or one message of a Live connection (1024 or more). A longer "
        "one is an error.",
    ),
    Option("graft_tool_timeout", str, "30", "How many seconds a call may take (more than 0, at most 3600)."),
    Option(
        "graft_approval_timeout",
        str,
        "300",
        "How many seconds a call waits for its approval (0 to 86400).",
    ),
    Option(
        "graft_answer_timeout",
        str,
        "300",
        "How many seconds a call waits for its result by hand with `graft_delivery=hold`, unless its tool has a "
        "`timeout` (0 to 86400).",
    ),
    Option(
        "graft_retry_window",
        str,
        "60",
        "If an answer breaks off and the client repeats the request within so many seconds, the answer continues, and "
        "finished tools keep their results (0 to 3600); 0: never.",
    ),
    Option(
        "graft_keepalive",
        str,
        "10",
        "While a stream waits, for tools or before a retry, it gets an event that clients ignore every so many seconds "
        "(0 to 3600); 0: never.",
    ),
    Option(
        "graft_stream",
        str,
        "on",
        "`on` streams answers; `off` delivers whole answers, which the `response` hooks of scripts can change. Answers "
        "that a `modify_body` rule may match are always delivered whole.",
    ),
    Option(
        "graft_drain_timeout",
        str,
        "5",
        "How many seconds requests in flight have to finish when the proxy is told to stop (0 to 3600). New "
        "connections are refused meanwhile. A second signal ends the wait.",
    ),
    Option(
        "graft_fast",
        str,
        "on",
        "`on` calls addons' hooks faster than mitmproxy does, with the same result; `off` leaves that to mitmproxy.",
    ),
    Option(
        "graft_log",
        str,
        "toolgraft",
        "What mitmdump prints about requests to models: `toolgraft` prints one line for each request of a client, "
        "`mitmproxy` prints mitmproxy's own lines for it and for each request of a loop, `json` prints a JSON document "
        "for each request and for each line of the log.",
    ),
    Option("graft_filter", str, "", "A mitmproxy flow filter: only matching requests are grafted."),
    Option(
        "graft_redirect",
        Sequence[str],
        (),
        "HOST=URL: send the requests for a Gemini host to another base URL. Recordings keep the original URL. "
        "Repeatable.",
    ),
    Option(
        "graft_upstream",
        str,
        "https://generativelanguage.googleapis.com",
        "The base URL of the Gemini API that the front doors (/v1/responses, /v1/gemini) use.",
    ),
    Option(
        "graft_model_aliases",
        Sequence[str],
        (),
        "NAME=MODEL: at the front doors, this name stands for a Gemini model, for example gpt-5=gemini-3-flash. "
        "Repeatable.",
    ),
    Option(
        "graft_lenient",
        str,
        "off",
        "How /v1/responses treats what Gemini does not have: `off` refuses the request and names it, `on` leaves it "
        "out and lists it in the header x-graft-ignored of the answer.",
    ),
    Option(
        "graft_control",
        str,
        "127.0.0.1:8741",
        "The address of the control API, host:port; `off` disables it.",
    ),
    Option(
        "graft_token",
        str,
        "",
        "The control API's bearer token. Empty: the environment variable TOOLGRAFT_TOKEN, else a token that the first "
        "start creates in the state folder. `off` requires no token (loopback only).",
    ),
    Option(
        "graft_allow_origins",
        Sequence[str],
        (),
        "An origin, such as https://app.example, whose web pages may use the proxy and the control API. Repeatable.",
    ),
    Option(
        "graft_allow_hosts",
        Sequence[str],
        (),
        "A host name, besides localhost and IP addresses, by which clients may address the reverse proxy and the "
        "control API. Repeatable.",
    ),
    Option(
        "graft_egress",
        Sequence[str],
        (),
        "A host that HTTP tools may call, and that images and files in requests to /v1/responses may come from; all "
        "other hosts are then refused. Examples: tools.example, *.tools.example, 192.168.1.7, 10.0.0.0/8, `public`, "
        "`loopback`, each with or without :PORT. Empty: public hosts and, for tools, this machine, but no private or "
        "link-local addresses. The proxy's own ports are always refused. Repeatable.",
    ),
    Option(
        "graft_session_access",
        Sequence[str],
        (),
        "SESSION=USER,USER: further users who may use a session; `*` for all. It applies if users sign in (mitmproxy's "
        "`proxyauth`): a session then belongs to the user of the same name. Repeatable.",
    ),
    Option(
        "graft_store",
        str,
        "",
        "Where calls and turns are stored: sqlite:///PATH, memory:// or redis://HOST. "
        "Empty: toolgraft.db in the state folder.",
    ),
    Option(
        "graft_durability",
        str,
        "power",
        "What acknowledged writes of the control API survive: with `power`, a power failure, because acknowledgements "
        "wait for the disk; with `process`, only a crash of the process: a power failure may lose the last writes.",
    ),
    Option("graft_state", str, "", "The state folder. Empty: TOOLGRAFT_HOME, else the user's (XDG) state folder."),
    Option(
        "graft_cache_bytes",
        str,
        "25165824",
        "How many bytes of chats and sessions the proxy remembers, so that later requests take less time (1048576 or "
        "more). What was used least recently is forgotten.",
    ),
    Option(
        "graft_keep_requests",
        str,
        "100",
        "The bodies of how many requests are kept in memory, for the console and `toolgraft requests` (0 to 10000): as "
        "the client sent them, and as they went upstream. All together take at most 64 MiB.",
    ),
    Option("graft_ttl", str, "604800", "How many seconds records are kept (60 or more)."),
    Option(
        "graft_on_store_error",
        str,
        "fail",
        "What happens to a request if the store (or the proxy) fails: `fail` answers with the error 503 (or 500), "
        "`pass` forwards the request unchanged.",
    ),
    Option(
        "graft_max_tools",
        str,
        "1000",
        "How many tools of one MCP server are used (1 to 100000). More are left out, with a warning.",
    ),
    Option(
        "graft_max_tool",
        str,
        "262144",
        "How many bytes the description and schemas of an MCP server's tool may have (1024 or more). A larger tool is "
        "left out, with a warning.",
    ),
    Option(
        "graft_max_line",
        str,
        "16777216",
        "How many bytes a message of an MCP server may have (1024 or more). A longer one ends its connection.",
    ),
    Option(
        "graft_max_connections",
        str,
        "4096",
        "How many connections the control API may have at once (8 or more). Fewer if there are not enough file "
        "descriptors. Beyond it the longest idle one is closed for a new one.",
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
        "How many seconds the headers of a request to the control API may take (more than 0, at most 3600).",
    ),
    Option(
        "graft_max_body",
        str,
        "67108864",
        "How many bytes a request to the control API may have, and a compressed request to the model after "
        "decompression.",
    ),
    Option(
        "graft_record",
        str,
        "",
        "A file for recordings of grafted exchanges, in mitmproxy's format, without secrets.",
    ),
)


REMOVED: dict[str, str] = {
    "completion": "use `toolgraft --install-completion`, or `--show-completion` for the script",
    "store trust-clock": "records expire again a day after the clock jumped",
    "store move": "records cannot be moved to another store. Start with an empty one in graft_store; its tools and"
    " sessions come from toolgraft.toml. To copy a store, use `toolgraft backup`, or Redis's own backup",
    "--workers": "run several proxies on one Redis, each with its own state folder and ports (docs/scale.md)",
}
"""Replacements for removed options (`graft_NAME`), flags of `serve` (`--FLAG`) and commands (`WORD WORD`)."""


def parse_options(texts: Sequence[str]) -> dict[str, Any]:
    """Option values by full name, from texts in the form of `--set`: `graft_NAME=VALUE`. Raises ValueError."""
    values: dict[str, Any] = {}
    for text in texts:
        name, _, value = text.partition("=")
        option = next((o for o in OPTIONS if o.name == name), None)
        if option is None:
            raise ValueError(unknown_option(name))
        values[name] = value if option.typespec is str else [*values.get(name, ()), value]
    return values


def unknown_option(name: str) -> str:
    if gone := removed(name):
        return f"{name} {gone}"
    near = difflib.get_close_matches(name, [o.name for o in OPTIONS], 1)
    return f"{name}: there is no such option{f'; did you mean {near[0]}?' if near else ''}"


def removed(name: str) -> str:
    """The end of an error message about a removed option or command; "" for any other name."""
    return f"was removed: {REMOVED[name]}" if name in REMOVED else ""


def check_command_line(words: Sequence[str]) -> None:
    """Raises ValueError if the arguments of `toolgraft` contain a removed command or flag of `serve`."""
    names = [" ".join(words[:count]) for count in (1, 2)]
    if words[:1] == ["serve"]:
        names += [word.partition("=")[0] for word in words[1:] if word.startswith("--")]
    for name in names:
        if gone := removed(name):
            raise ValueError(f"{name} {gone}")
