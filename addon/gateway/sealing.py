"""Texts that a client stores and sends back, but cannot read or change: summaries and signatures.

The keys come from the store's secret and the session. So every proxy with the store can open the texts, but only for
that session.
"""

import base64
import hashlib

from cryptography.fernet import Fernet, InvalidToken

from addon.core.dialects.responses.items import Purpose
from store.base import Store

_PERSONS: dict[Purpose, bytes] = {"summary": b"toolgraft seal", "signatures": b"toolgraft signs"}


class Sealing:
    """`store` must be open before the first use. Each session and purpose has its own key."""

    def __init__(self, store: Store, session: str) -> None:
        self._store = store
        self._session = session

    def seal(self, text: str, purpose: Purpose) -> str:
        return self._fernet(purpose).encrypt(text.encode("utf-8", "surrogatepass")).decode()

    def unseal(self, sealed: str, purpose: Purpose) -> str | None:
        """The text; None if it was not sealed with this secret for this session and purpose."""
        try:
            return self._fernet(purpose).decrypt(sealed).decode("utf-8", "surrogatepass")
        except (InvalidToken, ValueError):
            return None

    def _fernet(self, purpose: Purpose) -> Fernet:
        of_store = hashlib.blake2b(self._store.secret, digest_size=32, person=_PERSONS[purpose]).digest()
        key = hashlib.blake2b(self._session.encode(), key=of_store, digest_size=32).digest()
        return Fernet(base64.urlsafe_b64encode(key))
