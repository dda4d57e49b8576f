"""mitmproxy's messages, their headers and bodies, as cheaply as they can be had.

mitmproxy's own accessors decode and compare every header anew for each look-up, and an absent one costs as much as one
that is there; on a proxy's hot path that is most of what a hook costs. Here a message's headers are gone through once.

New messages are copies of a message. mitmproxy checks the types of one that is made by its constructor, with exceptions
that stay in memory until Python looks for circles: they hold the frames of all callers, and whatever is in these.
"""

import copy
import functools
import time
from collections.abc import Iterable

from mitmproxy import http
from mitmproxy.net.http import status_codes, url

from addon.core.framing.encoding import BadEncoding, decompressor
from addon.core.history.asker import asker_of

Fields = Iterable[tuple[bytes, bytes]]

_REQUEST = http.Request.make("POST", "http://localhost/")
_REQUEST.headers.clear()
_RESPONSE = http.Response.make(200)
_RESPONSE.headers.clear()


def new_request(method: str, address: str, fields: Fields, body: bytes) -> http.Request:
    """`address` is the URL. The length of the body is added."""
    made = copy_of(_REQUEST)
    made.url = address
    made.data.method = method.encode()
    made.headers = http.Headers(fields)
    made.data.timestamp_start = made.data.timestamp_end = time.time()
    made.data.content = body
    put(made.headers, b"content-length", b"%d" % len(body))
    return made


def new_response(status: int, fields: Fields) -> http.Response:
    """One whose body is still to come."""
    made = copy.copy(_RESPONSE)
    made.data = copy.copy(made.data)
    made.data.status_code, made.data.reason = status, status_codes.RESPONSES.get(status, "").encode()
    made.headers = http.Headers(fields)
    made.data.timestamp_start, made.data.timestamp_end = time.time(), None
    made.data.content = None
    return made


def copy_of(request: http.Request) -> http.Request:
    """A request whose URL and headers may be changed without changing this one's."""
    made = copy.copy(request)
    made.data = copy.copy(request.data)
    made.headers = http.Headers(request.headers.fields)
    return made


def names(headers: http.Headers) -> set[bytes]:
    """The names that there are, in lower case: what is not among them need not be looked up."""
    return {name.lower() for name, _ in headers.fields}


def value(headers: http.Headers, name: bytes) -> str | None:
    """A header's value (`name` in lower case); of one that is given several times, all of them, with commas."""
    found = [field[1] for field in headers.fields if field[0].lower() == name]
    return b", ".join(found).decode("utf-8", "surrogateescape") if found else None


def put(headers: http.Headers, name: bytes, value: bytes) -> str | None:
    """Set a header (`name` in lower case) in its place, or at the end; the spelling that it came in stays. Gives the
    value that it had."""
    fields: list[tuple[bytes, bytes]] = []
    found: list[bytes] = []
    for field in headers.fields:
        if field[0].lower() != name:
            fields.append(field)
            continue
        if not found:
            fields.append((field[0], value))
        found.append(field[1])
    if not found:
        fields.append((name, value))
    headers.fields = tuple(fields)
    return b", ".join(found).decode("utf-8", "surrogateescape") if found else None


UNDECODED = "the model's answer cannot be decompressed, or has more than graft_max_answer bytes then"


def body_of(message: http.Message, most: int) -> bytes | None:
    """The body without its compression; None where there is none, its compression is not what the headers say, or it
    has more than `most` bytes then."""
    content = message.data.content
    if content is None or b"content-encoding" not in names(message.headers):
        return content
    decompress = decompressor(value(message.headers, b"content-encoding") or "", most)
    try:
        return None if decompress is None else decompress(content) + decompress(b"")
    except BadEncoding:
        return None


def set_body(message: http.Message, body: bytes) -> None:
    """Replace the body, and its length; compressed as the one before it."""
    present = names(message.headers)
    if b"content-encoding" in present:
        message.content = body
        return
    message.data.content = body
    if b"transfer-encoding" not in present:
        put(message.headers, b"content-length", b"%d" % len(body))


def asker_in(request: http.Request) -> str:
    """Who asks, by the request's headers and URL: see `core.history.asker`. It may be a secret."""
    return asker_of(request.path, lambda name: value(request.headers, name.encode()))


@functools.lru_cache(maxsize=256)
def hostport(scheme: str, host: str, port: int) -> str:
    """As a URL has them: an IPv6 address in brackets, and the port where it is not the usual one."""
    return url.hostport(scheme, f"[{host}]" if ":" in host else host, port)


def url_of(request: http.Request) -> str:
    """The URL of a request, as other programs read it: mitmproxy writes IPv6 addresses without their brackets."""
    where = hostport(request.scheme, request.data.host, request.data.port)
    return f"{request.scheme}://{where}{request.path}"


def set_host(request: http.Request, host: str) -> str:
    """As the protocol says it: `Host` in HTTP/1, the authority in HTTP/2. Gives what stood there, "" for nothing."""
    if request.is_http2 or request.is_http3:
        claimed = host_of(request)
        request.authority = host
        request.headers.pop("host", None)
        return claimed
    before = put(request.headers, b"host", host.encode("utf-8", "surrogateescape"))
    return before or request.data.authority.decode("ascii", "replace")


def host_of(request: http.Request) -> str:
    """As the client says it, "" where it does not."""
    host = value(request.headers, b"host")
    if request.is_http2 or request.is_http3:
        return request.authority or host or ""
    return host or request.data.authority.decode("ascii", "replace")
