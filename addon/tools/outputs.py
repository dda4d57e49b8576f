"""Converts any result of a tool to JSON, and to the images, sounds and files in it, for the store and the model."""

import base64
import json
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import msgspec

from addon.core.framing.documents import Document, replace_invalid_text
from addon.core.history.outcomes import MEDIA_TYPE, from_base64, reference
from addon.tools.base import ToolError

_MAGIC = (
    (b"\x89PNG\r\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF8", "image/gif"),
    (b"%PDF-", "application/pdf"),
)

MAX_RESULT = 1024 * 1024
"""Bytes of JSON. A model cannot use more, and each later request of the chat would repeat the result."""

MAX_MEDIA = 10 * 1024 * 1024
"""The default of `graft_max_media`."""


class Media:
    """Bytes with a type, such as `Media(data, "audio/wav")`. Raises TypeError, ValueError."""

    __slots__ = ("data", "mime_type")

    def __init__(self, data: bytes | bytearray | memoryview, mime_type: str) -> None:
        if not isinstance(data, (bytes, bytearray, memoryview)):
            raise TypeError(f"data must be bytes, not {type(data).__name__}")
        if not isinstance(mime_type, str) or not MEDIA_TYPE.fullmatch(mime_type.lower()):
            raise ValueError(f"{mime_type!r} is not a media type, such as image/png")
        self.data = bytes(data)
        self.mime_type = mime_type.lower()

    @property
    def part(self) -> dict[str, Any]:
        """As a part of a functionResponse."""
        return {"inlineData": {"mimeType": self.mime_type, "data": base64.b64encode(self.data).decode()}}

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.mime_type}, {len(self.data)} bytes)"


class Image(Media):
    """An image. Without a type, its bytes determine it. Raises ValueError if they do not."""

    __slots__ = ()

    def __init__(self, data: bytes | bytearray | memoryview, mime_type: str | None = None) -> None:
        kind = mime_type or type_by_content(bytes(data[:16]))
        if kind is None:
            raise ValueError("the bytes are no PNG, JPEG, GIF, WebP or PDF: give the type, as in Image(data, type)")
        super().__init__(data, kind)


class WithMedia(NamedTuple):
    """A result with media that have no place in it."""

    value: Any
    media: Sequence[Media]


def type_by_content(data: bytes) -> str | None:
    """The media type according to the first bytes."""
    if data[:4] == b"RIFF" and data[8:12] in (b"WEBP", b"WAVE"):
        return "image/webp" if data[8:12] == b"WEBP" else "audio/wav"
    return next((kind for magic, kind in _MAGIC if data.startswith(magic)), None)


def media_of(data: str, mime_type: str | None) -> Media | None:
    """Media from base64; None: not media. Without a type, the bytes determine it."""
    if not (content := from_base64(data)):
        return None
    try:
        return Media(content, mime_type or type_by_content(content[:16]) or "application/octet-stream")
    except ValueError:
        return None


def media_of_part(part: Document) -> Media:
    """The media of a part in its usual form (`read_parts`)."""
    blob = part["inlineData"]
    return Media(base64.b64decode(blob["data"]), blob["mimeType"])


def media_in(value: Any) -> Media | None:
    """Media from an object: `Media`, or the MCP SDK's Image or Audio. None: not media."""
    if isinstance(value, Media):
        return value
    for method in ("to_image_content", "to_audio_content"):
        if callable(convert := getattr(value, method, None)):
            content = convert()
            return Media(base64.b64decode(content.data), content.mime_type)
    return None


def collector(media: list[Media]) -> Callable[[Any], str]:
    """A function for the encoder of a result: it moves each of the media to `media`, and returns a text that names the
    part instead. Raises TypeError for any other object."""

    def replace(value: Any) -> str:
        one = media_in(value)
        if one is None:
            raise TypeError(f"Unable to serialize unknown type: {type(value)}")
        media.append(one)
        return reference(len(media), one.mime_type)

    return replace


class ToolOutput(NamedTuple):
    """A result as JSON, and the parts for the functionResponse."""

    data: bytes
    parts: tuple[Document, ...] = ()

    @property
    def size(self) -> int:
        """The approximate memory use in bytes."""
        return len(self.data) + sum(len(part["inlineData"]["data"]) for part in self.parts)


def output_of(result: Any, max_media: int = MAX_MEDIA) -> ToolOutput:
    """The output of a tool. In the JSON, a text that names the part replaces each of the media. Raises ToolError: the
    result is not JSON, is longer than MAX_RESULT, or has media of more than `max_media` bytes."""
    media: list[Media] = []
    if isinstance(result, WithMedia):
        result, attached = result
    else:
        attached = ()
    if hasattr(result, "model_dump"):
        result = result.model_dump(mode="json")
    if isinstance(result, (bytes, bytearray, memoryview)):
        raise ToolError("the tool returned bytes, which are not JSON: return text, or Media(data, type) from toolgraft")
    try:
        try:
            data = msgspec.json.encode(result, enc_hook=collector(media))
        except UnicodeEncodeError:  # half a surrogate pair, for example from a file name
            media.clear()
            builtins = msgspec.to_builtins(result, enc_hook=collector(media))
            data = replace_invalid_text(json.dumps(builtins).encode())
    except (TypeError, ValueError, RecursionError, OverflowError, msgspec.MsgspecError) as error:
        raise ToolError(f"the tool returned what is not JSON: {error}") from None
    if len(data) > MAX_RESULT:
        raise ToolError(f"the tool returned {len(data)} bytes, more than the {MAX_RESULT} that a result may have")
    media += attached
    if (size := sum(len(one.data) for one in media)) > max_media:
        raise ToolError(
            f"the tool returned images or files of {size} bytes, more than the {max_media} that graft_max_media allows"
        )
    return ToolOutput(data, tuple(one.part for one in media))
