"""The keys by which the ledger knows a turn: digests of what a client sends, which nobody can make without the secret.

What is said is told apart by hashes without a secret (`core.turns`), as it never leaves a process so. What is stored,
and looked up, is made here: each key says of which kind it is and, but for `mark`, who asked.
"""

import hashlib
from collections.abc import Sequence

from addon.core.calls import decoded_signature
from addon.core.documents import Document, get, parts_of
from addon.core.history import DUMMY_SIGNATURE
from addon.core.interactions import marked_id

SIZE = 16

_HEAD = 6
"""Bytes that the keys of a turn's words have in common: a store keeps them together so, or packs them."""

_DUMMIES = {decoded_signature(dummy) for dummy in (DUMMY_SIGNATURE, "context_engineering_is_the_way_to_go")}
"""Signatures that clients put where there is none: they tell nothing."""


def asker_digest(secret: bytes, asker: str) -> bytes:
    """Who asks, without saying it: what is given is often a secret itself."""
    return _keyed(secret, b"asker", asker.encode("utf-8", "surrogatepass")).digest()


class Keys:
    """The keys of one request's turns. `asker` is a digest (`asker_digest`); `name` what the client calls its chat, and
    `instruction` the system instruction or a digest of it, as far as the request has them.

    `chat` and `root` stand for what keys have in common: `chat` for who asks and for the chat's name, `root` for both
    and the system instruction.
    """

    __slots__ = ("_history", "_own", "_secret", "_whole", "_window", "asker", "chat", "is_named", "root")

    def __init__(self, secret: bytes, asker: bytes = b"", name: str = "", instruction: bytes = b"") -> None:
        self._secret = secret
        self.asker = asker or asker_digest(secret, "")
        self.is_named = bool(name)
        self.chat = _keyed(secret, b"chat", self.asker, name.encode("utf-8", "surrogatepass")).digest()
        self.root = _keyed(secret, b"root", self.chat, instruction).digest()
        self._own = _keyed(secret, b"own", self.asker)
        self._history = _keyed(secret, b"history", self.root)
        self._whole = _keyed(secret, b"whole", self.chat)
        self._window = _keyed(secret, b"window", self.asker)

    def own(self, digest: bytes) -> bytes:
        """A turn's own words, by their digest: the first of its keys, which the others are given."""
        return _with(self._own, digest)

    def history(self, own: bytes, chain: bytes) -> bytes:
        """A turn with all that stands before it, the system instruction and the chat's name included."""
        return own[:_HEAD] + _with(self._history, chain)

    def whole(self, own: bytes, chain: bytes) -> bytes:
        """The same under whichever system instruction."""
        return own[:_HEAD] + _with(self._whole, chain)

    def window(self, own: bytes, window: bytes) -> bytes:
        """A turn with some turns before it: see `core.turns.windows`."""
        return own[:_HEAD] + _with(self._window, window)

    def user(self, digest: bytes) -> bytes:
        """The user turn before a step, by which a bare placeholder finds the step."""
        return _keyed(self._secret, b"user", self.asker, digest).digest()

    def request(self, sent: bytes) -> bytes:
        """A request that is sent again, by a digest of what was sent and where to."""
        return _keyed(self._secret, b"request", self.asker, sent).digest()

    def mark(self, kind: str, value: bytes) -> bytes:
        """A mark that the model gave the turn, whoever shows it: see `marks_of`."""
        return _keyed(self._secret, kind.encode(), value).digest()

    def hidden(self, name: bytes, chain: bytes) -> bytes:
        """The chain of a turn as it is kept with it, and back: nobody can try words on it from outside. `name`: the
        turn's id, or, where it has none, the key of its own words."""
        pad = _keyed(self._secret, b"hidden", name).digest()
        return bytes(one ^ other for one, other in zip(chain, pad, strict=True))


def marks_of(contents: Sequence[Document]) -> list[tuple[str, bytes]]:
    """What the model marked these Contents with, and clients send back: signatures by value, ids of calls, ids of
    interactions. Each once, as (kind, value)."""
    found: dict[tuple[str, bytes], None] = {}
    for content in contents:
        for part in parts_of(content):
            if (interaction := marked_id({"parts": [part]})) is not None:
                found["interaction", interaction.encode("utf-8", "surrogatepass")] = None
                continue
            if isinstance(call := get(part, "functionCall"), dict) and isinstance(call_id := call.get("id"), str):
                found["call", call_id.encode("utf-8", "surrogatepass")] = None
            signature = decoded_signature(get(part, "thoughtSignature"))
            if signature and signature not in _DUMMIES:
                found["signature", signature] = None
    return list(found)


def _keyed(secret: bytes, kind: bytes, *parts: bytes) -> "hashlib.blake2b":
    """A digest in the making. All parts but the last have one length, so no two sequences look alike."""
    return hashlib.blake2b(b"".join(parts), key=secret, digest_size=SIZE, person=kind)


def _with(begun: "hashlib.blake2b", value: bytes) -> bytes:
    digest = begun.copy()
    digest.update(value)
    return digest.digest()
