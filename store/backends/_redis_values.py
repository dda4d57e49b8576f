"""How the Redis backend writes values: a stamp, some short strings that scripts can read, and a record.

The stamp is another for each transaction: a transaction applies only if the stamps that it has read are still there.
"""

import secrets
import zlib
from collections.abc import Iterable, Sequence

STAMP = 8
"""Bytes of a stamp."""

_SIZE = 2
_COMPRESSED = b"\x78"  # how zlib begins; JSON begins with a brace
_SMALL = 256
"""Bytes below which compressing is not worth it."""


def new_stamp() -> bytes:
    return secrets.token_bytes(STAMP)


def pack(stamp: bytes, strings: Sequence[bytes], body: bytes) -> bytes:
    """A value. Raises ValueError if a string is too long."""
    if any(len(string) >= 1 << 8 * _SIZE for string in strings) or len(strings) >= 1 << 8 * _SIZE:
        raise ValueError("an id or a key is too long for the store")
    parts = [stamp, len(strings).to_bytes(_SIZE)]
    for string in strings:
        parts += [len(string).to_bytes(_SIZE), string]
    return b"".join([*parts, body])


def unpack(value: bytes) -> tuple[list[bytes], bytes]:
    """The strings and the body."""
    strings, at = [], STAMP + _SIZE
    for _ in range(int.from_bytes(value[STAMP:at])):
        start = at + _SIZE
        at = start + int.from_bytes(value[at:start])
        strings.append(value[start:at])
    return strings, value[at:]


def compress(text: str) -> bytes:
    data = text.encode()
    return data if len(data) < _SMALL else zlib.compress(data, 1)


def text_of(body: bytes) -> str:
    """The text of a body; empty if it is damaged."""
    try:
        return (zlib.decompress(body) if body.startswith(_COMPRESSED) else body).decode()
    except (zlib.error, UnicodeDecodeError):
        return ""


def prefix(*parts: bytes) -> bytes:
    """How the entries of an index about these parts begin: an entry goes on with a place and an id."""
    return b"".join(len(part).to_bytes(_SIZE) + part for part in parts)


_PLACE = 16
"""Digits of a place in an index."""


def within(start: bytes) -> tuple[bytes, bytes]:
    """The bounds of the entries that begin so, for `ZRANGEBYLEX`."""
    return b"[" + start + b"0", b"[" + start + b":"  # a place is digits


def id_of(entry: bytes, start: bytes) -> bytes:
    """The id in an entry that begins so."""
    return entry[len(start) + _PLACE :]


def ids_of(entries: Iterable[bytes], start: bytes) -> list[bytes]:
    return [id_of(entry, start) for entry in entries]
