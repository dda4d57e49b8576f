"""A session's last writes to the ledger: they tell each process which turns and keys the others' writes concerned.

Each entry begins with the revision before the write and the one after it: so a reader notices where one is missing.
"""

import bisect
import contextlib
from collections.abc import Collection, Sequence

from store.backends import _redis_values as values
from store.backends._changes import Changes

MOST = 128
"""The writes that are kept: looking a history up again costs less than reading more of them."""

KEPT = 600
"""Seconds for which they are kept after the last one."""

_REVISION = 16
"""Digits of a revision."""


def packed(turn_ids: Collection[str], keys: Collection[bytes]) -> bytes:
    """The turns and keys of a write, as an entry ends."""
    return values.prefix(values.prefix(*(turn_id.encode() for turn_id in turn_ids)), *keys)


def follow(changes: Changes, entries: Sequence[bytes]) -> None:
    """Note the writes after those that are known. They are in order."""
    first = bisect.bisect(entries, b"%016d" % changes.revision, key=_revision)
    with contextlib.suppress(ValueError):  # a damaged entry
        for entry in entries[first:]:
            turn_ids, *keys = values.parts_of(entry[2 * _REVISION :])
            names = [turn_id.decode() for turn_id in values.parts_of(turn_ids)]
            changes.note(int(entry[:_REVISION]), int(_revision(entry)), names, keys)


def _revision(entry: bytes) -> bytes:
    return entry[_REVISION : 2 * _REVISION]
