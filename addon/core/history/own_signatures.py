"""The proxy's own thoughtSignatures, for calls that only the proxy's work has left without one.

Gemini 3 signs the first call of a step, and refuses a step without it. If the client does not get that call, the first
call that it gets carries a signature of the proxy. It marks the turn for the ledger, which restores the model's own
signatures. The proxy recognises it by the store's secret alone, and never sends it to Gemini.

The form is 96 letters and digits: base64 of 72 bytes that no client can change by another alphabet, padding or escapes.
"""

import hashlib
import hmac
import re

from addon.core.history.rewriting import DUMMY_SIGNATURE

_HEAD = "toolgraft0signature0of0the0step0"
"""Long, because longer text is found faster."""

_START = b'"' + _HEAD.encode()
_FORM = re.compile(_START + rb'([0-9a-f]{32})([0-9a-f]{32})"')
_DUMMY = f'"{DUMMY_SIGNATURE}"'.encode()


def own_signature(secret: bytes, turn_id: str) -> str:
    """The signature for the client's first call of a turn."""
    name = _digest(secret, b"turn", turn_id.encode())
    return f"{_HEAD}{name}{_digest(secret, b'proof', name.encode())}"


def without_own_signatures(body: bytes, secret: bytes) -> bytes:
    """A request with Google's dummy in place of this proxy's signatures; the same object if nothing looks like one."""
    if body.find(_START) < 0:
        return body

    def replaced(found: re.Match[bytes]) -> bytes:
        proof = _digest(secret, b"proof", found[1]).encode()
        return _DUMMY if hmac.compare_digest(proof, found[2]) else found[0]

    return _FORM.sub(replaced, body)


def _digest(secret: bytes, kind: bytes, value: bytes) -> str:
    return hashlib.blake2b(value, key=secret, digest_size=16, person=b"signature " + kind).hexdigest()
