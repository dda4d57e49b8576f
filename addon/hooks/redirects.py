"""`graft_redirect`: sends the requests for a host to another host. Hooks still see the original request."""

from collections.abc import Sequence

from mitmproxy import http

from addon.hooks.headers import copy_of, hostport, set_host
from addon.settings import Redirect


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
