"""Texts that a client keeps and gives back, but cannot read or change: those of compaction items.

The key comes from the store's secret, so every proxy with the store can open them.
"""

import base64
import hashlib
from typing import Protocol

from cryptography.fernet import Fernet, InvalidToken


class _HasSecret(Protocol):
    @property
    def secret(self) -> bytes: ...


class Sealing:
    """`store`: open before the first use."""

    def __init__(self, store: _HasSecret) -> None:
        self._store = store

    def seal(self, text: str) -> str:
        return self._fernet().encrypt(text.encode("utf-8", "surrogatepass")).decode()

    def unseal(self, sealed: str) -> str | None:
        """The text; None if it was not sealed with this secret."""
        try:
            return self._fernet().decrypt(sealed).decode("utf-8", "surrogatepass")
        except (InvalidToken, ValueError):
            return None

    def _fernet(self) -> Fernet:
        key = hashlib.blake2b(self._store.secret, digest_size=32, person=b"toolgraft seal").digest()
        return Fernet(base64.urlsafe_b64encode(key))
