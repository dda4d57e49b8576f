"""Who stands at a door: the session and the key that a request names."""

from starlette.requests import Request

from addon.gateway.upstream_factory import Caller
from addon.web.access import Access
from addon.web.problems import Problem
from store.models import SESSION_FORM, SESSION_NAME

SESSION_HEADER = "x-graft-session"
KEY_HEADER = "x-goog-api-key"
_NO_KEY = (
    f"no Gemini API key: send one as {KEY_HEADER}, or start the proxy with GEMINI_API_KEY or GOOGLE_API_KEY in its "
    "environment"
)
_BAD_KEY = f"the Gemini API key, in {KEY_HEADER} or the proxy's environment, has characters that no key has"


def session_of(request: Request, default: str) -> str:
    """The session that a request names, else the default. Raises Problem (400)."""
    session = request.headers.get(SESSION_HEADER, default)
    if not SESSION_NAME.fullmatch(session):
        raise Problem(400, f"{SESSION_HEADER}: {session!r} must be {SESSION_FORM}", field=SESSION_HEADER)
    return session


def access_of(request: Request) -> Access:
    """What the guard has found out about the caller."""
    access: Access = request.scope["access"]
    return access


def caller_of(request: Request, session: str, key: str) -> Caller:
    """`session` and `key` hold where the request names none. Raises Problem (400, 401)."""
    named = session_of(request, session)
    key = request.headers.get(KEY_HEADER, "").strip() or key
    if not key:
        raise Problem(401, _NO_KEY, code="invalid_api_key")
    if not (key.isascii() and key.isprintable()):  # no header holds it; what would say so on the way would show it
        raise Problem(401, _BAD_KEY, code="invalid_api_key")
    client = request.client
    return Caller(named, key, (client.host, client.port) if client else ("127.0.0.1", 0))
