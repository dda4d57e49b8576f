"""Reads the Contents of a history: their positions, roles and parts."""

from collections.abc import Sequence

import msgspec

from addon.core.framing.documents import Malformed, as_list

Part = dict[str, msgspec.Raw]
Span = tuple[int, int]

UNREAD = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""The decoders' errors."""


class Text(msgspec.Struct, gc=False, forbid_unknown_fields=True):
    text: msgspec.Raw


class TextContent(msgspec.Struct, gc=False):
    """The usual Content, with nothing but texts as parts, still as JSON."""

    parts: list[Text]
    role: str | None = None


class Content(msgspec.Struct, gc=False):
    """Any Content. Proto JSON accepts one part instead of a list."""

    role: str | None = None
    parts: list[Part] | Part | None = None

    def each(self) -> list[Part]:
        return as_list(self.parts)


_read_texts = msgspec.json.Decoder(TextContent).decode
_read_content = msgspec.json.Decoder(Content).decode


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
