"""Secrets: finds those in a request by the names of headers and URL parameters, and masks known ones by their value."""

import base64
import binascii
import json
import re
from collections.abc import Iterable
from urllib.parse import quote, unquote, unquote_plus

from addon.core.security.untrusted import cached_if_short

Fields = Iterable[tuple[bytes, bytes]]

PARAMETERS = ("key", "$key", "access_token", "api_key", "apikey", "oauth_token", "token", "x-amz-security-token")

_KEY_LENGTH = 20
"""From this length on, even a value without digits counts as a key, not as a word chosen by a person."""
_RANDOM = re.compile(r"[\w.+=~ -]*\d[\w.+=~ -]*", re.ASCII)
_SECRET_NAME = re.compile(
    r"(?<!mon)(?<!-port)key(?!word|board)|token|secret|(?<!by)pass(?!thr)|pwd|auth(?!or(?!i[sz]))|cred(?!it)|cookie"
    r"|session|private|signature|jwt|assertion|bearer|appcheck",
    re.IGNORECASE,
)
_PLAIN_NAME = re.compile(
    r"(?!.{100})(?:(?:x-)?idempotency-key|(?:x-)?(?:cache|surrogate)-key|sec-websocket-key|(?:www|proxy)-authenticate"
    r"|signature-input|access-control-(?:allow|expose|request)-.*|content-.*|x-graft-session|.*session-(?:name|path)"
    r"|.*rate-?limit-(?:.*-)?tokens(?:-.*)?"
    r"|.*(?:max|input|output|prompt|completion|total|used|remaining|limit)[-_](?:tokens|token[-_]count))",
    re.IGNORECASE,
)
"""Names of headers without secrets that contain a telltale word: many of their values differ in every request, and
others are counts or words, which occur in any text. Long names are not searched, because that takes long."""
_LONGEST_NAME = 500
_PAIR = re.compile(r"([?&;#])([^=&;#?\s\x1b]{1,100})=([^&;#\s\x1b\"'<>]+)")


def is_secret_name(name: str) -> bool:
    """Whether a header, variable or argument of this name holds a secret. An extremely long name counts as secret
    without a search, which would freeze the proxy."""
    return len(name) > _LONGEST_NAME or (_SECRET_NAME.search(name) is not None and _PLAIN_NAME.fullmatch(name) is None)


@cached_if_short(256)
def is_secret_header(name: bytes) -> bool:
    """`is_secret_name` for a header's name in bytes. Cached, because each request checks each of its headers."""
    return is_secret_name(name.decode("latin-1"))


def is_secret_parameter(name: str) -> bool:
    """Whether a query parameter of this name holds a secret. The name may be percent-encoded."""
    return unquote_plus(name).lower() in PARAMETERS


def masked(text: str, instead: str = "***") -> str:
    """The text with the values of secret parameters replaced in each of its URLs."""

    def pair(found: re.Match[str]) -> str:
        separator, name, value = found.groups()
        return f"{separator}{name}={instead if is_secret_parameter(name) else value}"

    return _PAIR.sub(pair, text) if _may_have_parameters(text) else text


def secret_parameters(url: str) -> list[str]:
    """The values of a URL's secret parameters, as they are encoded there."""
    if not _may_have_parameters(url):
        return []
    return [value for _, name, value in _PAIR.findall(url) if is_secret_parameter(name)]


def _may_have_parameters(text: str) -> bool:
    """Whether a search is worthwhile: most URLs have no parameter except `alt=sse`."""
    if "=" not in text:
        return False
    lower = text.lower()
    return "key" in lower or "token" in lower or "%" in lower


def credentials(url: str, headers: Fields) -> tuple[bytes, ...]:
    """The values that distinguish senders: different values mean different people."""
    found = [value for name, value in headers if is_secret_header(name)]
    return (*found, *(value.encode("utf-8", "surrogateescape") for value in secret_parameters(url)))


def secrets_in(url: str, headers: Fields) -> set[str]:
    """The secrets in a message, in each form in which they may occur elsewhere. Words are excluded: clients that need
    no key send a word instead, such as `placeholder`."""
    found: set[str] = set()
    parameters = secret_parameters(url)
    for name, raw in headers:
        if is_secret_header(name):
            found |= _cached_secrets_of_header(name, raw)
        elif b"=" in raw:  # a URL, as in Referer and Location
            parameters += secret_parameters(raw.decode("utf-8", "surrogateescape"))
    for one in parameters:
        found |= {form for form in (one, unquote(one)) if _is_key_like(form)}
    return found


def secrets_of_header(name: str, value: str) -> set[str]:
    """A header's secrets: the token after `Bearer`, a Basic password, the values of cookies, or the whole value."""
    if name.lower() in ("cookie", "set-cookie"):
        pairs = value.split(";")[: 1 if name.lower() == "set-cookie" else None]
        return {pair.partition("=")[2].strip().strip('"') for pair in pairs}
    kind, space, rest = value.strip().partition(" ")
    found = {rest.strip() if space else kind, value.strip()}
    if kind.lower() == "basic":
        try:
            found.add(base64.b64decode(rest, validate=True).decode().partition(":")[2])
        except (binascii.Error, UnicodeDecodeError):
            pass
    return found


@cached_if_short(256)
def _cached_secrets_of_header(name: bytes, value: bytes) -> frozenset[str]:
    """`secrets_of_header` without words. Cached, because clients repeat their headers."""
    found = secrets_of_header(name.decode("latin-1"), value.decode("utf-8", "surrogateescape"))
    return frozenset(filter(_is_key_like, found))


def _is_key_like(secret: str) -> bool:
    return len(secret) >= _KEY_LENGTH or any(map(str.isdigit, secret))


def secrets_of_executor(url: str, headers: Iterable[tuple[str, str]]) -> set[str]:
    """The secrets in the URL and headers of a configured endpoint."""
    found = set(secret_parameters(url))
    for name, value in headers:
        if _is_secret(name, value):
            found |= secrets_of_header(name, value)
    before, at, _ = url.partition("//")[2].partition("/")[0].rpartition("@")
    if at:
        found |= {before.partition(":")[2], unquote(before.partition(":")[2])}
    return found


def secrets_of_environment(variables: Iterable[tuple[str, str]]) -> set[str]:
    """The secrets in the environment of a process that the proxy starts."""
    found: set[str] = set()
    for name, value in variables:
        if _is_secret(name, value):
            found.add(value)
        if "://" in value:
            found |= secrets_of_executor(value, ())
    return found


def _is_secret(name: str, value: str) -> bool:
    """Whether a header or variable holds a secret, by its name or by its form. Other values are words and paths, which
    occur in any text."""
    return is_secret_name(name) or (len(value) >= 16 and _RANDOM.fullmatch(value) is not None)


MASK = "***"
REMOVED_SECRET = "REMOVED"
"""Replaces the secret values of headers and of parameters of URLs, in recordings and in kept requests."""
SHORTEST = 8
"""The minimum length of a secret to search for. A shorter one would match unrelated text."""
_NUMBER = re.compile(r"[-+.\deE]+")


class Redaction:
    """Replaces these secrets by MASK, in plain form and as encoded in JSON and URLs. JSON stays valid: a secret that
    could be a number is not searched for."""

    def __init__(self, secrets: Iterable[str]) -> None:
        searched = {one for one in secrets if len(one) >= SHORTEST and not _NUMBER.fullmatch(one)}
        forms = {form for one in searched for form in (one, json.dumps(one)[1:-1], quote(one, safe=""))}
        self._texts = sorted(forms, key=len, reverse=True)
        self._bytes = [form.encode("utf-8", "surrogateescape") for form in self._texts]
        self._alphabet = frozenset(b"".join(self._bytes))

    def __bool__(self) -> bool:
        return bool(self._texts)

    def text(self, text: str) -> str:
        for form in self._texts:
            if form in text:
                text = text.replace(form, MASK)
        return text

    def data(self, data: bytes) -> bytes:
        for form in self._bytes:
            if data.find(form) >= 0:  # several times as fast as `in`
                data = data.replace(form, MASK.encode())
        return data

    def is_clean(self, data: bytes) -> bool:
        """Whether the data certainly contains no secret, and no beginning of one at its end. True for most events."""
        for form in self._bytes:
            if data.find(form) >= 0:
                return False
        return not data or data[-1] not in self._alphabet

    def partial_at_end(self, data: bytes) -> int:
        """How many of the last bytes may begin a secret that continues in the next piece."""
        most = 0
        for form in self._bytes:
            tail = data[-(len(form) - 1) :]
            at = tail.find(form[:1])
            while at != -1 and len(tail) - at > most:
                if form.startswith(tail[at:]):
                    most = len(tail) - at
                at = tail.find(form[:1], at + 1)
        return most


class RedactedStream:
    """Masks a stream of bytes. Holds back the end of a piece if it may begin a secret."""

    def __init__(self, redaction: Redaction) -> None:
        self._redaction = redaction
        self._rest = b""

    def feed(self, chunk: bytes) -> bytes:
        if not self._rest and self._redaction.is_clean(chunk):
            return chunk
        data = self._redaction.data(self._rest + chunk if self._rest else chunk)
        if size := self._redaction.partial_at_end(data):
            self._rest = data[-size:]
            return data[:-size]
        self._rest = b""
        return data

    def flush(self) -> bytes:
        rest, self._rest = self._rest, b""
        return rest
