"""The guard of the control API: an ASGI layer that checks every request first.

It checks `Host`, `Origin` and `Sec-Fetch-Site`, then the bearer token or the session of a web page, then the body's
type and size, so an unauthorised caller learns nothing else. The guard knows no routes except the paths that need no
token. It puts the caller's rights into the scope, as `access`; each route checks them.
"""

import hmac
import logging
from collections.abc import Callable, Collection, Mapping

from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from addon.core.security.browsers import host_allowed, page_allowed
from addon.settings import Settings
from addon.web.access import ANYONE, OWNER, Access
from addon.web.own_token import TOKEN_PREFIX
from addon.web.page_sessions import PAGE_HEADER, PageSessions
from addon.web.problems import Problem, refusal
from addon.web.tokens import Tokens

logger = logging.getLogger("toolgraft")

_METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE")
_HEADERS = ("authorization", "content-type", "last-event-id", "x-goog-api-key", "x-graft-session")


class Guard:
    """`settings` is called for each request, because options may change. `token`: the proxy's own; None: no token is
    required. `tokens`: all others. `page_sessions`: of web pages that are signed in. `open_paths` never need a token.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        settings: Callable[[], Settings],
        token: str | None,
        tokens: Tokens,
        page_sessions: PageSessions | None = None,
        open_paths: Collection[str],
    ) -> None:
        self._app = app
        self._settings = settings
        self._token = None if token is None else token.encode()
        self._tokens = tokens
        self._page_sessions = page_sessions
        self._open_paths = frozenset(open_paths)
        self._with_cors = CORSMiddleware(
            self._check,
            allow_origin_regex=".*",  # other origins were refused before
            allow_methods=_METHODS,
            allow_headers=_HEADERS,
            allow_private_network=True,
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            raise ValueError(f"the control API does not speak {scope['type']}")
        headers = dict(scope["headers"])
        try:
            self._check_place(headers)
            if b"transfer-encoding" in headers and b"content-length" in headers:
                # h11 accepts this, but a load balancer may take other bytes for the body
                words = "Content-Length: not together with Transfer-Encoding"
                raise Problem(400, words, headers={"Connection": "close"}, field="Content-Length")
        except Problem as problem:
            await refusal(problem, scope)(scope, receive, send)
            return
        await self._with_cors(scope, receive, send)

    async def _check(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers: dict[bytes, bytes] = dict(scope["headers"])
        try:
            if scope["path"] not in self._open_paths:
                scope["access"] = self._access(headers)
            if scope["type"] == "http" and (
                b"transfer-encoding" in headers or headers.get(b"content-length", b"0") != b"0"
            ):
                receive = self._checked_body(headers, receive)
        except Problem as problem:
            await refusal(problem, scope)(scope, receive, send)
            return
        await self._app(scope, receive, send)

    def _check_place(self, headers: Mapping[bytes, bytes]) -> None:
        host = headers.get(b"host", b"").decode("latin-1")
        settings = self._settings()
        if not host_allowed(host, settings.allow_hosts):
            raise Problem(403, "Host: not a name of this machine. Add other names to graft_allow_hosts", field="Host")
        origin, site = headers.get(b"origin"), headers.get(b"sec-fetch-site")
        if origin is None and site is None:
            return
        if not page_allowed(_text(origin), _text(site), settings.allow_origins, host=host):
            field = "Sec-Fetch-Site" if origin is None else "Origin"
            raise Problem(
                403,
                f"{field}: pages of other sites are refused. Add allowed origins to graft_allow_origins",
                field=field,
            )

    def _access(self, headers: Mapping[bytes, bytes]) -> Access:
        """The caller's rights. Raises Problem (401, 503)."""
        if self._token is None:
            return ANYONE
        try:
            found = self._bearer(headers.get(b"authorization", b"")) or self._page(headers)
        except OSError as error:
            logger.error("%s", error)
            raise Problem(503, "the tokens cannot be read; see the proxy's log") from None
        if found is None:
            raise Problem(
                401,
                "a bearer token is needed: `./run_proxy.sh token` or `toolgraft token` shows it",
                headers={"WWW-Authenticate": 'Bearer realm="toolgraft"'},
            )
        return found

    def _bearer(self, authorization: bytes) -> Access | None:
        assert self._token is not None
        scheme, _, given = authorization.partition(b" ")
        if scheme.lower() != b"bearer":
            return None
        given = given.strip()
        if hmac.compare_digest(given, self._token):
            return OWNER
        return self._tokens.access(given.decode("latin-1")) if given.startswith(TOKEN_PREFIX.encode()) else None

    def _page(self, headers: Mapping[bytes, bytes]) -> Access | None:
        if self._page_sessions is None or PAGE_HEADER.encode() not in headers:
            return None
        return self._page_sessions.access(headers)

    def _checked_body(self, headers: Mapping[bytes, bytes], receive: Receive) -> Receive:
        """Wraps `receive`, which then raises Problem (413) for a too large body. Raises Problem (413, 415) itself."""
        media_type = headers.get(b"content-type", b"").partition(b";")[0].strip().lower()
        if media_type != b"application/json":
            raise Problem(415, "Content-Type: must be application/json", field="Content-Type")
        limit = self._settings().max_body
        too_large = Problem(413, f"the body is larger than graft_max_body, {limit} bytes")
        length = headers.get(b"content-length", b"")
        if length.isdigit() and int(length) > limit:
            raise too_large
        received = 0

        async def counted() -> Message:
            nonlocal received
            message = await receive()
            received += len(message.get("body", b""))
            if received > limit:
                raise too_large
            return message

        return counted


def _text(header: bytes | None) -> str | None:
    return None if header is None else header.decode("latin-1")
