"""The proxy's options as one model: their names, types, defaults and descriptions.

mitmproxy's options, the keys of toolgraft.toml and docs/options.md come from it (`addon.options`). Nothing here imports
mitmproxy.
"""

import enum
from collections.abc import Mapping
from functools import partial
from typing import Annotated, Any, Literal, Self, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator
from pydantic.fields import FieldInfo

from addon.setting_types import (
    Address,
    AddressOrOff,
    BaseUrl,
    Bytes,
    EgressRules,
    Files,
    Fits,
    HeaderNames,
    Hosts,
    ModelAliases,
    OnOff,
    OptionalText,
    OptionalToken,
    Origins,
    PlaceholderText,
    Redirects,
    Seconds,
    SessionAccesses,
    StateFolder,
    Unit,
)
from addon.state_folder import state_folder
from addon.urls import is_loopback, redacted
from store.budget import DEFAULT_LIMIT
from store.models import SESSION_FORM, Delivery, SessionName


class Group(enum.Enum):
    """The groups of options, with their headings in docs/options.md."""

    USUAL = "The twelve that most people need"
    CALLS = "Tools and calls"
    ANSWERS = "Requests and answers"
    DOORS = "Front doors and upstream"
    ACCESS = "Who may use what"
    RECORDS = "Records"
    RUN = "Start, reload and stop"
    LIMITS = "Limits of the control API and of MCP servers"


KIB, MIB = 1024, 1024 * 1024
_HOUR, _DAY = 3600, 24 * 3600


def _option(
    group: Group,
    default: Any,
    description: str,
    *,
    env: str = "",
    path: bool = False,
    fixed: bool = False,
    **field: Any,
) -> Any:
    """A field of `Settings`. `default`: the value, or a function that makes it. `env`: an environment variable that
    sets it as well. `path`: in a toolgraft.toml, it is relative to the file's folder. `fixed`: it cannot change while
    the proxy runs. `field`: limits, and other arguments of pydantic's `Field`."""
    extra: Any = {"group": group, "variable": env, "is_path": path, "is_fixed": fixed}
    made = {"default_factory": default} if callable(default) else {"default": default}
    return Field(description=description, json_schema_extra=extra, **made, **field)


_usual, _calls, _answers, _doors, _access, _records, _run, _limits = (partial(_option, group) for group in Group)


class Settings(BaseModel):
    """The proxy's options, parsed and checked. A field is an option without `graft_`, and a key of toolgraft.toml below
    [options]."""

    model_config = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=True)

    # --- the usual ones, also in the file of `toolgraft init` ---

    tools: Files = _usual((), "A Python file. Its public functions are tools of every session.", path=True, fixed=True)
    mcp: Files = _usual(
        (),
        "A JSON file with `mcpServers`. Their tools are tools of every session.",
        path=True,
        fixed=True,
    )
    client_tools: Literal["strip", "keep"] = _usual(
        "strip", "The client's own tools: `strip` removes them, `keep` adds the session's tools to them."
    )
    delivery: Delivery = _usual(
        "auto",
        "What the client gets when the model calls a grafted tool: `placeholder` (a text), `passthrough` (the call), "
        "`loop` (the final answer, after the proxy has run the call), `hold` (like `loop`, and the request also waits "
        "for results by hand), or `auto`.",
    )
    on_pending: Literal["pass", "wait", "block"] = _usual(
        "pass",
        "A request that follows calls without results: `pass` sends it unchanged, `wait` waits for the results, "
        "`block` answers with the placeholder again.",
    )
    max_rounds: int = _usual(
        10, "The most requests that a loop sends upstream. The last one forbids calls.", ge=1, le=100
    )
    tool_timeout: Seconds = _usual(30.0, "The longest duration of a call.", gt=0, le=_HOUR)
    session: Annotated[SessionName, Fits(SESSION_FORM)] = _usual("default", "The session of requests that name none.")
    log: Literal["toolgraft", "mitmproxy", "json"] = _usual(
        "toolgraft",
        "What mitmdump prints about requests to models: `toolgraft` one line for each request of a client, "
        "`mitmproxy` its own lines, `json` a JSON document for each request and for each line of the log.",
    )
    control: AddressOrOff = _usual(
        Address("127.0.0.1", 8741), "The control API's address, host:port; `off`: none.", fixed=True
    )
    token: OptionalToken = _usual(
        None,
        "The control API's bearer token. Empty: TOOLGRAFT_TOKEN, else a token that the first start creates in the "
        "state folder. `off` requires no token (loopback only).",
        env="TOOLGRAFT_TOKEN",
        fixed=True,
        repr=False,
    )
    store: OptionalText = _usual(
        None,
        "Where calls and turns are stored: sqlite:///PATH, memory:// or redis://HOST. Empty: toolgraft.db in the state "
        "folder.",
        fixed=True,
    )

    # --- tools and calls ---

    mcp_pin: OnOff = _calls(
        True,
        "`on` holds back a tool of an MCP server if its description or schema has changed since it was first seen, "
        "until `toolgraft tools accept`.",
        fixed=True,
    )
    parallel: int = _calls(8, "The most calls of one loop that run at once.", ge=1, le=64)
    pending_timeout: Seconds = _calls(30.0, "How long `graft_on_pending=wait` waits.", ge=0, le=_HOUR)
    approval_timeout: Seconds = _calls(300.0, "How long a call waits for its approval.", ge=0, le=_DAY)
    answer_timeout: Seconds = _calls(
        300.0,
        "How long a call waits for its result by hand with `graft_delivery=hold`, unless its tool has a `timeout`.",
        ge=0,
        le=_DAY,
    )
    placeholder: PlaceholderText = _calls(
        "Tool call completed: {names} [{turn_id}]",
        "The text that replaces calls in the client's history. It must contain {turn_id}; {names} are the tools' "
        "names; {status} is `requested` while a call is pending, else `completed`.",
    )
    max_calls: int = _calls(128, "The most calls of one step.", ge=1, le=10_000)
    max_args: Bytes = _calls(
        4 * MIB,
        "The largest size of the arguments of all calls of one step.",
        ge=KIB,
    )
    max_media: Bytes = _calls(
        10 * MIB,
        "The largest size of all images, sounds and files of one result, decoded.",
        ge=0,
        fixed=True,
    )

    # --- requests and answers ---

    filter: OptionalText = _answers(None, "A mitmproxy flow filter: only matching requests are grafted.")
    stream: OnOff = _answers(
        True,
        "`on` streams answers; `off` delivers them whole, so that the `response` hooks of scripts can change them. "
        "Answers that a `modify_body` rule may match are always delivered whole.",
    )
    keepalive: Seconds = _answers(
        10.0,
        "The interval of events that clients ignore in a stream that waits for tools or for a retry; 0: none.",
        ge=0,
        le=_HOUR,
    )
    proof: Literal["judged", "strict"] = _answers(
        "judged",
        "What shows that a turn of the history had hidden calls: `strict` accepts all turns before it, or an id or a "
        "signature after the same words of the user; `judged` also words and neighbours that cannot be a coincidence.",
    )
    askers: Literal["each", "one"] = _answers(
        "each",
        "Whose chats are told apart: those of `each` API key or project, or of `one` user whose keys change.",
    )
    retry_window: Seconds = _answers(
        60.0,
        "After an answer broke off, how long a repeated request continues it, and finished tools keep their results; "
        "0: never.",
        ge=0,
        le=_HOUR,
    )
    user_headers: HeaderNames = _answers(
        (),
        "A header that names the user of a request, such as x-user: with another value, a repeated request is another "
        "user's, and new. Empty: the usual ones (docs/limits.md).",
    )
    max_answer: Bytes = _answers(
        64 * MIB,
        "The largest size of an answer of the model after decompression.",
        ge=KIB,
    )
    max_event: Bytes = _answers(
        32 * MIB,
        "The largest size of one event of a stream, or of one message of a Live connection.",
        ge=KIB,
    )

    # --- front doors and upstream ---

    upstream: BaseUrl = _doors(
        "https://generativelanguage.googleapis.com",
        "The base URL of the Gemini API for the front doors (/v1/responses, /v1/gemini).",
    )
    model_aliases: ModelAliases = _doors(
        (),
        "NAME=MODEL: at the front doors, a name for a Gemini model, for example gpt-5=gemini-3-flash.",
    )
    lenient: OnOff = _doors(
        False,
        "What Gemini does not have, at /v1/responses: `off` refuses it, `on` leaves it out and lists it in the "
        "answer's header x-graft-ignored.",
    )
    redirect: Redirects = _doors(
        (),
        "HOST=URL: another base URL for the requests to a Gemini host. Recordings keep the original URL.",
    )

    # --- who may use what ---

    allow_hosts: Hosts = _access(
        (),
        "A host name by which clients may address the reverse proxy and the control API, besides localhost and IP "
        "addresses.",
    )
    allow_origins: Origins = _access(
        (),
        "An origin, such as https://app.example, whose web pages may use the proxy and the control API.",
    )
    egress: EgressRules = _access(
        (),
        "A host that HTTP tools may call, and that images and files in requests to /v1/responses may come from; all "
        "others are then refused. Examples: tools.example, *.tools.example, 10.0.0.0/8, `public`, `loopback`, each "
        "with or without :PORT. Empty: public hosts and, for tools, this machine.",
        fixed=True,
    )
    session_access: SessionAccesses = _access(
        (),
        "SESSION=USER,USER: further users of a session; `*`: all. Only if users sign in (mitmproxy's `proxyauth`): a "
        "session then belongs to the user of the same name.",
    )

    # --- records ---

    state: StateFolder = _records(
        state_folder,
        "The state folder. Empty: TOOLGRAFT_HOME, else the user's (XDG) state folder.",
        env="TOOLGRAFT_HOME",
        path=True,
        fixed=True,
    )
    ttl: Seconds = _records(7.0 * _DAY, "How long records are kept.", ge=60, fixed=True)
    durability: Literal["power", "process"] = _records(
        "power",
        "What acknowledged writes survive: `power` a power failure, because acknowledgements wait for the disk; "
        "`process` only a crash of the process.",
        fixed=True,
    )
    on_store_error: Literal["fail", "pass"] = _records(
        "fail",
        "A request, if the store or the proxy fails: `fail` answers with an error (503 or 500), `pass` forwards it "
        "unchanged.",
    )
    on_unread: Literal["fail", "pass"] = _records(
        "fail",
        "A request that cannot be read, in a session with tools: `fail` answers with an error (400), `pass` forwards "
        "it unchanged, with a warning; its answer is not noted.",
    )
    keep_requests: int = _records(
        100,
        "The number of requests whose bodies are kept in memory, for the console and `toolgraft requests`.",
        ge=0,
        le=10_000,
    )
    cache_bytes: Bytes = _records(
        DEFAULT_LIMIT,
        "The memory for cached chats and sessions, which shortens later requests.",
        ge=MIB,
        fixed=True,
    )
    record: OptionalText = _records(
        None,
        "A file for recordings of grafted exchanges, in mitmproxy's format, without secrets.",
        path=True,
    )

    # --- start, reload and stop ---

    config: OptionalText = _run(
        None,
        "A toolgraft.toml, which sets other options, MCP servers and sessions. `toolgraft serve` finds it, or takes it "
        "from `--config FILE`.",
        fixed=True,
    )
    config_trusted: OnOff = _run(
        False,
        "`on` uses `graft_config` only with the contents that `toolgraft trust` has recorded. `toolgraft serve` sets "
        "it for a file of the working folder.",
        fixed=True,
    )
    reload: OnOff = _run(
        True,
        "`on` applies changes of tools files, MCP files and the toolgraft.toml while the proxy runs; `off` only at "
        "SIGHUP.",
    )
    drain_timeout: Seconds = _run(
        5.0,
        "How long requests in flight have to finish when the proxy is told to stop. A second signal ends the wait.",
        ge=0,
        le=_HOUR,
    )
    fast: OnOff = _run(
        True, "`on` calls addons' hooks faster than mitmproxy does, with the same result; `off` does not."
    )

    # --- limits of the control API and of MCP servers ---

    max_body: Bytes = _limits(
        64 * MIB,
        "The largest size of a request to the control API, and of a compressed request to the model after "
        "decompression.",
        ge=KIB,
        fixed=True,
    )
    max_headers: Bytes = _limits(
        64 * KIB, "The largest size of the headers of a request to the control API.", ge=KIB, fixed=True
    )
    header_timeout: Seconds = _limits(
        10.0,
        "How long the headers of a request to the control API may take.",
        gt=0,
        le=_HOUR,
        fixed=True,
    )
    max_connections: int = _limits(
        4096,
        "The most connections to the control API; fewer if file descriptors are few.",
        ge=8,
        fixed=True,
    )
    max_tools: int = _limits(
        1000,
        "The most tools of one MCP server.",
        ge=1,
        le=100_000,
        fixed=True,
    )
    max_tool: Bytes = _limits(
        256 * KIB,
        "The largest size of the description and schemas of an MCP server's tool.",
        ge=KIB,
        fixed=True,
    )
    max_line: Bytes = _limits(
        16 * MIB,
        "The largest size of a message of an MCP server.",
        ge=KIB,
        fixed=True,
    )

    @classmethod
    def from_options(cls, options: Mapping[str, Any]) -> Self:
        """Parse options by full name. Raises ValidationError; `explain` makes a message of it."""
        names = ((name, f"graft_{name}") for name in cls.model_fields)
        return cls.model_validate({name: options[full] for name, full in names if full in options})

    def may_use(self, user: str, session: str) -> bool:
        """Whether a signed-in user may use a session: the session with the user's name, or a shared one."""
        return user == session or any(
            session == shared.session and not shared.users.isdisjoint((user, "*")) for shared in self.session_access
        )

    def model(self, name: str) -> str:
        """The model for a name; the name itself if it is no alias."""
        return next((alias.model for alias in self.model_aliases if alias.name == name), name)

    @property
    def store_url(self) -> str:
        return self.store or f"sqlite:///{self.state / 'toolgraft.db'}"

    @field_validator("*", mode="before")
    @classmethod
    def _no_nul(cls, value: Any) -> Any:
        texts = value if isinstance(value, list | tuple) else [value]
        if any(isinstance(text, str) and "\0" in text for text in texts):
            raise ValueError("must not contain a NUL character")
        return value

    @model_validator(mode="after")
    def _no_token_only_on_loopback(self) -> Self:
        if self.token == "off" and self.control is not None and not is_loopback(self.control[0]):
            raise ValueError(
                f"graft_token: `off` needs a loopback graft_control, and {self.control[0]} is not loopback"
            )
        return self


def fitting(field: FieldInfo) -> str:
    """Which values of a field fit, for a message; "" if its type says it with each error."""
    for mark in field.metadata:
        if isinstance(mark, Fits):
            return mark.words
    if get_origin(field.annotation) is Literal:
        return f"one of {', '.join(get_args(field.annotation))}"
    limits = {
        name: getattr(mark, name) for mark in field.metadata for name in ("gt", "ge", "le") if hasattr(mark, name)
    }
    if not limits:
        return ""
    number = next((f"a number of {mark.name}" for mark in field.metadata if isinstance(mark, Unit)), "a number")
    if "gt" in limits:
        return f"{number}, more than {limits['gt']} and at most {limits['le']}"
    return f"{number} from {limits['ge']} to {limits['le']}" if "le" in limits else f"{number}, {limits['ge']} or more"


def explain(error: ValidationError, prefix: str = "graft_") -> str:
    """A message for the first error: the option, its value, and what is expected. For a session's policy, whose fields
    are options without a prefix, too."""
    first = error.errors()[0]
    message = first["msg"].removeprefix("Value error, ")
    if not first["loc"]:
        return message
    name = str(first["loc"][0])
    field = Settings.model_fields.get(name)
    if field is not None and (fits := fitting(field)):
        message = f"must be {fits}"
    if isinstance(first["input"], str):
        name += f"={'(not shown)' if name == 'token' else redacted(first['input'])}"
    return f"{prefix}{name}: {message}"
