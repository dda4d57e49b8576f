"""Which keys no turn has, known without reading the file: nearly all that are looked up are such keys, and each lies in
another page of the table."""

import array
import sys
from collections.abc import Collection

_SIZE = 4
"""The bytes of a key by which it is known. Keys are digests, so these are random, and common to the keys of a turn."""

_SMALLEST = 20
_SPACE = 16
"""Bits for each beginning of a key: of the keys that no turn has, one in so many has to be looked up."""

BEGINNINGS = (
    f"SELECT coalesce(group_concat(substr('{'00' * _SIZE}' || hex(substr(key, 1, {_SIZE})), -{2 * _SIZE}), ''), '')"
)
"""SQL for the beginnings of the keys of a table. SQLite is faster with a million keys than Python."""


class KeyFilter:
    """A bit for each beginning that a key may have. A beginning that is left by a deletion does no harm, nor does a key
    that was added and then not written."""

    def __init__(self, beginnings: str) -> None:
        """`beginnings`: what `BEGINNINGS` gives."""
        numbers = array.array("I", bytes.fromhex(beginnings))
        if sys.byteorder == "little":
            numbers.byteswap()
        different = set(numbers)
        width = min(8 * _SIZE, max(_SMALLEST, (_SPACE * len(different)).bit_length()))
        shift = self._shift = 8 * _SIZE - width
        bits = self._bits = bytearray(1 << (width - 3))
        for number in different:
            bits[number >> shift >> 3] |= 1 << (number >> shift & 7)

    def add(self, keys: Collection[bytes]) -> None:
        for beginning in {key[:_SIZE] for key in keys}:
            at = int.from_bytes(beginning) >> self._shift
            self._bits[at >> 3] |= 1 << (at & 7)

    def possible(self, keys: Collection[bytes]) -> list[bytes]:
        """The keys, without those that were never added."""
        bits, shift, number = self._bits, self._shift, int.from_bytes
        return [key for key in keys if bits[(at := number(key[:_SIZE]) >> shift) >> 3] >> (at & 7) & 1]
