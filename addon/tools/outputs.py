"""Converts any result of a tool to JSON, and the images and files in it, for the store and the model."""

import json
from typing import Any, NamedTuple

import msgspec

from addon.core.framing.documents import Document, replace_invalid_text
from addon.tools.base import ToolError
from addon.tools.media import Media, WithMedia, collector

MAX_RESULT = 1024 * 1024
"""Bytes of JSON. A model cannot use more, and each later request of the chat would repeat the result."""

MAX_MEDIA = 10 * 1024 * 1024
"""The default of `graft_max_media`."""


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
