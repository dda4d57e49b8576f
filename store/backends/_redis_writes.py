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

_LARGEST = 256
"""The most turns and keys of one write that are kept."""

_REVISION = 16
"""Digits of a revision."""


def packed(turn_ids: Collection[str], keys: Collection[bytes]) -> bytes:
    """The turns and keys of a write, as an entry ends. b"": they are too many, and the write leaves no entry."""
    if len(turn_ids) + len(keys) > _LARGEST:
        return b""
    return values.prefix(b"%d" % len(turn_ids), *(turn_id.encode() for turn_id in turn_ids), *keys)


def follow(changes: Changes, entries: Sequence[bytes], revision: int) -> None:
    """Note the writes after those that are known, up to this revision. They are in order."""
    first, last = (bisect.bisect(entries, b"%016d" % at, key=_revision) for at in (changes.revision, revision))
    with contextlib.suppress(ValueError):  # a damaged entry
        for entry in entries[first:last]:
            count, *touched = values.parts_of(entry[2 * _REVISION :])
            turn_ids = [turn_id.decode() for turn_id in touched[: int(count)]]
            changes.note(int(entry[:_REVISION]), int(_revision(entry)), turn_ids, touched[int(count) :])


def _revision(entry: bytes) -> bytes:
    return entry[_REVISION : 2 * _REVISION]
