"""The proxy's options (`addon.options`), parsed and checked into one frozen `Settings`.

Nothing here imports mitmproxy.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from addon.core.model_names import ALIAS, MODEL_FORM, MODEL_NAME
from addon.core.security.egress import EgressRule, parse_rule
from addon.options import OPTIONS
from addon.state_folder import state_folder
from addon.urls import base_url, is_host_name, is_loopback, is_origin, redacted
from store.budget import DEFAULT_LIMIT
from store.models import SESSION_FORM, SESSION_NAME, Delivery, SessionName


class Redirect(NamedTuple):
    host: str
    scheme: str
    to_host: str
    to_port: int
    path: str


class ModelAlias(NamedTuple):
    """Another name for a Gemini model at the front doors."""

    name: str
    model: str


class SessionAccess(NamedTuple):
    """Further users of a session, besides the user with its name; `*` for everyone."""

    session: str
    users: frozenset[str]


Seconds = Annotated[float, Field(ge=0, le=3600, allow_inf_nan=False)]


class Settings(BaseModel):
    """The proxy's options, parsed and checked. Field names are the options' names without `graft_`."""

    model_config = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=True)

    config: str = ""
    config_trusted: Literal["on", "off"] = "off"
    reload: Literal["on", "off"] = "on"
    session: SessionName = "default"
    client_tools: Literal["strip", "keep"] = "strip"
    delivery: Delivery = "auto"
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
    max_media: Annotated[int, Field(ge=0)] = 10 * 1024 * 1024
    max_answer: Annotated[int, Field(ge=1024)] = 64 * 1024 * 1024
    max_event: Annotated[int, Field(ge=1024)] = 32 * 1024 * 1024
    tool_timeout: Annotated[float, Field(gt=0, le=3600, allow_inf_nan=False)] = 30.0
    approval_timeout: Annotated[float, Field(ge=0, le=86400, allow_inf_nan=False)] = 300.0
    answer_timeout: Annotated[float, Field(ge=0, le=86400, allow_inf_nan=False)] = 300.0
    retry_window: Seconds = 60.0
    keepalive: Seconds = 10.0
    drain_timeout: Seconds = 5.0
    stream: Literal["on", "off"] = "on"
    fast: Literal["on", "off"] = "on"
    log: Literal["toolgraft", "mitmproxy", "json"] = "toolgraft"
    filter: str = ""
    redirect: tuple[Redirect, ...] = ()
    upstream: str = "https://generativelanguage.googleapis.com"
    model_aliases: tuple[ModelAlias, ...] = ()
    lenient: Literal["on", "off"] = "off"
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
    cache_bytes: Annotated[int, Field(ge=1024 * 1024)] = DEFAULT_LIMIT
    keep_requests: Annotated[int, Field(ge=0, le=10_000)] = 100
    on_store_error: Literal["fail", "pass"] = "fail"
    max_tools: Annotated[int, Field(ge=1, le=100_000)] = 1000
    max_tool: Annotated[int, Field(ge=1024)] = 262_144
    max_line: Annotated[int, Field(ge=1024)] = 16 * 1024 * 1024
    max_connections: Annotated[int, Field(ge=8)] = 4096
    max_headers: Annotated[int, Field(ge=1024)] = 65536
    header_timeout: Annotated[float, Field(gt=0, le=3600, allow_inf_nan=False)] = 10.0
    max_body: Annotated[int, Field(ge=1024)] = 64 * 1024 * 1024
    record: str = ""

    @classmethod
    def from_options(cls, options: Mapping[str, Any]) -> Self:
        """Parse options by full name. Raises ValidationError; `explain` makes a message of it."""
        values = {o.name.removeprefix("graft_"): options[o.name] for o in OPTIONS if o.name in options}
        return cls.model_validate(values)

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
            raise ValueError("must contain {turn_id} exactly once, to identify the turn")
        rest = text.replace("{turn_id}", "").replace("{names}", "").replace("{status}", "")
        if "{" in rest or "}" in rest or text.count("{names}") > 1 or text.count("{status}") > 1:
            raise ValueError("may contain {turn_id}, {names} and {status} (once each), but no other braces")
        if sum(character.isalpha() for character in rest) < 3:
            raise ValueError("must contain three letters or more besides {turn_id}, {names} and {status}")
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

    @field_validator("model_aliases", mode="before")
    @classmethod
    def _parse_aliases(cls, values: Sequence[Any]) -> tuple[ModelAlias, ...]:
        found = tuple(v if isinstance(v, ModelAlias) else parse_model_alias(v) for v in values)
        names = [alias.name for alias in found]
        if twice := next((name for name in names if names.count(name) > 1), None):
            raise ValueError(f"{twice} stands for two models; a name may stand for one only")
        return found

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
            raise ValueError(
                "must be host:port, such as 127.0.0.1:8741 or [::1]:8741 (port 0: any free port), or `off`"
            )
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
                raise ValueError(
                    f"{redacted(origin)} must be an origin such as https://app.example:8443, without a path"
                )
        return tuple(origin.lower() for origin in origins)

    @field_validator("allow_hosts")
    @classmethod
    def _hosts(cls, hosts: tuple[str, ...]) -> tuple[str, ...]:
        for host in hosts:
            if not is_host_name(host):
                raise ValueError(f"{redacted(host)} must be a plain host name, without scheme, port or path")
        return tuple(host.lower() for host in hosts)

    @field_validator("state", mode="before")
    @classmethod
    def _state(cls, value: Any) -> Any:
        return state_folder(value) if isinstance(value, str) else value

    @field_validator("*", mode="before")
    @classmethod
    def _no_nul(cls, value: Any) -> Any:
        """Defined last, because pydantic calls it first."""
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


def parse_redirect(text: str) -> Redirect:
    """`HOST=URL` with an http or https URL. Raises ValueError."""
    host, equals, url = text.partition("=")
    if not equals:
        raise ValueError(f"{redacted(text)} must be HOST=URL, such as {_EXAMPLE}")
    if not is_host_name(host):
        raise ValueError(f"{redacted(text)}: {redacted(host)} must be a plain host name, without scheme, port or path")
    try:
        parts = base_url(url)
    except ValueError as error:
        raise ValueError(f"{redacted(text)}: the URL {error}") from None
    assert parts.hostname is not None
    return Redirect(
        host.lower(),
        parts.scheme,
        parts.hostname,
        parts.port or (443 if parts.scheme == "https" else 80),
        parts.path.rstrip("/"),
    )


def parse_model_alias(text: str) -> ModelAlias:
    """`NAME=MODEL`. Raises ValueError."""
    name, equals, model = text.partition("=")
    if not equals or not ALIAS.fullmatch(name):
        raise ValueError(
            f"{redacted(text)} must be NAME=MODEL, such as gpt-5=gemini-3-flash; a name is 1 to 128 letters, digits, "
            "and . _ - : / @"
        )
    if not MODEL_NAME.fullmatch(model):
        raise ValueError(f"{redacted(text)}: {redacted(model)} must be {MODEL_FORM}")
    return ModelAlias(name, model)


def parse_session_access(text: str) -> SessionAccess:
    """`SESSION=USER,USER` or `SESSION=*`. Raises ValueError."""
    session, _, users = text.partition("=")
    named = frozenset(user.strip() for user in users.split(","))
    if not SESSION_NAME.fullmatch(session) or "" in named:
        raise ValueError(f"{text!r} must be SESSION=USER,USER, or SESSION=* for all users; a session is {SESSION_FORM}")
    return SessionAccess(session, named)


_EXAMPLE = "generativelanguage.googleapis.com=http://127.0.0.1:9912"

_EXPECTED = {
    "session": SESSION_FORM,
    "max_tools": "a number from 1 to 100000",
    "max_tool": "a number of bytes, 1024 or more",
    "max_line": "a number of bytes, 1024 or more",
    "max_connections": "a number, 8 or more",
    "max_headers": "a number of bytes, 1024 or more",
    "header_timeout": "a number of seconds, more than 0 and at most 3600",
    "max_body": "a number of bytes, 1024 or more",
    "cache_bytes": "a number of bytes, 1048576 or more",
    "keep_requests": "a number from 0 to 10000",
    "ttl": "a number of seconds, 60 or more",
    "pending_timeout": "a number of seconds from 0 to 3600",
    "max_rounds": "a number from 1 to 100",
    "parallel": "a number from 1 to 64",
    "max_calls": "a number from 1 to 10000",
    "max_args": "a number of bytes, 1024 or more",
    "max_media": "a number of bytes, 0 or more",
    "max_answer": "a number of bytes, 1024 or more",
    "max_event": "a number of bytes, 1024 or more",
    "tool_timeout": "a number of seconds, more than 0 and at most 3600",
    "approval_timeout": "a number of seconds from 0 to 86400",
    "answer_timeout": "a number of seconds from 0 to 86400",
    "retry_window": "a number of seconds from 0 to 3600",
    "keepalive": "a number of seconds from 0 to 3600",
    "drain_timeout": "a number of seconds from 0 to 3600",
}


def explain(error: ValidationError, prefix: str = "graft_") -> str:
    """A message for the first error: the option, its value, and what is expected. For a session's policy, whose fields
    are options without a prefix, too."""
    first = error.errors()[0]
    message = first["msg"].removeprefix("Value error, ")
    if not first["loc"]:
        return message
    name = str(first["loc"][0])
    expected = _EXPECTED.get(name)
    if expected is None and first["type"] == "literal_error":
        expected = "one of " + first["ctx"]["expected"].replace("'", "").replace(" or ", ", ")
    if isinstance(first["input"], str):
        name += f"={'(not shown)' if name == 'token' else redacted(first['input'])}"
    return f"{prefix}{name}: {f'must be {expected}' if expected else message}"
