"""Additional tokens, each with scopes, for one session or for all. Only their digests are stored, in the state folder.

A token has the form `tg_ID_SECRET` and is shown once, when it is made. If the file is unreadable, all are refused.
"""

import asyncio
import hashlib
import hmac
import json
import logging
import secrets
import time
from collections.abc import Iterable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Annotated
from weakref import WeakValueDictionary

import filelock
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from addon.state_folder import make_folder, write_file
from addon.web.access import Access, Right
from addon.web.own_token import TOKEN_PREFIX
from store.models import SessionName

logger = logging.getLogger("toolgraft")

Name = Annotated[str, Field(max_length=100)]


class Token(BaseModel):
    """The public fields of a token."""

    id: str
    name: Name = ""
    scopes: list[Right] = Field(min_length=1)
    session: SessionName | None = None
    created_at: float


class _StoredToken(Token):
    digest: str


class _File(BaseModel):
    model_config = ConfigDict(extra="forbid")

    tokens: list[_StoredToken] = []


class Tokens:
    """The tokens of one state folder. The file is read again when it has changed."""

    def __init__(self, state: Path) -> None:
        self._state = state
        self._path = state / "tokens.json"
        self._file_version: tuple[int, int, int] | None = None
        self._tokens: dict[str, _StoredToken] = {}
        self._ends: WeakValueDictionary[str, asyncio.Event] = WeakValueDictionary()

    def access(self, token: str) -> Access | None:
        """The rights of a token; None if it is unknown or revoked. Raises OSError."""
        stored = self._read().get(_id_of(token))
        if stored is None or not hmac.compare_digest(_digest(token), stored.digest):
            return None
        return _access(stored)

    def access_by_id(self, token_id: str) -> Access | None:
        """The rights of the token with this id; None if it was revoked. Raises OSError."""
        stored = self._read().get(token_id)
        return None if stored is None else _access(stored)

    def listed(self) -> list[Token]:
        """All tokens, oldest first. Raises OSError."""
        return [Token.model_validate(stored.model_dump(exclude={"digest"})) for stored in self._read().values()]

    def make(self, scopes: Iterable[Right], session: str | None, name: str) -> tuple[Token, str]:
        """Make a token. Returns its record and its text. Raises OSError."""
        made = f"{TOKEN_PREFIX}{secrets.token_hex(4)}_{secrets.token_urlsafe(32)}"
        stored = _StoredToken(
            id=_id_of(made),
            name=name,
            scopes=list(dict.fromkeys(scopes)),
            session=session,
            created_at=time.time(),
            digest=_digest(made),
        )
        with self._locked():
            self._write({**self._read(), stored.id: stored})
        return Token.model_validate(stored.model_dump(exclude={"digest"})), made

    def revoke(self, token_id: str) -> bool:
        """False: no such token. Raises OSError."""
        with self._locked():
            remaining = dict(self._read())
            if remaining.pop(token_id, None) is None:
                return False
            self._write(remaining)
        if (end := self._ends.get(token_id)) is not None:
            end.set()
        return True

    def end(self, caller: Access) -> asyncio.Event:
        """An event that is set when the caller's token is revoked, which ends its long answers. Raises OSError."""
        end = self._ends.setdefault(caller.token, asyncio.Event())
        if caller.token not in self._read():
            end.set()
        return end

    def _locked(self) -> AbstractContextManager[object]:
        make_folder(self._state)
        try:
            return filelock.FileLock(self._state / "tokens.lock", mode=0o600, timeout=1)
        except OSError as error:
            raise OSError(f"{self._path}: cannot be locked: {error.strerror}") from error

    def _read(self) -> dict[str, _StoredToken]:
        try:
            found = self._path.stat()
        except FileNotFoundError:
            self._file_version, self._tokens = None, {}
            return self._tokens
        version = found.st_ino, found.st_mtime_ns, found.st_size
        if version != self._file_version:
            try:
                file = _File.model_validate_json(self._path.read_bytes())
            except ValidationError:
                raise OSError(
                    f"{self._path}: not a valid file of tokens: repair it, or delete it to revoke all tokens"
                ) from None
            self._file_version, self._tokens = version, {stored.id: stored for stored in file.tokens}
        return self._tokens

    def _write(self, tokens: dict[str, _StoredToken]) -> None:
        document = _File(tokens=list(tokens.values())).model_dump()
        write_file(self._path, json.dumps(document, indent=1))
        self._file_version = None


def _access(stored: _StoredToken) -> Access:
    return Access(stored.id, frozenset(stored.scopes), stored.session, stored.name)


def _id_of(token: str) -> str:
    """`ID` of `tg_ID_SECRET`; "" for a text of another form."""
    if not token.startswith(TOKEN_PREFIX):
        return ""
    return token[len(TOKEN_PREFIX) :].partition("_")[0]


def _digest(token: str) -> str:
    """A plain digest is safe, because the secret has 256 random bits."""
    return hashlib.sha256(token.encode()).hexdigest()
