"""One frozen `Settings`, and the one table of the options that it is made from.

The table is what mitmproxy registers, what the README lists and what `Settings` is checked against. Nothing here
reads the environment but `state_folder`; nothing here imports mitmproxy.
"""

import difflib
import ipaddress
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, Self

import platformdirs
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from addon.core.egress import EgressRule, parse_rule
from addon.urls import base_url, is_origin, shown
from store.models import SESSION_FORM, SESSION_NAME, SessionName

OptionType = type[str] | type[int] | type[bool] | type[Sequence[str]]


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


def state_folder(configured: str = "") -> Path:
    """The folder of the database, the token and the running proxy's address: the one given, else TOOLGRAFT_HOME,
    else the user's state folder of the platform. Raises ValueError where the user has no home folder."""
    chosen = configured or os.environ.get("TOOLGRAFT_HOME") or platformdirs.user_state_dir("toolgraft")
    found = os.path.expanduser(chosen)
    if found.startswith("~"):
        raise ValueError(f"the state folder {chosen}: there is no home folder of this user")
    return Path(found)


def is_loopback(host: str) -> bool:
    """Whether a host name or address literal can only mean this machine."""
    host = host.strip("[]").rstrip(".").lower()
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def is_host_name(text: str) -> bool:
    """Whether this is a host name alone: no scheme, port or path."""
    return bool(text) and set(text.lower()) <= set("abcdefghijklmnopqrstuvwxyz0123456789.-")


class Redirect(NamedTuple):
    host: str
    scheme: str
    to_host: str
    to_port: int
    path: str


class SessionAccess(NamedTuple):
    """Who shares a session with the user of its name; `*` among the users for everyone."""

    session: str
    users: frozenset[str]


Seconds = Annotated[float, Field(ge=0, le=3600, allow_inf_nan=False)]


class Settings(BaseModel):
    """The proxy's options, parsed and checked. Field names are the options' names without `graft_`."""

    model_config = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=True)

    session: SessionName = "default"
    client_tools: Literal["strip", "keep"] = "strip"
    delivery: Literal["auto", "placeholder", "loop", "passthrough"] = "auto"
    on_pending: Literal["pass", "wait", "block"] = "pass"
    pending_timeout: Seconds = 30.0
    placeholder: str = "Tool call completed: {names} [{turn_id}]"
    tools: tuple[str, ...] = ()
    mcp: tuple[str, ...] = ()
    mcp_pin: Literal["on", "off"] = "on"
    max_rounds: Annotated[int, Field(ge=1, le=100)] = 10
    parallel: Annotated[int, Field(ge=1, le=64)] = 8
    max_calls: Annotated[int, Field(ge=1, le=10_000)] = 128
    max_args: Annotated[int, Field(ge=1024)] = 4 * 1024 * 1024
    max_answer: Annotated[int, Field(ge=1024)] = 64 * 1024 * 1024
    max_event: Annotated[int, Field(ge=1024)] = 32 * 1024 * 1024
    tool_timeout: Annotated[float, Field(gt=0, le=3600, allow_inf_nan=False)] = 30.0
    approval_timeout: Annotated[float, Field(ge=0, le=86400, allow_inf_nan=False)] = 300.0
    retry_window: Seconds = 60.0
    keepalive: Seconds = 10.0
    drain_timeout: Seconds = 5.0
    stream: Literal["on", "off"] = "on"
    filter: str = ""
    redirect: tuple[Redirect, ...] = ()
    upstream: str = "https://generativelanguage.googleapis.com"
    control: tuple[str, int] | None = ("127.0.0.1", 8741)
    token: str = Field(default="", repr=False)
    allow_origins: tuple[str, ...] = ()
    allow_hosts: tuple[str, ...] = ()
    egress: tuple[EgressRule, ...] = ()
    session_access: tuple[SessionAccess, ...] = ()
    store: str = ""
    durability: Literal["power", "process"] = "power"
    state: Path = Field(default_factory=state_folder)
    ttl: Annotated[float, Field(ge=60, allow_inf_nan=False)] = 7 * 24 * 3600.0
    on_store_error: Literal["fail", "pass"] = "fail"
    max_tools: Annotated[int, Field(ge=1, le=100_000)] = 1000
    max_tool: Annotated[int, Field(ge=1024)] = 262_144
    max_line: Annotated[int, Field(ge=1024)] = 4 * 1024 * 1024
    max_connections: Annotated[int, Field(ge=8)] = 4096
    max_headers: Annotated[int, Field(ge=1024)] = 65536
    header_timeout: Annotated[float, Field(gt=0, le=3600, allow_inf_nan=False)] = 10.0
    max_body: Annotated[int, Field(ge=1024)] = 64 * 1024 * 1024
    record: str = ""

    @classmethod
    def from_options(cls, options: Mapping[str, Any]) -> Self:
        """From the options by their full names. Raises ValidationError; `explain` puts it in words."""
        values = {o.name.removeprefix("graft_"): options[o.name] for o in OPTIONS if o.name in options}
        return cls.model_validate(values)

    def may_use(self, user: str, session: str) -> bool:
        """Whether a user who has signed in may use a session: the one of that name, and those that are shared."""
        return user == session or any(
            session == shared.session and not shared.users.isdisjoint((user, "*")) for shared in self.session_access
        )

    @property
    def store_url(self) -> str:
        return self.store or f"sqlite:///{self.state / 'toolgraft.db'}"

    @field_validator("tools", "mcp")
    @classmethod
    def _files(cls, paths: tuple[str, ...]) -> tuple[str, ...]:
        if "" in paths:
            raise ValueError("must be the path of a file")
        return paths

    @field_validator("placeholder")
    @classmethod
    def _placeholder_is_recognisable(cls, text: str) -> str:
        if text.count("{turn_id}") != 1:
            raise ValueError("must hold {turn_id} exactly once: the turn is found again by it")
        rest = text.replace("{turn_id}", "").replace("{names}", "")
        if "{" in rest or "}" in rest or text.count("{names}") > 1:
            raise ValueError("may hold {turn_id} and {names}, and no other braces")
        if sum(character.isalpha() for character in rest) < 3:
            raise ValueError("must have words of its own, of three letters or more, beside {turn_id} and {names}")
        return text

    @field_validator("redirect", mode="before")
    @classmethod
    def _parse_redirects(cls, values: Sequence[Any]) -> tuple[Redirect, ...]:
        return tuple(v if isinstance(v, Redirect) else parse_redirect(v) for v in values)

    @field_validator("egress", mode="before")
    @classmethod
    def _parse_egress(cls, values: Sequence[Any]) -> tuple[EgressRule, ...]:
        return tuple(v if isinstance(v, EgressRule) else parse_rule(v) for v in values)

    @field_validator("session_access", mode="before")
    @classmethod
    def _parse_access(cls, values: Sequence[Any]) -> tuple[SessionAccess, ...]:
        return tuple(v if isinstance(v, SessionAccess) else parse_session_access(v) for v in values)

    @field_validator("upstream")
    @classmethod
    def _upstream_is_a_base_url(cls, url: str) -> str:
        base_url(url)
        return url.rstrip("/")

    @field_validator("control", mode="before")
    @classmethod
    def _parse_control(cls, value: Any) -> Any:
        if not isinstance(value, str):
            return value
        if value == "off":
            return None
        host, colon, port = value.rpartition(":")
        if not colon or not host or not port.isascii() or not port.isdigit() or int(port) > 65535:
            raise ValueError("must be host:port (127.0.0.1:8741, [::1]:8741, port 0 for a free one) or `off`")
        return host.strip("[]"), int(port)

    @field_validator("token")
    @classmethod
    def _token_is_sendable(cls, token: str) -> str:
        if token and (not token.isascii() or not token.isprintable() or " " in token):
            raise ValueError("must be printable ASCII without spaces")
        return token

    @field_validator("allow_origins")
    @classmethod
    def _origins(cls, origins: tuple[str, ...]) -> tuple[str, ...]:
        for origin in origins:
            if not is_origin(origin):
                raise ValueError(f"{shown(origin)} must be an origin such as https://app.example:8443, without a path")
        return tuple(origin.lower() for origin in origins)

    @field_validator("allow_hosts")
    @classmethod
    def _hosts(cls, hosts: tuple[str, ...]) -> tuple[str, ...]:
        for host in hosts:
            if not is_host_name(host):
                raise ValueError(f"{shown(host)} must be a plain host name, without scheme, port or path")
        return tuple(host.lower() for host in hosts)

    @field_validator("state", mode="before")
    @classmethod
    def _state(cls, value: Any) -> Any:
        return state_folder(value) if isinstance(value, str) else value

    @field_validator("*", mode="before")
    @classmethod
    def _no_nul(cls, value: Any) -> Any:
        """The last of the validators here, which pydantic calls first."""
        texts = value if isinstance(value, list | tuple) else [value]
        if any(isinstance(text, str) and "\0" in text for text in texts):
            raise ValueError("must not hold a NUL character")
        return value

    @model_validator(mode="after")
    def _no_open_door(self) -> Self:
        if self.token == "off" and self.control is not None and not is_loopback(self.control[0]):
            raise ValueError(
                f"graft_token: `off` fits only a loopback graft_control, and {self.control[0]} is not loopback"
            )
        return self


def parse_redirect(text: str) -> Redirect:
    """`HOST=URL` with an http or https URL. Raises ValueError."""
    host, equals, url = text.partition("=")
    if not equals:
        raise ValueError(f"{shown(text)} must be HOST=URL, such as {_EXAMPLE}")
    if not is_host_name(host):
        raise ValueError(f"{shown(text)}: {shown(host)} must be a plain host name, without scheme, port or path")
    try:
        parts = base_url(url)
    except ValueError as error:
        raise ValueError(f"{shown(text)}: the URL {error}") from None
    assert parts.hostname is not None
    return Redirect(
        host.lower(),
        parts.scheme,
        parts.hostname,
        parts.port or (443 if parts.scheme == "https" else 80),
        parts.path.rstrip("/"),
    )


def parse_session_access(text: str) -> SessionAccess:
    """`SESSION=USER,USER` or `SESSION=*`. Raises ValueError."""
    session, _, users = text.partition("=")
    named = frozenset(user.strip() for user in users.split(","))
    if not SESSION_NAME.fullmatch(session) or "" in named:
        raise ValueError(f"{text!r} must be SESSION=USER,USER, or SESSION=* for all users; a session is {SESSION_FORM}")
    return SessionAccess(session, named)


_EXAMPLE = "generativelanguage.googleapis.com=http://127.0.0.1:9912"

_FITS = {
    "session": SESSION_FORM,
    "max_tools": "a number from 1 to 100000",
    "max_tool": "a number of bytes, 1024 or more",
    "max_line": "a number of bytes, 1024 or more",
    "max_connections": "a number, 8 or more",
    "max_headers": "a number of bytes, 1024 or more",
    "header_timeout": "a number of seconds, more than 0 and at most 3600",
    "max_body": "a number of bytes, 1024 or more",
    "ttl": "a number of seconds, 60 or more",
    "pending_timeout": "a number of seconds from 0 to 3600",
    "max_rounds": "a number from 1 to 100",
    "parallel": "a number from 1 to 64",
    "max_calls": "a number from 1 to 10000",
    "max_args": "a number of bytes, 1024 or more",
    "max_answer": "a number of bytes, 1024 or more",
    "max_event": "a number of bytes, 1024 or more",
    "tool_timeout": "a number of seconds, more than 0 and at most 3600",
    "approval_timeout": "a number of seconds from 0 to 86400",
    "retry_window": "a number of seconds from 0 to 3600",
    "keepalive": "a number of seconds from 0 to 3600",
    "drain_timeout": "a number of seconds from 0 to 3600",
}


def parse_options(texts: Sequence[str]) -> dict[str, Any]:
    """Options by their full names, of texts as `--set` takes them: `graft_NAME=VALUE`. Raises ValueError."""
    values: dict[str, Any] = {}
    for text in texts:
        name, _, value = text.partition("=")
        option = next((o for o in OPTIONS if o.name == name), None)
        if option is None:
            raise ValueError(unknown_option(name))
        values[name] = value if option.typespec is str else [*values.get(name, ()), value]
    return values


def unknown_option(name: str) -> str:
    """What is said of an option that there is not."""
    near = difflib.get_close_matches(name, [o.name for o in OPTIONS], 1)
    return f"{name}: there is no such option{f'; did you mean {near[0]}?' if near else ''}"


def explain(error: ValidationError) -> str:
    """The first mistake in plain words: the option, its value, and what fits."""
    first = error.errors()[0]
    message = first["msg"].removeprefix("Value error, ")
    if not first["loc"]:
        return message
    name = str(first["loc"][0])
    fits = _FITS.get(name)
    if fits is None and first["type"] == "literal_error":
        fits = "one of " + first["ctx"]["expected"].replace("'", "").replace(" or ", ", ")
    if isinstance(first["input"], str):
        name += f"={'(not shown)' if name == 'token' else shown(first['input'])}"
    return f"graft_{name}: {f'must be {fits}' if fits else message}"
