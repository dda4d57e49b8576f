"""Keeps secrets out of flows, mitmdump's console and the log: by name in headers and URLs, by value everywhere else.
Terminal control characters are escaped."""

import base64
import logging
import re
import traceback
from typing import IO, Any

from mitmproxy import ctx, http

from addon.core.security.secrets import (
    PARAMETERS,
    REMOVED_SECRET,
    Redaction,
    is_secret_header,
    is_secret_name,
    masked,
    secrets_in,
)
from addon.core.security.untrusted import printable
from addon.hooks.messages import body_of, set_body
from addon.monitoring.own_secrets import own_secrets
from addon.settings import Settings

DETAILS = 2
"""The lowest `flow_detail` that shows more of a flow than its URL."""

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
        message.path = masked(message.path, REMOVED_SECRET)


def _cleaned(name: bytes, value: bytes) -> bytes:
    if is_secret_header(name):
        return REMOVED_SECRET.encode()
    if b"=" not in value:
        return value
    return masked(value.decode("utf-8", "surrogateescape"), REMOVED_SECRET).encode("utf-8", "surrogateescape")


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


_COLOURS = re.compile(r"(\x1b\[[\d;]*m)")
_UNEXPECTED_DATA = "Unexpected data from server"
_ONE_LINE_LOGGERS = ("toolgraft", "addon", "store", "mcp", "client")
"""Prefixes of the loggers whose messages are one line each. mitmproxy's messages may have several lines."""


class Masking:
    def load(self, loader: object) -> None:
        if not isinstance(made := logging.getLogRecordFactory(), _Records):
            logging.setLogRecordFactory(_Records(made))

    def configure(self, updated: set[str]) -> None:
        for name in updated & {"upstream_auth", "proxyauth"}:
            given = getattr(ctx.options, name) or ""
            _, colon, password = given.partition(":")
            if colon and not given.startswith(("@", "ldap")):  # otherwise a file of digests, or an LDAP server
                own_secrets.learn([password, base64.b64encode(given.encode()).decode()])

    def running(self) -> None:
        dumper: Any = ctx.master.addons.get("dumper")
        if dumper is None or isinstance(dumper.outfp, _Masked):
            return
        dumper.outfp = console = _Masked(dumper.outfp)
        for name in ("echo_flow", "websocket_message", "websocket_end"):
            setattr(dumper, name, console.about(getattr(dumper, name)))


class _Masked:
    def __init__(self, file: IO[str]) -> None:
        self._file = file
        self._redaction: Redaction | None = None

    def about(self, show: Any) -> Any:
        """Wraps `show`, which writes about a flow, so that the flow's secrets are masked too."""

        def shows(flow: http.HTTPFlow) -> None:
            if ctx.options.flow_detail >= DETAILS:
                self._redaction = redaction_of(flow)
            try:
                show(flow)
            finally:
                self._redaction = None

        return shows

    def write(self, text: str) -> int:
        if text == "\n":
            return self._file.write(text)
        text = masked_lines(masked((self._redaction or own_secrets.redaction).text(text)))
        if not (text.isascii() and text.isprintable()):
            pieces = _COLOURS.split(text)  # every second piece is one of mitmproxy's colour codes
            pieces[::2] = [printable(piece.replace("\t", "    "), lines=True) for piece in pieces[::2]]
            text = "".join(pieces)
        return self._file.write(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


class _Records:
    """Makes the log's records without secrets. The proxy's own are one line each, because text after a line break could
    pass for a separate message. Lines of a traceback are indented."""

    def __init__(self, make: Any) -> None:
        self._make = make

    def __call__(self, *arguments: Any, **options: Any) -> logging.LogRecord:
        record: logging.LogRecord = self._make(*arguments, **options)
        try:
            message = record.getMessage()
        except Exception:
            return record
        if message.startswith(_UNEXPECTED_DATA):  # raw unsolicited bytes, which may repeat another client's data
            record.msg, record.args = f"{_UNEXPECTED_DATA} (not shown)", ()
            return record
        text = printable(_without_secrets(message), lines=not record.name.startswith(_ONE_LINE_LOGGERS))
        if record.exc_info and record.exc_info[0] is not None:
            trace = _without_secrets("".join(traceback.format_exception(*record.exc_info))).rstrip("\n")
            text += "".join(f"\n    {printable(line)}" for line in trace.split("\n"))
            record.exc_info = None
        if text != message:
            record.msg, record.args = text, ()
        return record


def _without_secrets(text: str) -> str:
    return own_secrets.redaction.text(masked(text))
