"""Errors that the proxy answers itself, as mitmproxy's responses."""

from mitmproxy import http

from addon.core.framing import replies
from addon.core.framing.documents import encode
from addon.graft.exchange import Reply
from addon.surfaces import Target, wire_of


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
