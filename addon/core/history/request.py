"""A request body as spans: reads its members and its history, and replaces some of them.

`parse` reads a body. Given the `Prefix` of an earlier body that this one begins with, it reads only the new bytes.
`assemble` writes the body: members that are not replaced keep their bytes.
"""

import functools
import operator
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

import xxhash

from addon.core.framing.documents import Malformed, Member, elements, members
from addon.core.history.contents import Content, Span, TextContent, contents_at, without_inline_data
from addon.core.history.turns import History

_LAST = 64

Piece = tuple[int, int] | bytes
"""A piece of a rewritten `contents` array: a span of unchanged Contents in the body, or the JSON of new Contents."""


class Prefix(NamedTuple):
    """The beginning of a body, up to the end of a Content, and the results for it.

    It holds only the last bytes (`tail`), and the hash of all (`hasher` can continue it). `start`: of the request
    object. `outer_names`: see `Request`. `before`: the object's members up to `contents`, whose `end` is unknown.
    """

    hasher: xxhash.xxh3_128
    digest: bytes
    tail: bytes
    end: int
    start: int
    outer_names: tuple[frozenset[str], ...]
    before: tuple[Member, ...]
    history: History

    def is_start_of(self, body: bytes) -> bool:
        """Whether the body begins with these bytes and is longer."""
        if len(body) <= self.end or not body.startswith(self.tail, self.end - len(self.tail)):
            return False
        return xxhash.xxh3_128_digest(memoryview(body)[: self.end]) == self.digest

    @property
    def size(self) -> int:
        """The approximate memory use in bytes. Most of it is the turns."""
        return 2048 + 400 * len(self.history.turns) + self.history.text_size


class Request(NamedTuple):
    """`start` and `end`: the position of the request object in the body. `outer_names`: for each enclosing object, the
    names of the members before it. `known_prefix`: the prefix that the body was read with, if any."""

    body: bytes
    start: int
    end: int
    outer_names: tuple[frozenset[str], ...]
    members: tuple[Member, ...]
    history: History
    known_prefix: Prefix | None = None

    def value(self, name: str) -> bytes | None:
        """The raw value of a member by its camelCase name; None if absent or null."""
        for member in self.members:
            if member.name == name:
                value = self.body[member.start : member.end]
                return None if value == b"null" else value
        return None

    def prefix(self) -> Prefix | None:
        """The beginning that later bodies of the conversation probably share: everything up to the last model turn,
        because the user's next message may change. None if `contents` is not a list."""
        at = next((i for i, m in enumerate(self.members) if m.name == "contents"), None)
        turns = self.history.turns
        if at is None or not turns or self.body[self.members[at].start] != ord("["):
            return None
        if turns[-1].side == "user" and len(turns) > 1:
            turns = turns[:-1]
        end = turns[-1].end
        known = self.known_prefix
        if known is not None and end <= known.end:
            return known
        hasher = xxhash.xxh3_128() if known is None else known.hasher.copy()
        hasher.update(memoryview(self.body)[known.end if known else 0 : end])
        new = turns[len(known.history.turns) - 1 if known else 0 :]  # the last one may have continued
        holds = known.history.holds if known else 0
        if self.history.holds != holds:
            holds = functools.reduce(operator.or_, [turn.holds for turn in new], holds)
        history = History(turns, end, holds)
        history.inherit(self.history, len(turns))
        for turn in new:
            if turn.side == "model" or not turn.chain:
                turn.forget_text()
        tail = self.body[max(0, end - _LAST) : end]
        return Prefix(hasher, hasher.digest(), tail, end, self.start, self.outer_names, self.members[: at + 1], history)


def parse(body: bytes, path: Sequence[str] = (), known: Prefix | None = None) -> Request:
    """Read a body whose request object is under the keys of `path` (in camelCase). Raises Malformed.

    After a known prefix, only the new bytes are read. They continue the `contents` array after an element, so an
    artificial opening before them makes them a separate document."""
    if known is None:
        short = without_inline_data(body)
    else:
        opening = b"".join(b'{"%b":' % name.encode() for name in path) + b'{"contents":[{"parts":[]}'
        short = without_inline_data(opening + body[known.end :], known.end - len(opening))
    data, place = short.data, short.place
    start, end, outer_names = _descend(data, path, known.outer_names if known else ())
    found = members(data, start, end)
    array = next((member for member in found if member.name == "contents"), None)
    spans, contents = _contents(data, array) if array else ([], [])
    spans = [(place(begin), place(stop)) for begin, stop in spans]
    found = [Member(name, *map(place, places)) for name, *places in found]
    if known is None:
        return Request(body, place(start), place(end), outer_names, tuple(found), History.of(spans, contents))
    found = [*known.before[:-1], known.before[-1]._replace(end=found[0].end), *found[1:]]
    if len({m.name for m in found}) != len(found):
        raise Malformed("an object names a key twice")
    history = History.of(spans[1:], contents[1:], known.history)
    return Request(body, known.start, place(end), known.outer_names, tuple(found), history, known)


def _descend(
    body: bytes, path: Sequence[str], known: Sequence[Collection[str]] = ()
) -> tuple[int, int, tuple[frozenset[str], ...]]:
    """The position of the object under `path`, and the names before it on each level. `known`: the names on each level
    in the bytes that are not read again."""
    start, end = 0, len(body)
    outer_names: list[frozenset[str]] = []
    for level, name in enumerate(path):
        found = members(body, start, end)
        at = next((i for i, m in enumerate(found) if m.name == name), None)
        if at is None:
            raise Malformed(f"the body has no member {name!r}")
        if known and any(m.name in known[level] for m in found):
            raise Malformed("an object names a key twice")
        outer_names.append(frozenset(m.name for m in found[:at]))
        start, end = found[at].start, found[at].end
    return start, end, tuple(outer_names)


def _contents(data: bytes, array: Member) -> tuple[list[Span], list[Content | TextContent]]:
    """The spans of the Contents, and the Contents. Proto JSON accepts one Content instead of a list."""
    spans: list[Span] = []
    if data[array.start] == ord("{"):
        spans = [(array.start, array.end)]
    elif data[array.start] == ord("["):
        spans = elements(data, array.start, array.end)
    return spans, contents_at(data, spans)


def assemble(request: Request, replaced: Mapping[str, bytes | None], contents: Sequence[Piece] | None = None) -> bytes:
    """The body with members replaced (JSON by camelCase name) or removed (None), and with `contents` made of these
    pieces. The same object if nothing changes."""
    present = {m.name for m in request.members}
    if contents is None and not any(name in present or value is not None for name, value in replaced.items()):
        return request.body
    view = memoryview(request.body)
    out: list[bytes | memoryview] = [view[: request.start], b"{"]
    first = True
    for member in request.members:
        new: list[bytes | memoryview]
        if member.name == "contents" and contents is not None:
            new = [view[member.key : member.start], *_array(view, contents)]
        elif member.name in replaced:
            value = replaced[member.name]
            if value is None:
                continue
            new = [view[member.key : member.start], value]
        else:
            new = [view[member.key : member.end]]
        if not first:
            out.append(b",")
        first = False
        out += new
    for name, value in replaced.items():
        if value is not None and name not in present:
            out += [b"" if first else b",", b'"', name.encode(), b'":', value]
            first = False
    out += [b"}", view[request.end :]]
    return b"".join(out)


def _array(view: memoryview, pieces: Sequence[Piece]) -> list[bytes | memoryview]:
    out: list[bytes | memoryview] = [b"["]
    for i, piece in enumerate(pieces):
        if i:
            out.append(b",")
        out.append(piece if isinstance(piece, bytes) else view[piece[0] : piece[1]])
    out.append(b"]")
    return out
