"""Sign-in of web pages: links that are good for one use, and the sessions that they open.

Cookies ignore ports, so a browser sends those of 127.0.0.1 to every local server. A cookie alone therefore opens
nothing: a page also sends its *page key*, which it keeps in its origin's own storage. No page of another origin can
read that key or send its header, so the key protects changes from forged requests as well.

A session is not stored: its cookie is signed with a key derived from the proxy's own token, so all processes of a proxy
know it, and another own token ends it. The state folder holds the links that are not used yet and the sessions that
were ended early, as digests.
"""

import hashlib
import hmac
import secrets
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

import filelock
from pydantic import BaseModel, ConfigDict, ValidationError

from addon.web.access import OWNER, Access
from addon.web.token import make_folder, write_file
from addon.web.tokens import Tokens

PAGE_HEADER = "x-graft-page"
SESSION_TTL = 12 * 3600.0
"""Seconds until a page must sign in anew."""
LINK_TTL = 15 * 60.0
"""Seconds for which a link can be used."""

_COOKIE_PREFIX = "toolgraft-"


class _File(BaseModel):
    """Digests, and the time until which each matters. `links`: not used yet. `ended`: sessions that were ended."""

    model_config = ConfigDict(extra="forbid")

    links: dict[str, float] = {}
    ended: dict[str, float] = {}


@dataclass(frozen=True, slots=True)
class PageSession:
    """What a page gets when it signs in. `cookie`: the value of its cookie."""

    cookie: str
    page_key: str


class PageSessions:
    """The pages' sessions of one state folder. `token`: the proxy's own."""

    def __init__(self, state: Path, token: str, tokens: Tokens, clock: Callable[[], float] = time.time) -> None:
        self._state = state
        self._path = state / "console.json"
        self._key = hashlib.blake2b(token.encode(), digest_size=32, person=b"toolgraft page").digest()
        self._tokens = tokens
        self._clock = clock
        self._file = _File()
        self._file_version: tuple[int, int, int] | None = None

    def new_link(self) -> str:
        """A code that opens one session with the proxy's own rights. Raises OSError."""
        code = secrets.token_urlsafe(24)
        with self._locked():
            file = self._read()
            self._write(file.model_copy(update={"links": file.links | {_digest(code): self._clock() + LINK_TTL}}))
        return code

    def use_link(self, code: str) -> bool:
        """Whether the code is good; it never is afterwards. Raises OSError."""
        digest = _digest(code)
        if digest not in self._read().links:
            return False
        with self._locked():
            file = self._read()
            good_until = file.links.get(digest, 0.0)
            links = {one: until for one, until in file.links.items() if one != digest}
            self._write(file.model_copy(update={"links": links}))
        return good_until > self._clock()

    def open(self, access: Access) -> PageSession:
        """A session with these rights."""
        session = f"{access.token}.{int(self._clock() + SESSION_TTL)}.{secrets.token_urlsafe(18)}"
        return PageSession(f"{session}.{self._mac('cookie', session)}", self._mac("page", session))

    def access(self, headers: Mapping[bytes, bytes]) -> Access | None:
        """The rights of a page's request; None if it has no session, or one that has ended. Raises OSError."""
        cookie, page_key = cookie_of(headers), headers.get(PAGE_HEADER.encode(), b"")
        session, _, mac = cookie.rpartition(".")
        if not (page_key and hmac.compare_digest(mac.encode(), self._mac("cookie", session).encode())):
            return None
        if not hmac.compare_digest(page_key, self._mac("page", session).encode()):
            return None
        token_id, until, _ = session.split(".")
        if float(until) < self._clock() or _digest(session) in self._read().ended:
            return None
        return OWNER if token_id == OWNER.token else self._tokens.access_by_id(token_id)

    def has_ended(self, headers: Mapping[bytes, bytes]) -> bool:
        """Whether this request was a page's, and its session has ended since. Raises OSError."""
        return PAGE_HEADER.encode() in headers and self.access(headers) is None

    def end(self, headers: Mapping[bytes, bytes]) -> None:
        """End the session of this request, if it has one. Raises OSError."""
        if self.access(headers) is None:
            return
        session = cookie_of(headers).rpartition(".")[0]
        with self._locked():
            file = self._read()
            self._write(file.model_copy(update={"ended": file.ended | {_digest(session): self._clock() + SESSION_TTL}}))

    def _mac(self, purpose: str, session: str) -> str:
        return hmac.new(self._key, f"{purpose}:{session}".encode(), hashlib.sha256).hexdigest()

    def _locked(self) -> AbstractContextManager[object]:
        make_folder(self._state)
        try:
            return filelock.FileLock(self._state / "console.lock", mode=0o600, timeout=1)
        except OSError as error:
            raise OSError(f"{self._path}: cannot be locked: {error.strerror}") from error

    def _read(self) -> _File:
        try:
            found = self._path.stat()
        except FileNotFoundError:
            self._file, self._file_version = _File(), None
            return self._file
        version = found.st_ino, found.st_mtime_ns, found.st_size
        if version != self._file_version:
            try:
                self._file = _File.model_validate_json(self._path.read_bytes())
            except ValidationError:
                raise OSError(f"{self._path}: not a valid file of the console: delete it") from None
            self._file_version = version
        return self._file

    def _write(self, file: _File) -> None:
        now = self._clock()
        links, ended = ({one: until for one, until in all_.items() if until > now} for all_ in (file.links, file.ended))
        write_file(self._path, _File(links=links, ended=ended).model_dump_json())
        self._file_version = None


def cookie_name(headers: Mapping[bytes, bytes]) -> str:
    """The cookie of the port that this request was sent to: proxies on several ports have one cookie jar."""
    port = headers.get(b"host", b"").rpartition(b":")[2]
    return _COOKIE_PREFIX + (port.decode() if port.isdigit() else "80")


def cookie_of(headers: Mapping[bytes, bytes]) -> str:
    name = cookie_name(headers)
    for pair in headers.get(b"cookie", b"").decode("latin-1").split(";"):
        key, _, value = pair.strip().partition("=")
        if key == name:
            return value
    return ""


def _digest(text: str) -> str:
    """A plain digest is safe, because the text has at least 144 random bits."""
    return hashlib.sha256(text.encode()).hexdigest()
