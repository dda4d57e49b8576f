"""Where a request belongs and where it goes: its surface and session, who may not use the proxy, redirects, `Host`."""

import asyncio
import base64
import binascii
import logging
import socket
from dataclasses import dataclass
from weakref import WeakKeyDictionary

from mitmproxy import connection, ctx, http
from mitmproxy.proxy.mode_specs import ReverseMode
from mitmproxy.proxy.server_hooks import ServerConnectionHookData

from addon.core.framing import replies
from addon.core.framing.documents import encode
from addon.core.security.browsers import host_allowed, page_allowed
from addon.hooks.draining import InFlight
from addon.hooks.flow_state import FlowState
from addon.hooks.headers import host_of, hostport, names, set_host, value
from addon.hooks.lifecycle import Lifecycle
from addon.hooks.onward import choose_destination
from addon.hooks.redirects import redirected
from addon.hooks.shadow_flows import ShadowFlows
from addon.settings import Settings, is_loopback
from addon.surfaces import (
    Operation,
    Target,
    home_of,
    is_surface_host,
    is_surface_path,
    match,
    match_path,
    takes_ids,
)
from addon.tools.egress import is_own_address
from store.models import SESSION_FORM, SESSION_NAME

logger = logging.getLogger("toolgraft")

SESSION_HEADER = "x-graft-session"
ENDING = "the proxy is ending"
_OWN_CONTROL = "the proxy does not forward to its own control API"
_ANY = ("0.0.0.0", "::")
_OWN = (SESSION_HEADER.encode(), b"proxy-authorization")
_PAGES = (b"origin", b"sec-fetch-site")


@dataclass(slots=True)
class Route:
    """A request to a surface: what it is, and whose."""

    target: Target
    session: str
    takes_ids: bool


class Routing:
    """Runs before the grafting, and leaves a `Route` for each request that is a surface's."""

    def __init__(self, lifecycle: Lifecycle, shadow_flows: ShadowFlows, in_flight: InFlight) -> None:
        self.lifecycle = lifecycle
        self.in_flight = in_flight
        self.shadow_flows = shadow_flows
        self.routes = FlowState[Route]("route")
        self._users: WeakKeyDictionary[connection.Client, str] = WeakKeyDictionary()
        self._keeps_host = False

    # --- hooks ------------------------------------------------------------------------------------------------

    def configure(self, updated: set[str]) -> None:
        if "keep_host_header" in updated:
            self._keeps_host = ctx.options.keep_host_header  # reading an option copies it: not once a request

    def http_connect(self, flow: http.HTTPFlow) -> None:
        runtime = self.lifecycle.runtime
        if runtime is None:
            return
        if self._is_control(flow.request.data.host, flow.request.data.port):
            flow.response = refusal(403, "PERMISSION_DENIED", _OWN_CONTROL)
            return
        user = _user_of(flow, names(flow.request.headers))
        if user and not _signed_in(flow):
            if not SESSION_NAME.fullmatch(user):
                flow.response = _bad_session(user, "the user name in the proxy URL")
                return
            self._users[flow.client_conn] = user

    def requestheaders(self, flow: http.HTTPFlow) -> None:
        runtime = self.lifecycle.runtime
        if runtime is None or flow.response is not None or flow in self.shadow_flows.flows:
            return
        request = flow.request
        settings = runtime.settings
        if settings.redirect:
            choose_destination[flow] = self.elsewhere
        mode = flow.client_conn.proxy_mode
        prefixed: str | None = None
        claimed: str | None = None  # the Host that a client of a reverse port said
        if isinstance(mode, ReverseMode):
            prefixed = _take_prefix(request)
            target = match_path(request.method, request.path)
            claimed = self._to_upstream(flow, mode)
        else:
            target = match(request.method, request.data.host, request.path)
        present = names(request.headers)
        why = self._why_not(request, target, claimed, present, settings)
        if why is not None:
            flow.response = refusal(403, "PERMISSION_DENIED", why)
            return
        if runtime.ending and not (target is None and prefixed is None):
            flow.response = refusal(503, "UNAVAILABLE", ENDING)
            return
        if target is None and prefixed is None:
            if not present.isdisjoint(_OWN):
                _take_own(request)
            return
        self._settle(flow, target, prefixed, settings, present)

    async def server_connect(self, data: ServerConnectionHookData) -> None:
        """Names and other spellings of this machine are seen through here, before the connection is made."""
        runtime = self.lifecycle.runtime
        address = data.server.address
        own = runtime.control_address if runtime is not None else None
        if own is None or address is None or address[1] != own[1]:
            return
        try:
            found = await asyncio.get_running_loop().getaddrinfo(*address[:2], type=socket.SOCK_STREAM)
        except (OSError, UnicodeError):
            return
        if any(self._is_control(str(one[4][0]), own[1]) for one in found):
            data.server.error = _OWN_CONTROL

    def _why_not(
        self, request: http.Request, target: Target | None, claimed: str | None, present: set[bytes], settings: Settings
    ) -> str | None:
        """What speaks against a request, whatever it asks for; None if nothing does. A reverse port guards all that is
        behind it: a server there is told another Host than the client said, and cannot guard itself."""
        if claimed is not None:
            if not host_allowed(claimed, settings.allow_hosts):
                return f"Host {claimed!r} is not allowed here: see graft_allow_hosts"
        elif self._is_control(request.data.host, request.data.port):
            return _OWN_CONTROL
        if present.isdisjoint(_PAGES):
            return None
        if claimed is None and target is None and not is_surface_path(request.data.host, request.path):
            return None
        origin, site = value(request.headers, b"origin"), value(request.headers, b"sec-fetch-site")
        if page_allowed(origin, site, settings.allow_origins, host=claimed or ""):
            return None
        return f"a web page of {origin or 'another site'} may not use this proxy: see graft_allow_origins"

    def _to_upstream(self, flow: http.HTTPFlow, mode: ReverseMode) -> str:
        """Say the upstream's Host, and where a Gemini host is the upstream, go to the one that serves the path. Gives
        the Host that the client said, "" for none."""
        upstream = flow.server_conn.address
        if upstream is None:
            return host_of(flow.request)
        host = upstream[0]
        if is_surface_host(host) and (home := home_of(flow.request.path)) is not None:
            host = flow.request.data.host = home
        if not self._keeps_host:
            return host_of(flow.request)
        return set_host(flow.request, hostport(mode.scheme, host, upstream[1]))

    # --- sessions ---------------------------------------------------------------------------------------------

    def _settle(
        self, flow: http.HTTPFlow, target: Target | None, prefixed: str | None, settings: Settings, present: set[bytes]
    ) -> None:
        headers = flow.request.headers
        named = headers.pop(SESSION_HEADER, None) if SESSION_HEADER.encode() in present else None
        said = _user_of(flow, present)
        owner = _signed_in(flow)
        user = owner or (self._users.get(flow.client_conn) if self._users else None) or said
        session = settings.session
        for name, where in ((prefixed, "the path"), (named, SESSION_HEADER), (user, "the user name in the proxy URL")):
            if name:
                if not SESSION_NAME.fullmatch(name):
                    flow.response = _bad_session(name, where)
                    return
                session = name
                break
        if owner is not None and not settings.may_use(owner, session):
            why = f"session {session!r} is not that of {owner!r}: see graft_session_access"
            flow.response = refusal(403, "PERMISSION_DENIED", why)
            return
        if target is not None:
            self.routes[flow] = Route(target, session, takes_ids(target, flow.request.path))
            if target.operation is not Operation.LIVE:
                self.in_flight.add(flow)

    def _is_control(self, host: str, port: int) -> bool:
        own = self.lifecycle.runtime.control_address if self.lifecycle.runtime else None
        if own is None or port != own[1]:
            return False
        if host == own[0] or is_loopback(host) or host in _ANY:
            return True
        return own[0] in _ANY and is_own_address(host)

    def elsewhere(self, flow: http.HTTPFlow) -> http.Request | None:
        """What is sent in the place of the flow's request, by `graft_redirect`; None where it is sent as it stands."""
        return redirected(flow.request, self.lifecycle.settings().redirect)


def _take_prefix(request: http.Request) -> str | None:
    """Take `/@NAME` off the path; the name, or None."""
    if not request.data.path.startswith(b"/@"):
        return None
    name, slash, rest = request.path[2:].partition("/")
    request.path = slash + rest or "/"
    return name


def _take_own(request: http.Request) -> None:
    """Take off what was said to this proxy alone."""
    fields = request.headers.fields
    kept = tuple(field for field in fields if field[0].lower() not in _OWN)
    if len(kept) < len(fields):
        request.headers.fields = kept


def _signed_in(flow: http.HTTPFlow) -> str | None:
    """The user whose password mitmproxy itself has asked for; None where it asks nobody."""
    checked = flow.metadata.get("proxyauth")
    return str(checked[0]) if checked else None


def _user_of(flow: http.HTTPFlow, present: set[bytes]) -> str:
    """The user name of the proxy URL, as the client says it, taken off the request; "" for none."""
    header = flow.request.headers.pop("proxy-authorization", None) if b"proxy-authorization" in present else None
    if header is None:
        return ""
    kind, _, coded = header.partition(" ")
    if kind.lower() != "basic":
        return ""
    try:
        return base64.b64decode(coded, validate=True).decode().partition(":")[0]
    except (binascii.Error, UnicodeDecodeError):
        return ""


def refusal(code: int, status: str, message: str) -> http.Response:
    """An answer of the proxy's own, in Google's error shape."""
    return http.Response.make(
        code,
        encode(replies.error(code, status, f"toolgraft: {message}")),
        {"content-type": "application/json; charset=UTF-8"},
    )


def _bad_session(name: str, where: str) -> http.Response:
    return refusal(400, "INVALID_ARGUMENT", f"{where} names the session {name!r}, which must be {SESSION_FORM}")
