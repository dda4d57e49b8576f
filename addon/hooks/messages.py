"""mitmproxy's flows and messages: the hooks' state on a flow, fast access to headers and bodies, redirected requests,
and the errors that the proxy answers itself.

mitmproxy's accessors decode and compare every header at each look-up, even for an absent name, which is most of a
hook's cost on the hot path. Here a message's headers are traversed once.

New messages are copies of a template. mitmproxy's constructor checks types by means of exceptions, which stay in memory
until the garbage collector runs and hold the frames of all callers with their variables.
"""

import functools
import time
from collections.abc import Sequence

from mitmproxy import http
from mitmproxy.net.http import status_codes, url

from addon.core.framing import replies
from addon.core.framing.documents import encode
from addon.core.framing.streams import BadEncoding, decompressor
from addon.core.history.keys import asker_of
from addon.core.security.secrets import Fields
from addon.core.security.untrusted import cached_if_short
from addon.graft.exchange import Reply
from addon.setting_types import Redirect
from addon.surfaces.incoming import Target
from addon.surfaces.registry import wire_of


class FlowState[T]:
    """A typed attribute of flows. Each module declares its own.

    The value is stored on the flow, because a look-up costs a tenth of that in a WeakKeyDictionary. Copies of a flow,
    and flows in a file, do not have it."""

    def __init__(self, name: str) -> None:
        self._name = f"_toolgraft_{name}"

    def get(self, flow: http.HTTPFlow) -> T | None:
        found: T | None = flow.__dict__.get(self._name)
        return found

    def pop(self, flow: http.HTTPFlow) -> T | None:
        found: T | None = flow.__dict__.pop(self._name, None)
        return found

    def __getitem__(self, flow: http.HTTPFlow) -> T:
        found: T = flow.__dict__[self._name]
        return found

    def __setitem__(self, flow: http.HTTPFlow, value: T) -> None:
        flow.__dict__[self._name] = value

    def __delitem__(self, flow: http.HTTPFlow) -> None:
        del flow.__dict__[self._name]

    def __contains__(self, flow: http.HTTPFlow) -> bool:
        return self._name in flow.__dict__


_REQUEST = http.Request.make("POST", "http://localhost/")
_REQUEST.headers.clear()
_RESPONSE = http.Response.make(200)
_RESPONSE.headers.clear()


def new_request(method: str, address: str, fields: Fields, body: bytes) -> http.Request:
    """`address`: the URL. Adds Content-Length."""
    made = copy_of(_request_to(address))
    made.data.method = method.encode()
    made.headers = http.Headers(fields)
    made.data.timestamp_start = made.data.timestamp_end = time.time()
    made.data.content = body
    put(made.headers, b"content-length", b"%d" % len(body))
    return made


@cached_if_short(256)
def _request_to(address: str) -> http.Request:
    """A template for requests to this URL. Cached, because a loop repeats its URLs and parsing is slow."""
    made = copy_of(_REQUEST)
    made.url = address
    return made


def new_response(status: int, fields: Fields) -> http.Response:
    """A response whose body is still to come."""
    made = shallow_copy(_RESPONSE)
    made.data = shallow_copy(made.data)
    made.data.status_code, made.data.reason = status, status_codes.RESPONSES.get(status, "").encode()
    made.headers = http.Headers(fields)
    made.data.timestamp_start, made.data.timestamp_end = time.time(), None
    made.data.content = None
    return made


def copy_of(request: http.Request) -> http.Request:
    """A copy whose URL and headers are independent of the original's."""
    made = shallow_copy(request)
    made.data = shallow_copy(request.data)
    made.headers = http.Headers(request.headers.fields)
    return made


def shallow_copy[T](original: T) -> T:
    """Like `copy.copy` of an object of mitmproxy, in a third of the time."""
    made = object.__new__(type(original))
    vars(made).update(vars(original))
    return made


def names(headers: http.Headers) -> set[bytes]:
    """The names of the headers, in lower case, for checks before a look-up."""
    return {name.lower() for name, _ in headers.fields}


def value(headers: http.Headers, name: bytes) -> str | None:
    """A header's value (`name` in lower case). Repeated headers are joined by commas."""
    found = [field[1] for field in headers.fields if field[0].lower() == name]
    return b", ".join(found).decode("utf-8", "surrogateescape") if found else None


def values(headers: http.Headers) -> dict[bytes, str]:
    """All headers by name in lower case. Repeated headers are joined by commas."""
    found: dict[bytes, bytes] = {}
    for name, text in headers.fields:
        lower = name.lower()
        found[lower] = b"%b, %b" % (found[lower], text) if lower in found else text
    return {name: text.decode("utf-8", "surrogateescape") for name, text in found.items()}


def put(headers: http.Headers, name: bytes, value: bytes) -> str | None:
    """Set a header (`name` in lower case) in its place and spelling, or at the end. Returns the previous value."""
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
    """The decompressed body. None if there is no body, if it does not fit its Content-Encoding, or if it then has more
    than `most` bytes."""
    return decompressed(message.data.content, value(message.headers, b"content-encoding"), most)


def decompressed(content: bytes | None, encoding: str | None, most: int) -> bytes | None:
    """Like `body_of`, for a Content-Encoding."""
    if content is None or encoding is None:
        return content
    decompress = decompressor(encoding, most)
    try:
        return None if decompress is None else decompress(content) + decompress(b"")
    except BadEncoding:
        return None


def set_body(message: http.Message, body: bytes) -> None:
    """Replace the body and its length. The compression stays the same."""
    present = names(message.headers)
    if b"content-encoding" in present:
        message.content = body
        return
    message.data.content = body
    if b"transfer-encoding" not in present:
        put(message.headers, b"content-length", b"%d" % len(body))


def ends_with_connection(flow: http.HTTPFlow) -> bool:
    """Whether only the end of the upstream's connection ends its answer. mitmproxy does not report how a connection
    ended; also a connection that was cut counts as closed."""
    response = flow.response
    if response is None or response.data.content is not None or response.is_http2 or response.is_http3:
        return False
    coding = value(response.headers, b"transfer-encoding")
    if coding is not None:
        return not coding.rstrip().lower().endswith("chunked")
    return b"content-length" not in names(response.headers)


def asker_in(request: http.Request) -> str:
    """The asker (`core.history.keys`), from the request's headers and URL. It may be a secret."""
    return asker_of(request.path, lambda name: value(request.headers, name.encode()))


@functools.lru_cache(maxsize=256)
def hostport(scheme: str, host: str, port: int) -> str:
    """Host and port as in a URL: an IPv6 address in brackets, and no port if it is the scheme's default."""
    return url.hostport(scheme, f"[{host}]" if ":" in host else host, port)


def url_of(request: http.Request) -> str:
    """The URL of a request. mitmproxy's own property lacks the brackets of IPv6 addresses."""
    where = hostport(request.scheme, request.data.host, request.data.port)
    return f"{request.scheme}://{where}{request.path}"


def set_host(request: http.Request, host: str) -> str:
    """Set `Host` in HTTP/1, the authority in HTTP/2. Returns the previous value, or ""."""
    if request.is_http2 or request.is_http3:
        claimed = host_of(request)
        request.authority = host
        request.headers.pop("host", None)
        return claimed
    before = put(request.headers, b"host", host.encode("utf-8", "surrogateescape"))
    return before or request.data.authority.decode("ascii", "replace")


def host_of(request: http.Request) -> str:
    """The host that the client sent, or ""."""
    host = value(request.headers, b"host")
    if request.is_http2 or request.is_http3:
        return request.authority or host or ""
    return host or request.data.authority.decode("ascii", "replace")


def redirected(request: http.Request, redirects: Sequence[Redirect]) -> http.Request | None:
    """The request to send instead, or None if its host is not redirected.

    All requests for a host are redirected, not only those to a surface, because a key must reach one place only."""
    host = request.data.host.lower()
    to = next((redirect for redirect in redirects if redirect.host == host), None)
    if to is None:
        return None
    made = copy_of(request)
    made.scheme, made.data.host, made.data.port = to.scheme, to.to_host, to.to_port
    made.path = to.path + made.path
    set_host(made, hostport(to.scheme, to.to_host, to.to_port))
    return made


def answer(flow: http.HTTPFlow, response: http.Response) -> None:
    """Answer instead of the upstream, before the body has arrived. mitmproxy cannot stream a body to nowhere."""
    flow.response, flow.request.stream = response, False


def response_of(reply: Reply) -> http.Response:
    headers = {"content-type": reply.content_type}
    if reply.status == 503:
        headers["retry-after"] = replies.RETRY_AFTER
    return http.Response.make(reply.status, reply.body, headers)


def refusal(code: int, status: str, message: str) -> http.Response:
    """An error in Google's format, also for requests to no surface."""
    return _error(code, status, message, None)


def unavailable(target: Target | None) -> http.Response:
    """The refusal of a request because the proxy ends, in the form of its surface."""
    return _error(503, "UNAVAILABLE", replies.PROXY_ENDING, target)


def unsupported(target: Target, encoding: str) -> http.Response:
    """The refusal of a request whose body cannot be decompressed."""
    message = f"the request's content encoding {encoding[:60]!r} is not supported: use gzip, deflate, or none"
    return _error(415, "INVALID_ARGUMENT", message, target)


def changed(target: Target, why: str) -> http.Response:
    """The refusal of a request that another addon has changed after the grafting: a call in its answer would not be
    captured."""
    return _error(400, "INVALID_ARGUMENT", f"another addon made the request unreadable: {why}", target)


def unreachable(target: Target, reason: str) -> http.Response:
    return failed(target, f"the model cannot be reached: {reason}")


def too_long(target: Target, most: int) -> http.Response:
    return failed(target, f"the model's answer is too long: it has more than {most} bytes (graft_max_answer)")


INTERIM = (100, 102, 103)


def interim(target: Target, status: int) -> http.Response:
    """The error for an interim answer (1xx). Over HTTP/1.1 mitmproxy takes it for the final answer, then drops it, and
    the client would wait forever."""
    return failed(target, f"the server sent an interim answer ({status}), which mitmproxy cannot read")


def failed(target: Target, message: str) -> http.Response:
    """The error for an upstream without a usable answer."""
    return _error(502, "UNAVAILABLE", message, target)


def _error(code: int, status: str, message: str, target: Target | None) -> http.Response:
    error = replies.error(code, status, f"toolgraft: {message}")
    body = encode(error) if target is None else wire_of(target).error(error)
    return response_of(Reply(code, replies.content_type("json"), body))
