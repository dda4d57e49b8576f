"""The types of the proxy's settings. Each parses an option's text: mitmproxy knows only texts and lists of them.

The parsers raise ValueError. Its message says what would fit, and shows no password in a URL.
"""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from pydantic import AfterValidator, BeforeValidator, Field, Strict

from addon.core.model_names import ALIAS, MODEL_FORM, MODEL_NAME
from addon.core.security.egress import EgressRule, parse_rule
from addon.state_folder import state_folder
from addon.urls import base_url, header_name, is_host_name, is_origin, redacted
from store.models import SESSION_FORM, SESSION_NAME


class Unit(NamedTuple):
    """Of a number, for messages."""

    name: str


class Fits(NamedTuple):
    """What fits instead of a refused value, unless the type itself says it."""

    words: str


Seconds = Annotated[float, Field(allow_inf_nan=False), Unit("seconds")]
Bytes = Annotated[int, Unit("bytes")]


def _on_or_off(value: Any) -> Any:
    return {"on": True, "off": False}.get(value, value) if isinstance(value, str) else value


OnOff = Annotated[bool, Strict(), BeforeValidator(_on_or_off), Fits("one of on, off")]

OptionalText = Annotated[str | None, BeforeValidator(lambda value: value or None)]
"""Empty: None."""


def _list_of(parse: Callable[[str], Any]) -> BeforeValidator:
    """Parses each text of a list, as one value: an error concerns the list, and its message names the item."""

    def parse_all(values: Iterable[Any]) -> tuple[Any, ...]:
        return tuple(parse(value) if isinstance(value, str) else value for value in values)

    return BeforeValidator(parse_all)


class Address(NamedTuple):
    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


def _parse_address(value: Any) -> Any:
    """`HOST:PORT`, or `off`."""
    if not isinstance(value, str):
        return value
    if value == "off":
        return None
    host, colon, port = value.rpartition(":")
    if not colon or not host or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise ValueError("must be host:port, such as 127.0.0.1:8741 or [::1]:8741 (port 0: any free port), or `off`")
    return Address(host.strip("[]"), int(port))


AddressOrOff = Annotated[Address | None, BeforeValidator(_parse_address)]


def _check_placeholder(text: str) -> str:
    if text.count("{turn_id}") != 1:
        raise ValueError("must contain {turn_id} exactly once, to identify the turn")
    rest = text.replace("{turn_id}", "").replace("{names}", "").replace("{status}", "")
    if "{" in rest or "}" in rest or text.count("{names}") > 1 or text.count("{status}") > 1:
        raise ValueError("may contain {turn_id}, {names} and {status} (once each), but no other braces")
    if sum(character.isalpha() for character in rest) < 3:
        raise ValueError("must contain three letters or more besides {turn_id}, {names} and {status}")
    return text


PlaceholderText = Annotated[str, AfterValidator(_check_placeholder)]


def _check_token(token: str | None) -> str | None:
    if token is not None and (not token.isascii() or not token.isprintable() or " " in token):
        raise ValueError("must be printable ASCII without spaces")
    return token


OptionalToken = Annotated[OptionalText, AfterValidator(_check_token)]


def _parse_base_url(url: str) -> str:
    base_url(url)
    return url.rstrip("/")


BaseUrl = Annotated[str, AfterValidator(_parse_base_url)]


def _parse_file(path: str) -> str:
    if not path:
        raise ValueError("must be the path of a file")
    return path


Files = Annotated[tuple[str, ...], _list_of(_parse_file)]
StateFolder = Annotated[Path, BeforeValidator(lambda value: state_folder(value) if isinstance(value, str) else value)]


def _parse_origin(origin: str) -> str:
    if not is_origin(origin):
        raise ValueError(f"{redacted(origin)} must be an origin such as https://app.example:8443, without a path")
    return origin.lower()


Origins = Annotated[tuple[str, ...], _list_of(_parse_origin)]


def _parse_host(host: str) -> str:
    if not is_host_name(host):
        raise ValueError(f"{redacted(host)} must be a plain host name, without scheme, port or path")
    return host.lower()


Hosts = Annotated[tuple[str, ...], _list_of(_parse_host)]
HeaderNames = Annotated[tuple[str, ...], _list_of(lambda name: header_name(name).lower())]
EgressRules = Annotated[tuple[EgressRule, ...], _list_of(parse_rule)]


class Redirect(NamedTuple):
    host: str
    scheme: str
    to_host: str
    to_port: int
    path: str


def parse_redirect(text: str) -> Redirect:
    """`HOST=URL` with an http or https URL."""
    host, equals, url = text.partition("=")
    if not equals:
        example = "generativelanguage.googleapis.com=http://127.0.0.1:9912"
        raise ValueError(f"{redacted(text)} must be HOST=URL, such as {example}")
    if not is_host_name(host):
        raise ValueError(f"{redacted(text)}: {redacted(host)} must be a plain host name, without scheme, port or path")
    try:
        parts = base_url(url)
    except ValueError as error:
        raise ValueError(f"{redacted(text)}: the URL {error}") from None
    assert parts.hostname is not None
    port = parts.port or (443 if parts.scheme == "https" else 80)
    return Redirect(host.lower(), parts.scheme, parts.hostname, port, parts.path.rstrip("/"))


Redirects = Annotated[tuple[Redirect, ...], _list_of(parse_redirect)]


class ModelAlias(NamedTuple):
    """Another name for a Gemini model at the front doors."""

    name: str
    model: str


def parse_model_alias(text: str) -> ModelAlias:
    """`NAME=MODEL`."""
    name, equals, model = text.partition("=")
    if not equals or not ALIAS.fullmatch(name):
        raise ValueError(
            f"{redacted(text)} must be NAME=MODEL, such as gpt-5=gemini-3-flash; a name is 1 to 128 letters, digits, "
            "and . _ - : / @"
        )
    if not MODEL_NAME.fullmatch(model):
        raise ValueError(f"{redacted(text)}: {redacted(model)} must be {MODEL_FORM}")
    return ModelAlias(name, model)


def _check_distinct(aliases: tuple[ModelAlias, ...]) -> tuple[ModelAlias, ...]:
    names = [alias.name for alias in aliases]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise ValueError(f"{twice} stands for two models; a name may stand for one only")
    return aliases


ModelAliases = Annotated[tuple[ModelAlias, ...], _list_of(parse_model_alias), AfterValidator(_check_distinct)]


class SessionAccess(NamedTuple):
    """Further users of a session, besides the user with its name; `*` for everyone."""

    session: str
    users: frozenset[str]


def parse_session_access(text: str) -> SessionAccess:
    """`SESSION=USER,USER` or `SESSION=*`."""
    session, _, users = text.partition("=")
    named = frozenset(user.strip() for user in users.split(","))
    if not SESSION_NAME.fullmatch(session) or "" in named:
        raise ValueError(f"{text!r} must be SESSION=USER,USER, or SESSION=* for all users; a session is {SESSION_FORM}")
    return SessionAccess(session, named)


SessionAccesses = Annotated[tuple[SessionAccess, ...], _list_of(parse_session_access)]
