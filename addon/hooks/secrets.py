"""Removes secrets from flows: by name in headers and URLs, by value everywhere else."""

import re

from mitmproxy import http

from addon.core.security.credentials import PARAMETERS, is_secret_header, is_secret_name, masked, secrets_in
from addon.core.security.redaction import Redaction
from addon.hooks.messages import body_of, set_body
from addon.own_secrets import own_secrets
from addon.settings import Settings

REMOVED = "REMOVED"

_COLOUR = r"(?:\x1b\[[\d;]*m)*"
_LINE = re.compile(
    rf"^((?: |\x1b\[[\d;]*m)*([\w!#$%&'*+.^`|~-]{{1,100}}){_COLOUR}:{_COLOUR})(?: .*|(?:\n *{_COLOUR}- .*)+)",
    re.MULTILINE | re.ASCII,
)


def masked_lines(text: str, instead: str = "***") -> str:
    """Masks secret values in lines of headers or of a query, as mitmdump prints them: `key: …`, or a list of several
    values, with or without colours."""

    def line(found: re.Match[str]) -> str:
        beginning, name = found.groups()
        is_secret = is_secret_name(name) or name.lower() in PARAMETERS
        return f"{beginning} {instead}" if is_secret else found[0]

    return _LINE.sub(line, text) if ":" in text else text


def redaction_of(flow: http.HTTPFlow) -> Redaction:
    """The secrets to remove from all output about an exchange: its own and the proxy's."""
    fields = flow.request.headers.fields + (flow.response.headers.fields if flow.response is not None else ())
    found = secrets_in(flow.request.path, fields)
    if isinstance(signed_in := flow.metadata.get("proxyauth"), tuple | list):
        found.add(str(signed_in[-1]))  # the client's password for the proxy
    return own_secrets.combined_with(found)


def clean(message: http.Message) -> None:
    """Remove the secrets from a message's headers and a request's URL, in place."""
    message.headers.fields = tuple((name, _cleaned(name, value)) for name, value in message.headers.fields)
    if isinstance(message, http.Request):
        message.path = masked(message.path, REMOVED)


def _cleaned(name: bytes, value: bytes) -> bytes:
    if is_secret_header(name):
        return REMOVED.encode()
    if b"=" not in value:
        return value
    return masked(value.decode("utf-8", "surrogateescape"), REMOVED).encode("utf-8", "surrogateescape")


def redact(flow: http.HTTPFlow, redaction: Redaction, settings: Settings) -> None:
    """Remove these secrets from every part of a flow, in place. Bodies without a secret stay unchanged."""
    flow.request.path = redaction.text(flow.request.path)
    for message, most in ((flow.request, settings.max_body), (flow.response, settings.max_answer)):
        if message is None:
            continue
        for headers in (message.headers, message.trailers):
            if headers:
                headers.fields = tuple((name, redaction.data(value)) for name, value in headers.fields)
        body = body_of(message, most)
        if body is None and message.data.content:
            message.data.content = b""  # an unreadable body may hold a secret
        if body and (without := redaction.data(body)) != body:
            set_body(message, without)
    if flow.websocket is not None:
        for frame in flow.websocket.messages:
            frame.content = redaction.data(frame.content)
        if flow.websocket.close_reason:
            flow.websocket.close_reason = redaction.text(flow.websocket.close_reason)
    if flow.error is not None:
        flow.error.msg = redaction.text(masked(flow.error.msg))
