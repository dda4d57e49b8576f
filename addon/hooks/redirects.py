"""`graft_redirect`: where the requests of a host are sent instead. What hooks see of a request is what it says."""

from collections.abc import Sequence

from mitmproxy import http

from addon.hooks.headers import copy_of, hostport, set_host
from addon.settings import Redirect


def redirected(request: http.Request, redirects: Sequence[Redirect]) -> http.Request | None:
    """What is sent in the place of a request; None where it is sent as it stands.

    Whatever is asked of a host goes where the surface's requests go: a key must not go elsewhere than them."""
    host = request.data.host.lower()
    to = next((one for one in redirects if one.host == host), None)
    if to is None:
        return None
    made = copy_of(request)
    made.scheme, made.data.host, made.data.port = to.scheme, to.to_host, to.to_port
    made.path = to.path + made.path
    set_host(made, hostport(to.scheme, to.to_host, to.to_port))
    return made
