"""thoughtSignatures that can be checked by value, and by a later process: nothing is remembered.

A signature holds a nonce and an HMAC over it and what was signed, so that one made for another call, or changed
on its way, is told from the real one.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import os
from typing import Any

from addon.demo.fields import decode_bytes

_SECRET = b"a fixed secret of the local Gemini: signatures outlive the process"
_MAGIC = b"\x12\x5f"
_CALL, _TEXT = b"c", b"t"
_UNDECLARED = b"u"
_DUMMY_NAMES = ("skip_thought_signature_validator", "context_engineering_is_the_way_to_go")
# as a JSON client sends them, and as one whose signatures are bytes does
DUMMIES = frozenset({decode_bytes(name) for name in _DUMMY_NAMES} | {name.encode() for name in _DUMMY_NAMES})


def plain(value: Any) -> Any:
    """The value with whole floats as ints: JSON does not tell 5 from 5.0."""
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [plain(item) for item in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _mac(*parts: bytes) -> bytes:
    return hmac.new(_SECRET, b"\0".join(parts), hashlib.sha256).digest()[:16]


def _content(call: dict[str, Any]) -> bytes:
    args = json.dumps(plain(call.get("args") or {}), sort_keys=True, ensure_ascii=False)
    return f"{call.get('name')}({args})".encode()


def sign_call(call: dict[str, Any], *, declared: bool = True) -> str:
    """A new signature for ``{"name", "args"[, "id"]}``. ``declared=False`` marks a call that the model made up."""
    kind = _CALL if declared else _UNDECLARED
    nonce = os.urandom(8)
    id_mark = _mac(nonce, str(call.get("id") or "").encode())[:4]
    return base64.b64encode(_MAGIC + kind + nonce + id_mark + _mac(kind, nonce, id_mark, _content(call))).decode()


def sign_text() -> str:
    """A new signature for the end of a text answer; clients cut and join text, so it is not bound to the words."""
    nonce = os.urandom(8)
    return base64.b64encode(_MAGIC + _TEXT + nonce + _mac(_TEXT, nonce)).decode()


def is_dummy(signature: str) -> bool:
    """Whether it is one of the two documented stand-ins."""
    return decode_bytes(signature) in DUMMIES


def signs_call(signature: str, call: dict[str, Any]) -> bool:
    """Whether this server made the signature for that call; an id, where the part still has one, must be the same."""
    raw = decode_bytes(signature) or b""
    if len(raw) != 31 or raw[:2] != _MAGIC:
        return False
    kind, nonce, id_mark = raw[2:3], raw[3:11], raw[11:15]
    if call.get("id") and id_mark != _mac(nonce, str(call["id"]).encode())[:4]:
        return False
    return hmac.compare_digest(raw[15:], _mac(kind, nonce, id_mark, _content(call)))


def signs_text(signature: str) -> bool:
    """Whether this server put the signature on a text part."""
    raw = decode_bytes(signature) or b""
    return len(raw) == 27 and raw[:3] == _MAGIC + _TEXT and hmac.compare_digest(raw[11:], _mac(_TEXT, raw[3:11]))


def made_up(signature: str) -> bool:
    """Whether a genuine call signature says that the model called what nobody declared."""
    return (decode_bytes(signature) or b"")[2:3] == _UNDECLARED


def continuation_token(request: dict[str, Any], given: int) -> str:
    """A token for the same request, which goes on behind so many pieces of its answer."""
    head = os.urandom(8) + given.to_bytes(4)
    return base64.b64encode(head + _mac(b"continue", head, _same(request))).decode()


def continued_from(token: str, request: dict[str, Any]) -> int | None:
    """How much of the answer this server gave out before it gave the token; None where it did not, for this request."""
    raw = decode_bytes(token) or b""
    if len(raw) != 28 or not hmac.compare_digest(raw[12:], _mac(b"continue", raw[:12], _same(request))):
        return None
    return int.from_bytes(raw[8:12])


def _same(request: dict[str, Any]) -> bytes:
    """What must be the same in a request that goes on: all but the token, and how much there may be of it."""
    config = {k: v for k, v in (request.get("generationConfig") or {}).items() if k != "maxOutputTokens"}
    same = {k: v for k, v in request.items() if k not in ("continuationToken", "generationConfig")}
    return json.dumps([plain(same), plain(config)], sort_keys=True).encode()
