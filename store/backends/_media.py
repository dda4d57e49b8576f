"""The parts of results: images, sounds, files. Stored once, beside the records of their calls."""

import base64
import binascii
import hashlib
from collections.abc import Sequence
from typing import Any

import pydantic_core

from store.models import Call, Document, Media


def media_of(part: Document) -> Media:
    """Describes a part of a result. Raises ValueError unless it has a type and base64 in its `inlineData`."""
    blob: Any = part.get("inlineData")
    kind, data = (blob.get("mimeType"), blob.get("data")) if isinstance(blob, dict) else (None, None)
    if not isinstance(kind, str) or not isinstance(data, str):
        raise ValueError("a part of a result must have inlineData with mimeType and data")
    try:
        content = base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError):
        raise ValueError("the data of a part of a result must be base64") from None
    digest = hashlib.blake2b(content, digest_size=16, key=hashlib.blake2b(kind.encode()).digest())
    return Media(mime_type=kind, size=len(content), digest=digest.hexdigest())


def parts_text(call: Call) -> str | None:
    """The parts of a call as JSON; None: no parts."""
    return pydantic_core.to_json(call.parts).decode() if call.parts else None


def with_parts(call: Call, text: str | bytes | None) -> Call:
    """The call with its stored parts, or unchanged if they are missing or damaged."""
    if not call.media or text is None:
        return call
    try:
        parts: list[Document] = pydantic_core.from_json(text)
    except ValueError:
        return call
    return call.model_copy(update={"parts": parts})


def size_of(calls: Sequence[Call]) -> int:
    """The approximate memory use of the parts of calls, in bytes."""
    return sum(2 * media.size for call in calls for media in call.media)
