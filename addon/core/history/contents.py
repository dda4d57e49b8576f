"""Reads the Contents of a history: their positions, roles and parts, in few passes over the bytes."""

import re
from collections.abc import Sequence

import msgspec

from addon.core.framing.documents import Malformed, Member, as_list, elements, members

Part = dict[str, msgspec.Raw]
Span = tuple[int, int]

UNREAD = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""What the decoders raise."""


class Text(msgspec.Struct, gc=False, forbid_unknown_fields=True):
    text: msgspec.Raw


class TextContent(msgspec.Struct, gc=False):
    """The usual Content, whose parts are texts, still as JSON, and nothing else."""

    parts: list[Text]
    role: str | None = None


class Content(msgspec.Struct, gc=False):
    """Any Content. Proto JSON accepts one part for a list."""

    role: str | None = None
    parts: list[Part] | Part | None = None

    def each(self) -> list[Part]:
        """The parts as a list."""
        return as_list(self.parts)


class _Object(msgspec.Struct, gc=False):
    contents: list[msgspec.Raw]


_read_object = msgspec.json.Decoder(_Object).decode
_read_texts = msgspec.json.Decoder(TextContent).decode
_read_content = msgspec.json.Decoder(Content).decode

_OPENING = re.compile(rb'[ \t\r\n]*{[ \t\r\n]*("contents"[ \t\r\n]*:[ \t\r\n]*)\[')
_BETWEEN = re.compile(rb"[ \t\r\n]*,?[ \t\r\n]*")
_FIRST = b'{"contents":[]'


def content_at(data: bytes | memoryview) -> Content:
    """One Content of any kind. Raises Malformed."""
    try:
        return _read_content(data)
    except UNREAD as error:
        raise Malformed(str(error)) from None


def contents_at(data: bytes, spans: Sequence[Span]) -> list[Content | TextContent]:
    """The Contents at these spans. Raises Malformed."""
    view = memoryview(data)
    found: list[Content | TextContent] = []
    for start, end in spans:
        piece = view[start:end]
        try:
            found.append(_read_texts(piece))
        except UNREAD:
            found.append(content_at(piece))
    return found


def contents_in(data: bytes, start: int, end: int) -> tuple[list[Span], list[Content | TextContent]]:
    """The Contents of the array in `data[start:end]`, with their spans. Raises Malformed."""
    spans = elements(data, start, end)
    return spans, contents_at(data, spans)


def object_in(
    data: bytes, start: int, end: int
) -> tuple[list[Member], list[Span], Sequence[Content | TextContent]] | None:
    """The members of the object in `data[start:end]` and its Contents, with their spans. None if it does not begin with
    an array of Contents: read it in another way. Raises Malformed."""
    opening = _OPENING.match(data, start, end)
    if opening is None:
        return None
    read = _any_in(data, start, end, opening.end())
    if read is None:
        return None
    spans, contents = read
    close = _BETWEEN.match(data, spans[-1][1] if spans else opening.end()).end()  # type: ignore[union-attr]
    if not data.startswith(b"]", close):
        return None
    others = members(_FIRST + data[close + 1 : end])[1:]
    shift = close + 1 - len(_FIRST)
    array = Member("contents", opening.start(1), opening.end(1), close + 1)
    found = [array, *(Member(m.name, m.key + shift, m.start + shift, m.end + shift) for m in others)]
    return found, spans, contents


def _any_in(data: bytes, start: int, end: int, at: int) -> tuple[list[Span], Sequence[Content | TextContent]] | None:
    """The Contents of the array that begins at `at`. None if it is not the one that a decoder reads. Raises
    Malformed."""
    try:
        raw = _read_object(memoryview(data)[start:end]).contents
    except UNREAD:
        return None
    spans = _spans(data, at, raw)
    return None if spans is None else (spans, contents_at(data, spans))


def _spans(data: bytes, at: int, values: Sequence[msgspec.Raw]) -> list[Span] | None:
    """The spans of these elements of an array that begins at `at`. None if they are those of another array: of two
    members with one name a decoder reads the last."""
    begin, spans = at, list[Span]()
    for value in values:
        stop = at + len(value)
        spans.append((at, stop))
        at = stop + 1
    if data.startswith(b",".join(values), begin):  # compact JSON
        return spans
    at, spans = begin, []
    view = memoryview(data)
    for value in values:
        if data.startswith(b",{", at):
            at += 1
        else:
            at = _BETWEEN.match(data, at).end()  # type: ignore[union-attr]
        stop = at + len(value)
        if msgspec.Raw(view[at:stop]) != value:
            return None
        spans.append((at, stop))
        at = stop
    return spans
