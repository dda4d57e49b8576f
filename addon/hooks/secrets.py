"""What must not be written down: secrets in headers and URLs by their names, and wherever else by their values."""

import re

from mitmproxy import http

from addon.core.security.credentials import HEADERS, PARAMETERS, masked, secrets_in
from addon.core.security.redaction import Redaction
from addon.hooks.headers import body_of, set_body
from addon.own_secrets import own_secrets

REMOVED = "REMOVED"

_COLOUR = r"(?:\x1b\[[\d;]*m)*"
_LINE = re.compile(
    rf"^((?: |\x1b\[[\d;]*m)*(?:{'|'.join(map(re.escape, HEADERS + PARAMETERS))}){_COLOUR}:{_COLOUR})"
    rf"(?: .*|(?:\n *{_COLOUR}- .*)+)",
    re.IGNORECASE | re.MULTILINE,
)


_MOST = 64 * 1024 * 1024
"""Bytes of a body, decompressed, that are looked through."""


def masked_lines(text: str, instead: str = "***") -> str:
    """Lines that show headers, or a query as mitmdump does (`key: …`, and a list where there are several), coloured or
    not, without the values that are secrets."""
    return _LINE.sub(rf"\g<1> {instead}", text) if ":" in text else text


def redaction_of(flow: http.HTTPFlow) -> Redaction:
    """What must not be written of an exchange, whoever says it: what it was sent with, and what is the proxy's own."""
    fields = flow.request.headers.fields + (flow.response.headers.fields if flow.response is not None else ())
    found = secrets_in(flow.request.path, fields)
    if isinstance(signed_in := flow.metadata.get("proxyauth"), tuple | list):
        found.add(str(signed_in[-1]))  # the password by which the client uses the proxy
    return own_secrets.combined_with(found)


def clean(message: http.Message) -> None:
    """Take the secrets out of a message's headers (and of a request's URL), in place."""
    for name in HEADERS:
        if name in message.headers:
            message.headers[name] = REMOVED
    message.headers.fields = tuple(
        (name, masked(value.decode("utf-8", "surrogateescape"), REMOVED).encode("utf-8", "surrogateescape"))
        if b"=" in value
        else (name, value)
        for name, value in message.headers.fields
    )
    if isinstance(message, http.Request):
        message.path = masked(message.path, REMOVED)


def redact(flow: http.HTTPFlow, redaction: Redaction) -> None:
    """Take these secrets out of all that a flow says, in place. Its bodies stay what they are where they have none."""
    flow.request.path = redaction.text(flow.request.path)
    for message in (flow.request, flow.response):
        if message is None:
            continue
        for headers in (message.headers, message.trailers):
            if headers:
                headers.fields = tuple((name, redaction.data(value)) for name, value in headers.fields)
        body = body_of(message, _MOST)
        if body is None and message.data.content:
            message.data.content = b""  # what cannot be read may hold one
        if body and (without := redaction.data(body)) != body:
            set_body(message, without)
    if flow.websocket is not None:
        for frame in flow.websocket.messages:
            frame.content = redaction.data(frame.content)
        if flow.websocket.close_reason:
            flow.websocket.close_reason = redaction.text(flow.websocket.close_reason)
    if flow.error is not None:
        flow.error.msg = redaction.text(masked(flow.error.msg))
