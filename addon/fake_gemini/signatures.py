"""thoughtSignatures that can be verified by value, even by a later process: nothing is stored.

A signature contains a nonce, and an HMAC over the nonce and the signed content, so a signature of another or a changed
call is detected.
"""

import base64
import hashlib
import hmac
import json
import os
from typing import Any

from addon.fake_gemini.fields import decode_bytes

_SECRET = b"a fixed secret of the local Gemini: signatures outlive the process"
_MAGIC = b"\x12\x5f"
_CALL, _TEXT = b"c", b"t"
_UNDECLARED = b"u"
_DUMMY_NAMES = ("skip_thought_signature_validator", "context_engineering_is_the_way_to_go")
# as sent by a JSON client, and by a client with bytes as signatures
DUMMIES = frozenset({decode_bytes(name) for name in _DUMMY_NAMES} | {name.encode() for name in _DUMMY_NAMES})


def plain(value: Any) -> Any:
    """The value with whole floats as ints: JSON does not distinguish 5 and 5.0."""
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
    """A new signature for ``{"name", "args"[, "id"]}``. ``declared=False`` marks a call of an invented function."""
    kind = _CALL if declared else _UNDECLARED
    nonce = os.urandom(8)
    id_mark = _mac(nonce, str(call.get("id") or "").encode())[:4]
    return base64.b64encode(_MAGIC + kind + nonce + id_mark + _mac(kind, nonce, id_mark, _content(call))).decode()


def sign_text() -> str:
    """A new signature for a text answer, independent of the words: clients cut and join text."""
    nonce = os.urandom(8)
    return base64.b64encode(_MAGIC + _TEXT + nonce + _mac(_TEXT, nonce)).decode()


def is_dummy(signature: str) -> bool:
    """Whether the signature is one of the two documented dummies."""
    return decode_bytes(signature) in DUMMIES


def signs_call(signature: str, call: dict[str, Any]) -> bool:
    """Whether this server made the signature for that call. If the part still has an id, it must match."""
    raw = decode_bytes(signature) or b""
    if len(raw) != 31 or raw[:2] != _MAGIC:
        return False
    kind, nonce, id_mark = raw[2:3], raw[3:11], raw[11:15]
    if call.get("id") and id_mark != _mac(nonce, str(call["id"]).encode())[:4]:
        return False
    return hmac.compare_digest(raw[15:], _mac(kind, nonce, id_mark, _content(call)))


def signs_text(signature: str) -> bool:
    """Whether this server made the signature for a text part."""
    raw = decode_bytes(signature) or b""
    return len(raw) == 27 and raw[:3] == _MAGIC + _TEXT and hmac.compare_digest(raw[11:], _mac(_TEXT, raw[3:11]))


def made_up(signature: str) -> bool:
    """Whether a genuine call signature marks a call of an undeclared function."""
    return (decode_bytes(signature) or b"")[2:3] == _UNDECLARED


def continuation_token(request: dict[str, Any], given: int) -> str:
    """A token with which the same request continues after ``given`` pieces of its answer."""
    head = os.urandom(8) + given.to_bytes(4)
    return base64.b64encode(head + _mac(b"continue", head, _unchanging(request))).decode()


def continued_from(token: str, request: dict[str, Any]) -> int | None:
    """The pieces of the answer that preceded the token; None if this server did not make it for this request."""
    raw = decode_bytes(token) or b""
    if len(raw) != 28 or not hmac.compare_digest(raw[12:], _mac(b"continue", raw[:12], _unchanging(request))):
        return None
    return int.from_bytes(raw[8:12])


def _unchanging(request: dict[str, Any]) -> bytes:
    """The parts of a continuing request that must not change: all but the token and maxOutputTokens."""
    config = {k: v for k, v in (request.get("generationConfig") or {}).items() if k != "maxOutputTokens"}
    same = {k: v for k, v in request.items() if k not in ("continuationToken", "generationConfig")}
    return json.dumps([plain(same), plain(config)], sort_keys=True).encode()
