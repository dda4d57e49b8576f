"""Which keys no turn has, known without reading the file: nearly all that are looked up are such keys, and each lies in
another page of the table."""

import array
import sys
from collections.abc import Collection

_SIZE = 4
"""The bytes of a key by which it is known. Keys are digests, so these are random, and common to the keys of a turn."""

_SMALLEST = 20
_SPACE = 16
"""Bits for each beginning of a key, of which two are set: of the keys that no turn has, at most one in 70 has to be
looked up."""

_SPREAD, _ALL = 0x9E3779B1, 0xFFFFFFFF
"""Makes another number of the same size out of a beginning, for the second bit."""

BEGINNINGS = (
    f"SELECT coalesce(group_concat(substr('{'00' * _SIZE}' || hex(substr(key, 1, {_SIZE})), -{2 * _SIZE}), ''), '')"
)
"""SQL for the beginnings of the keys of a table. SQLite is faster with a million keys than Python."""


class KeyFilter:
    """Two bits for each beginning that a key may have; others may share one of them, but hardly both. A beginning that
    is left by a deletion does no harm, nor does a key that was added and then not written."""

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
            first, second = number >> shift, (number * _SPREAD & _ALL) >> shift
            bits[first >> 3] |= 1 << (first & 7)
            bits[second >> 3] |= 1 << (second & 7)

    def add(self, keys: Collection[bytes]) -> None:
        for number in {int.from_bytes(key[:_SIZE]) for key in keys}:
            for at in (number >> self._shift, (number * _SPREAD & _ALL) >> self._shift):
                self._bits[at >> 3] |= 1 << (at & 7)

    def possible(self, keys: Collection[bytes]) -> list[bytes]:
        """The keys, without those that were never added."""
        bits, shift, number = self._bits, self._shift, int.from_bytes
        first = [key for key in keys if bits[(at := number(key[:_SIZE]) >> shift) >> 3] >> (at & 7) & 1]
        return [
            key for key in first if bits[(at := (number(key[:_SIZE]) * _SPREAD & _ALL) >> shift) >> 3] >> (at & 7) & 1
        ]
