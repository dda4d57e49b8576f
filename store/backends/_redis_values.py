"""The keys and values of the Redis backend.

In a cluster, all keys share a hash tag, because a write touches keys of its session and keys of the whole store. A
value is a stamp, some short strings that scripts can read, and a record. Each transaction writes its own stamp, and is
only applied if the stamps that it has read are unchanged.
"""

import bisect
import contextlib
import zlib
from collections.abc import Collection, Iterable, Sequence
from typing import Final

from store.backends._changes import Changes

STAMP = 8
"""Bytes of a stamp."""

_SIZE = 2
_COMPRESSED = b"\x78", b"\x58"  # zlib's first byte, by window size; no JSON begins with it
_SMALL = 64
"""Smaller bodies, in bytes, are not compressed."""

_SHORT = 6_000
"""Bodies up to this size, in bytes, get a small window: setting up a large one costs more than compressing."""

_WORDS = (
    b'{"config":,"tools":,"args":{"error":"failed","denied","expired","cancelled","running","worker","lease_until":"'
    b'"steps":1,"visible":1,"rounds":1,"meta":{"responseId":"modelVersion":"gemini-2.5-flash"},"progress":{'
    b'"response_id":"resp_","previous":null,"conversation":null,"calls":{"items":[{"type":"message","output":['
    b'"owner":"loop","released":true,"status":"running","status":"failed","error":"","delivery":"loop","delivered":true,'
    b'"approval":"approved",'
    b'{"v":1,"turn_id":"turn_","session":"default","visible":[{"text":"Tool call completed: get_ [turn_"}],"steps":[{'
    b'"content":{"role":"model","parts":[{"functionCall":{"id":"","name":"get_","args":{}},"thoughtSignature":"","text":"}'
    b']},"slots":[{"name":"","call_id":"call_"}]}],"delivery":"placeholder","user_key":"","chain":"","pair":"","delivered":fa'
    b'lse,"bound":true,"model":"gemini-3-flash-preview","surface":"developer","usage":[{"promptTokenCount":1,"candidates'
    b'TokenCount":1,"totalTokenCount":1}],"request_key":"","proxy_id":null,"broke_off":null,"progress":null,"created_at":17'
    b'{"v":1,"call_id":"call_","session":"default","name":"get_","args":{},"asked_args":null,"status":"done",'
    b'"owner":"hand","released":false,"redeliver":false,"proxy_id":null,"result":{"error":null,"media":[],'
    b'"turn_id":"turn_"},"asked_args":null,"status":"pending","owner":"hand","released":false,"redeliver":false,'
    b'"proxy_id":null,"result":null,"error":null,"media":[],"turn_id":"turn_","gemini_id":null,'
    b'"model":"gemini-3-flash-preview","surface":"developer","round":0,"index":0,"approval":null,"worker":null,'
    b'"lease_until":null,"loop_id":null,"attempts":0,"started_at":null,"created_at":1795,"updated_at":1795'
)
"""zlib's dictionary: frequent strings of records, the most frequent last. Part of the format: no record can be read
with other bytes."""


def pack(stamp: bytes, strings: Sequence[bytes], body: bytes) -> bytes:
    """Build a value. Raises ValueError if a string is too long."""
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


def parts_of(joined: bytes) -> list[bytes]:
    """The reverse of `prefix`."""
    parts, at = [], 0
    while at < len(joined):
        start = at + _SIZE
        at = start + int.from_bytes(joined[at:start])
        parts.append(joined[start:at])
    return parts


def compress(text: str) -> bytes:
    data = text.encode()
    if len(data) < _SMALL:
        return data
    level, window, memory = (6, 13, 6) if len(data) <= _SHORT else (1, 15, 8)
    packer = zlib.compressobj(level, zlib.DEFLATED, window, memory, zlib.Z_DEFAULT_STRATEGY, _WORDS)
    return packer.compress(data) + packer.flush()


def text_of(body: bytes) -> str:
    """The text of a body; empty if damaged."""
    try:
        if not body.startswith(_COMPRESSED):
            return body.decode()
        unpacker = zlib.decompressobj(zdict=_WORDS)
        data = unpacker.decompress(body)
        return data.decode() if unpacker.eof else ""
    except (zlib.error, UnicodeDecodeError):
        return ""


def prefix(*parts: bytes) -> bytes:
    """The beginning of an index's entries for these parts: a place and an id follow."""
    return b"".join(len(part).to_bytes(_SIZE) + part for part in parts)


PLACE = 16
"""Digits of a place in an index."""


def within(start: bytes) -> tuple[bytes, bytes]:
    """The bounds for `ZRANGEBYLEX` of the entries that begin with `start`."""
    return b"[" + start + b"0", b"[" + start + b":"  # a place consists of digits


def ids_of(entries: Iterable[bytes], start: bytes) -> list[bytes]:
    """The ids in entries that begin with `start`."""
    return [entry[len(start) + PLACE :] for entry in entries]


# --- the last writes to a session's ledger --------------------------------------------------------------------
#
# Each process reads from them the turns and keys that other processes have written. Each entry begins with the
# revisions before and after the write, so a reader notices a missing entry.

MOST_WRITES = 128
"""The number of writes that are kept: looking up a history again costs less than reading more of them."""

WRITES_KEPT = 600
"""Seconds for which they are kept after the last one."""

_LARGEST_WRITE = 256
"""A write with more turns and keys leaves no entry."""

_REVISION = 16
"""Digits of a revision."""

_AFTER = slice(_REVISION, 2 * _REVISION)


def pack_write(turn_ids: Collection[str], keys: Collection[bytes]) -> bytes:
    """The rest of an entry: the turns and keys of a write. b"": too many, so the write leaves no entry."""
    if len(turn_ids) + len(keys) > _LARGEST_WRITE:
        return b""
    return prefix(b"%d" % len(turn_ids), *(turn_id.encode() for turn_id in turn_ids), *keys)


def follow_writes(changes: Changes, entries: Sequence[bytes], revision: int) -> None:
    """Note the writes after the known ones, up to this revision, in order."""
    first, last = (
        bisect.bisect(entries, b"%016d" % at, key=lambda entry: entry[_AFTER]) for at in (changes.revision, revision)
    )
    with contextlib.suppress(ValueError):  # a damaged entry
        for entry in entries[first:last]:
            count, *touched = parts_of(entry[2 * _REVISION :])
            turn_ids = [turn_id.decode() for turn_id in touched[: int(count)]]
            changes.note(int(entry[:_REVISION]), int(entry[_AFTER]), turn_ids, touched[int(count) :])


# --- keys -----------------------------------------------------------------------------------------------------

SESSION: Final = (
    "session",  # hash: the session's record, its version, and the version it had when it was deleted
    "ledger",  # hash: the revision, and the last dropped event
    "writes",  # zset: the last writes to the ledger, by the resulting revision
    "turn",  # hash by turn id: keys, ids of calls, record
    "turns",  # zset: turn ids by place
    "dated",  # zset: turn ids by age, if it differs from their places
    "key",  # index: key, whether the turn was delivered → turn id
    "asked",  # index of earlier versions
    "request",  # index: request key → turn id of an undelivered turn
    "plain",  # hash: key of a turn without calls → time of the note, chain
    "noted",  # zset: keys of turns without calls by age
    "call",  # hash by call id: record
    "parts",  # hash by call id: the parts of its result, as JSON
    "calls",  # zset: call ids by place
    "open",  # zset: ids of calls that are not final, by place
    "ready",  # index: name of a tool → call id, released to workers
    "lease",  # zset: ids of calls that workers run, by the end of the lease
    "waiting",  # hash: call id → id of the proxy that waits for the call
    "cached",  # hash by name of a cachedContent: record
    "cached_at",  # zset: names of cachedContents by age
    "response",  # hash by response id: record without tools and document
    "node",  # hash by response id: previous, thread, number of references, whether it has a document
    "document",  # hash by response id: tools and document
    "head",  # hash: name of a conversation → response id
    "lock",  # hash: name of a conversation → holder of its lock, proxy
    "given",  # hash by call id: response id, part
    "thread",  # zset: threads by last use
    "member",  # index: thread → response id
    "responses",  # zset: response ids by place
    "unsent",  # hash by response id: key, proxy, time it broke off, answer
    "unsent_at",  # zset: response ids by age of the undelivered answer
    "unsent_key",  # index: key of a request → response id
)

STAMPED: Final = frozenset({"turn", "call", "cached", "response", "node", "document", "given", "unsent"})
"""Hashes with values that begin with a stamp. Other values are compared as a whole."""


class Key(bytes):
    """A key of the server. Among the arguments of a transaction's script it stands for its position."""


class Keys:
    def __init__(self, prefix: str, *, one_slot: bool = False) -> None:
        self.prefix = prefix
        self._begin = f"{{{prefix}}}:session:%s:" if one_slot else f"{prefix}:{{%s}}:"
        self.number = self.shared("number")
        """The counter for the numbers of events, versions, revisions and places."""
        self.notices = self.shared("notices")
        """Stream: sessions with new events, and the calls and changes for waiters."""
        self.meta = self.shared("meta")
        """Hash: the secret, the epoch, and the last dropped notice."""
        self.names = self.shared("sessions")
        """Zset: names of the sessions that have a record, in alphabetical order."""
        self.due = self.shared("due")
        """Zset: sessions with records, by the time when the first of them expires."""
        self.active = self.shared("active")
        """Zset: sessions with calls that are run or waited for, by the time of the last such write."""
        self.proxies = self.shared("proxies")
        """Hash: proxy → end of its lease, and when it was last alive."""
        self.ping = self.shared("ping")

    def shared(self, name: str) -> Key:
        return Key(f"{{{self.prefix}}}:{name}".encode())

    def of_call(self, call_id: str) -> Key:
        """String: the session of this call."""
        return self.shared(f"call:{call_id}")

    def of(self, session: str, name: str) -> Key:
        """A key in `SESSION`, or `events`: the stream of the session's events."""
        return Key(f"{self._begin % session}{name}".encode())
