"""Finds the surface and session of each request, refuses clients that may not use the proxy, and sets `Host`."""

import asyncio
import base64
import binascii
import difflib
import logging
import socket
from dataclasses import dataclass
from weakref import WeakKeyDictionary, WeakSet

from mitmproxy import connection, ctx, http
from mitmproxy.proxy.mode_specs import ReverseMode
from mitmproxy.proxy.server_hooks import ServerConnectionHookData
from mitmproxy.tls import ClientHelloData

from addon.core.history.keys import asker_of, sender_of
from addon.core.security.browsers import host_allowed, page_allowed
from addon.core.summaries import problem
from addon.graft.exchange import Reply
from addon.graft.grafter import EXCHANGE_FAILED
from addon.graft.session_config import SessionConfig
from addon.hooks.draining import InFlight
from addon.hooks.lifecycle import Lifecycle
from addon.hooks.messages import (
    FlowState,
    answer,
    decompressed,
    host_of,
    hostport,
    names,
    redirected,
    refusal,
    response_of,
    set_host,
    unavailable,
    url_of,
    value,
    values,
)
from addon.hooks.mitmproxy_patches import choose_destination
from addon.hooks.runtime import Runtime
from addon.hooks.streams import stream_large, stream_large_answer
from addon.hooks.upstream_flows import ShadowFlows
from addon.settings import Settings
from addon.surfaces.incoming import Incoming, Operation, Target
from addon.surfaces.registry import home_of, is_surface_host, is_surface_path, match, match_path, takes_ids
from addon.tools.http_connections import is_own_address
from addon.urls import is_loopback, proxy_user
from addon.web import tasks
from store.base import Store, StoreError
from store.models import SESSION_FORM, SESSION_NAME

logger = logging.getLogger("toolgraft")

SESSION_HEADER = "x-graft-session"
_OWN_CONTROL = "the proxy does not forward to its own control API"
_ANY_ADDRESS = ("0.0.0.0", "::")
_PROXY_HEADERS = (SESSION_HEADER.encode(), b"proxy-authorization")
_BROWSER_HEADERS = (b"origin", b"sec-fetch-site")


@dataclass(slots=True)
class Route:
    """The target and the session of a request to a surface. `is_named`: by the client. `user`: the proxy's, or ""."""

    target: Target
    session: str
    takes_ids: bool
    is_named: bool = False
    user: str = ""

    def incoming(self, request: http.Request, settings: Settings) -> Incoming | None:
        """The current request. None if its body cannot be decompressed, or is then too large."""
        headers = values(request.headers)
        body = decompressed(request.data.content, headers.get(b"content-encoding"), settings.max_body)
        if body is None:
            return None
        return Incoming(
            self.target,
            self.session,
            body,
            method=request.method,
            url=url_of(request),
            fields=request.headers.fields,
            asker=asker_of(request.path, lambda name: headers.get(name.encode())),
            sender=sender_of(request.headers.fields, settings.user_headers, self.user),
            user_agent=headers.get(b"user-agent", ""),
            takes_ids=self.takes_ids,
        )


class Routing:
    """Runs before the grafting. `routes` holds a `Route` for each request to a surface."""

    def __init__(self, lifecycle: Lifecycle, shadow_flows: ShadowFlows, in_flight: InFlight) -> None:
        self.lifecycle = lifecycle
        self.in_flight = in_flight
        self.shadow_flows = shadow_flows
        self.routes = FlowState[Route]("route")
        self._users: WeakKeyDictionary[connection.Client, str] = WeakKeyDictionary()
        self._models_only: WeakSet[connection.Client] = WeakSet()
        self._keeps_host = False

    # --- hooks ------------------------------------------------------------------------------------------------

    def configure(self, updated: set[str]) -> None:
        if "keep_host_header" in updated:
            self._keeps_host = ctx.options.keep_host_header  # cached, because reading an option copies it

    def http_connect(self, flow: http.HTTPFlow) -> None:
        runtime = self.lifecycle.runtime
        if runtime is None:
            return
        if self._is_control(flow.request.data.host, flow.request.data.port):
            self.refuse(flow, 403, "PERMISSION_DENIED", _OWN_CONTROL)
            return
        user = _user_of(flow, names(flow.request.headers))
        if user and not _signed_in(flow):
            user, models_only = proxy_user(user)
            if models_only:
                self._models_only.add(flow.client_conn)
            if not user:
                return
            if not SESSION_NAME.fullmatch(user):
                self._refuse_session(flow, user, "the user name in the proxy URL")
                return
            self._users[flow.client_conn] = user

    def tls_clienthello(self, data: ClientHelloData) -> None:
        """Leaves connections to other hosts encrypted if the client asks for that; it then sees their certificates."""
        address = data.context.server.address
        if data.context.client in self._models_only and address is not None and not is_surface_host(address[0]):
            data.ignore_connection = True

    def requestheaders(self, flow: http.HTTPFlow) -> None:
        runtime = self.lifecycle.runtime
        if runtime is None or flow in self.shadow_flows.flows:
            return
        request = flow.request
        settings, is_answered = runtime.settings, flow.response is not None
        if settings.redirect and not is_answered:
            choose_destination[flow] = self.redirected_request
        mode = flow.client_conn.proxy_mode
        prefixed: str | None = None
        claimed: str | None = None  # the Host that a client of the reverse proxy sent
        if isinstance(mode, ReverseMode):
            prefixed = _remove_prefix(request)
            target = match_path(request.method, request.path)
            claimed = self._to_upstream(flow, mode)
        else:
            target = match(request.method, request.data.host, request.path)
        present = names(request.headers)
        why = self._refusal_reason(request, target, claimed, present, settings)
        if why is not None:
            self.refuse(flow, 403, "PERMISSION_DENIED", why)
            return
        if runtime.ending and not (target is None and prefixed is None):
            answer(flow, unavailable(target))
            return
        if target is None and not is_answered and (claimed is not None or is_surface_host(request.data.host)):
            stream_large(flow, settings)
        if target is None and prefixed is None:
            if not present.isdisjoint(_PROXY_HEADERS):
                _remove_proxy_headers(request)
            return
        self._assign_session(flow, target, prefixed, settings, present)

    def responseheaders(self, flow: http.HTTPFlow) -> None:
        stream_large_answer(flow)

    async def server_connect(self, data: ServerConnectionHookData) -> None:
        """Refuses a connection to the control API by any other name or address of this machine."""
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

    def _refusal_reason(
        self, request: http.Request, target: Target | None, claimed: str | None, present: set[bytes], settings: Settings
    ) -> str | None:
        """Why the request is refused, or None. For a reverse proxy every path is guarded: its server receives another
        Host than the client sent, and cannot guard itself."""
        if claimed is not None:
            if not host_allowed(claimed, settings.allow_hosts):
                return f"Host {claimed!r} is not allowed here: see graft_allow_hosts"
        elif self._is_control(request.data.host, request.data.port):
            return _OWN_CONTROL
        if present.isdisjoint(_BROWSER_HEADERS):
            return None
        if claimed is None and target is None and not is_surface_path(request.data.host, request.path):
            return None
        origin, site = value(request.headers, b"origin"), value(request.headers, b"sec-fetch-site")
        if page_allowed(origin, site, settings.allow_origins, host=claimed or ""):
            return None
        return f"a web page of {origin or 'another site'} may not use this proxy: see graft_allow_origins"

    def _to_upstream(self, flow: http.HTTPFlow, mode: ReverseMode) -> str:
        """Set the upstream's Host. If the upstream is a Gemini host, choose the one that serves the path. Returns the
        Host that the client sent, or ""."""
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

    def _assign_session(
        self, flow: http.HTTPFlow, target: Target | None, prefixed: str | None, settings: Settings, present: set[bytes]
    ) -> None:
        headers = flow.request.headers
        named = headers.pop(SESSION_HEADER, None) if SESSION_HEADER.encode() in present else None
        requested_user, _ = proxy_user(_user_of(flow, present))
        owner = _signed_in(flow)
        user = owner or (self._users.get(flow.client_conn) if self._users else None) or requested_user
        session, is_named = settings.session, False
        for name, where in ((prefixed, "the path"), (named, SESSION_HEADER), (user, "the user name in the proxy URL")):
            if name:
                if not SESSION_NAME.fullmatch(name):
                    self._refuse_session(flow, name, where)
                    return
                session, is_named = name, True
                break
        if owner is not None and not settings.may_use(owner, session):
            why = f"session {session!r} is not that of {owner!r}: see graft_session_access"
            self.refuse(flow, 403, "PERMISSION_DENIED", why)
            return
        if target is not None:
            self.routes[flow] = Route(target, session, takes_ids(target, flow.request.path), is_named, user or "")
            if target.operation is not Operation.LIVE:
                self.in_flight.add(flow, target)

    def _is_control(self, host: str, port: int) -> bool:
        own = self.lifecycle.runtime.control_address if self.lifecycle.runtime else None
        if own is None or port != own[1]:
            return False
        if host == own[0] or is_loopback(host) or host in _ANY_ADDRESS:
            return True
        return own[0] in _ANY_ADDRESS and is_own_address(host)

    def redirected_request(self, flow: http.HTTPFlow) -> http.Request | None:
        """The request that `graft_redirect` sends instead of the flow's, or None."""
        return redirected(flow.request, self.lifecycle.settings().redirect)

    # --- refusals ---------------------------------------------------------------------------------------------

    def _refuse_session(self, flow: http.HTTPFlow, name: str, where: str) -> None:
        why = f"{where} names the session {name!r}, which must be {SESSION_FORM}"
        self.refuse(flow, 400, "INVALID_ARGUMENT", why)

    def refuse(self, flow: http.HTTPFlow, code: int, status: str, why: str) -> None:
        """Answer instead of the upstream, unless another addon has. mitmproxy's log would suggest that the upstream had
        answered, so a warning names the proxy and the reason."""
        if flow.response is not None:
            return
        answer(flow, refusal(code, status, why))
        if (runtime := self.lifecycle.runtime) is not None:
            runtime.grafter.warn(f"the proxy refused a request: {why}")


def _remove_prefix(request: http.Request) -> str | None:
    """Remove `/@NAME` from the path. Returns the name, or None."""
    if not request.data.path.startswith(b"/@"):
        return None
    name, slash, rest = request.path[2:].partition("/")
    request.path = slash + rest or "/"
    return name


def _remove_proxy_headers(request: http.Request) -> None:
    """Remove the headers that are meant for this proxy only."""
    fields = request.headers.fields
    others = tuple(field for field in fields if field[0].lower() not in _PROXY_HEADERS)
    if len(others) < len(fields):
        request.headers.fields = others


def _signed_in(flow: http.HTTPFlow) -> str | None:
    """The user that mitmproxy has authenticated; None if it requires no password."""
    checked = flow.metadata.get("proxyauth")
    return str(checked[0]) if checked else None


def _user_of(flow: http.HTTPFlow, present: set[bytes]) -> str:
    """Remove the proxy credentials from the request. Returns their user name, which is unchecked, or ""."""
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


async def session_config_of(flow: http.HTTPFlow, route: Route, runtime: Runtime) -> SessionConfig | None:
    """None if the session has no tools, or if its configuration cannot be read: then the flow gets an error as its
    response, unless the settings let it pass unchanged."""
    try:
        return await runtime.grafter.session_config(route.session)
    except EXCHANGE_FAILED as error:
        outcome = runtime.grafter.failure_outcome(route.target, b"", error)
        if isinstance(outcome, Reply):
            answer(flow, response_of(outcome))
        return None


_MOST_MENTIONED = 100
"""The most names that are logged. Limited because clients choose them."""

_MOST_SEARCHED = 1000
"""The most sessions that are searched for the nearest name."""


class UnknownSessions:
    def __init__(self) -> None:
        self._mentioned: set[str] = set()

    def mention(self, session: str, store: Store) -> None:
        """Starts the check and returns immediately."""
        if session in self._mentioned or len(self._mentioned) >= _MOST_MENTIONED:
            return
        self._mentioned.add(session)
        tasks.spawn(_mention(session, store), name="a session without tools")


async def _mention(session: str, store: Store) -> None:
    try:
        page = await store.sessions(limit=_MOST_SEARCHED)
    except StoreError:
        return  # an outage is reported elsewhere
    names = [other.name for other in page.items if other.toolset is not None and other.name != session]
    nearest = next(iter(difflib.get_close_matches(session, names, 1)), "")
    logger.warning(
        "session %s has no tools, and its requests pass unchanged%s",
        session,
        f": did the client mean {nearest}?" if nearest else "",
        extra=problem("session_without_tools", session=session, nearest=nearest),
    )
