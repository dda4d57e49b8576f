"""The caller of a front door: its session and its Gemini API key."""

from starlette.requests import HTTPConnection

from addon.gateway.engine import Caller
from addon.web.access import Access
from addon.web.problems import Problem
from store.models import SESSION_FORM, SESSION_NAME

SESSION_HEADER = "x-graft-session"
KEY_HEADER = "x-goog-api-key"
_NO_KEY = (
    f"no Gemini API key: send one as {KEY_HEADER}, or start the proxy with GEMINI_API_KEY or GOOGLE_API_KEY in its "
    "environment"
)
_BAD_KEY = (
    f"the Gemini API key, from {KEY_HEADER} or the proxy's environment, has characters that a header cannot have: "
    "use printable ASCII"
)


def session_of(request: HTTPConnection, default: str) -> str:
    """The session in the request's header, else the default. Raises Problem (400)."""
    session = request.headers.get(SESSION_HEADER, default)
    if not SESSION_NAME.fullmatch(session):
        raise Problem(400, f"{SESSION_HEADER}: {session!r} must be {SESSION_FORM}", field=SESSION_HEADER)
    return session


def access_of(request: HTTPConnection) -> Access:
    """The caller's rights, as the guard determined them."""
    access: Access = request.scope["access"]
    return access


def caller_of(request: HTTPConnection, session: str, key: str) -> Caller:
    """`session` and `key`: defaults for a request without these headers. Raises Problem (400, 401)."""
    named = session_of(request, session)
    key = request.headers.get(KEY_HEADER, "").strip() or key
    if not key:
        raise Problem(401, _NO_KEY, code="invalid_api_key")
    if not (key.isascii() and key.isprintable()):  # the HTTP client's error would contain the key
        raise Problem(401, _BAD_KEY, code="invalid_api_key")
    client = request.client
    address = (client.host, client.port) if client else ("127.0.0.1", 0)
    return Caller(named, key, address, request.headers.get("user-agent"))
