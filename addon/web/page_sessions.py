"""Sign-in of web pages: single-use links, and the sessions that they open.

Cookies ignore ports, so a browser sends those of 127.0.0.1 to every local server. A cookie alone is therefore not
enough: a page also sends its *page key*, which it keeps in its origin's storage. No page of another origin can read
that key or send its header, so the key also prevents forged requests.

Sessions are not stored: their cookies are signed with the store's secret, so each proxy of a store accepts them. The
state folder lists the sessions that were ended early.
"""

import hashlib
import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from itsdangerous import BadData, Signer, URLSafeTimedSerializer
from pydantic import BaseModel, ValidationError

from addon.state_folder import make_folder, write_file
from addon.web.access import OWNER, Access
from addon.web.tokens import Tokens

PAGE_HEADER = "x-graft-page"
SESSION_TTL = 12 * 3600
"""Seconds until a page must sign in again."""
LINK_TTL = 15 * 60.0
"""Seconds for which a link can be used."""

_COOKIE_PREFIX = "toolgraft-"


class _File(BaseModel):
    """`ended`: sessions that were ended early, each with the time at which it would have expired."""

    ended: dict[str, float] = {}


@dataclass(frozen=True, slots=True)
class PageSession:
    """A page's credentials. `cookie`: the value of its cookie."""

    cookie: str
    page_key: str


class PageSessions:
    """`token`: the proxy's own. `secret`: the store's, once it is open."""

    def __init__(self, state: Path, token: str, tokens: Tokens, secret: Callable[[], bytes]) -> None:
        self._path = state / "console.json"
        self._token = token
        self._tokens = tokens
        self._secret = secret
        self._links: dict[str, float] = {}  # unused links, with the time when they expire

    def new_link(self) -> str:
        """A code that opens one session with the rights of the proxy's token."""
        now = time.time()
        self._links = {code: end for code, end in self._links.items() if end > now}
        code = secrets.token_urlsafe(24)
        self._links[code] = now + LINK_TTL
        return code

    def use_link(self, code: str) -> bool:
        """Use up the code. Returns whether it was valid."""
        return self._links.pop(code, 0.0) > time.time()

    def open(self, access: Access) -> PageSession:
        """Create a session with these rights."""
        cookie = self._cookies.dumps(
            [self._owner if access.token == OWNER.token else access.token, secrets.token_urlsafe(18)]
        )
        return PageSession(cookie, self._page_keys.get_signature(cookie).decode())

    def access(self, headers: Mapping[bytes, bytes]) -> Access | None:
        """The rights of a page's request; None if it has no session, or one that has ended. Raises OSError."""
        session = self._session(headers)
        if session is None or session[1] in self._file.ended:
            return None
        return OWNER if session[0] == self._owner else self._tokens.access_by_id(session[0])

    def has_ended(self, headers: Mapping[bytes, bytes]) -> bool:
        """Whether a page sent this request, and its session has ended since. Raises OSError."""
        return PAGE_HEADER.encode() in headers and self.access(headers) is None

    def end(self, headers: Mapping[bytes, bytes]) -> None:
        """End the session of this request, if it has one. Raises OSError."""
        if (session := self._session(headers)) is None:
            return
        now = time.time()
        ended = {one: until for one, until in self._file.ended.items() if until > now}
        self._file.ended = ended | {session[1]: now + SESSION_TTL + 1}
        make_folder(self._path.parent)
        write_file(self._path, self._file.model_dump_json())

    def _session(self, headers: Mapping[bytes, bytes]) -> tuple[str, str] | None:
        """The opener and the name of the request's session."""
        cookie = cookie_of(headers)
        if not self._page_keys.verify_signature(cookie.encode(), headers.get(PAGE_HEADER.encode(), b"")):
            return None
        try:
            opener, name = self._cookies.loads(cookie, max_age=SESSION_TTL)
        except BadData:
            return None
        return opener, name

    @cached_property
    def _cookies(self) -> URLSafeTimedSerializer:
        return URLSafeTimedSerializer(
            self._secret(), "toolgraft cookie", signer_kwargs={"digest_method": hashlib.sha256}
        )

    @cached_property
    def _page_keys(self) -> Signer:
        return Signer(self._secret(), "toolgraft page", digest_method=hashlib.sha256)

    @cached_property
    def _owner(self) -> str:
        """The opener's name for the proxy's own token: sessions end if that token changes."""
        return f"own.{Signer(self._secret(), 'toolgraft own token').get_signature(self._token).decode()}"

    @cached_property
    def _file(self) -> _File:
        try:
            return _File.model_validate_json(self._path.read_bytes())
        except FileNotFoundError:
            return _File()
        except ValidationError:
            raise OSError(f"{self._path}: not a valid file of the console: delete it") from None


def cookie_name(headers: Mapping[bytes, bytes]) -> str:
    """The name of the cookie for the request's port: proxies on several ports share one cookie jar."""
    port = headers.get(b"host", b"").rpartition(b":")[2]
    return _COOKIE_PREFIX + (port.decode() if port.isdigit() else "80")


def cookie_of(headers: Mapping[bytes, bytes]) -> str:
    name = cookie_name(headers)
    for pair in headers.get(b"cookie", b"").decode("latin-1").split(";"):
        key, _, value = pair.strip().partition("=")
        if key == name:
            return value
    return ""
