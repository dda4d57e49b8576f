"""The rules of ``functionResponse.parts``. Pure. The service's wording is not public."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from addon.fake_gemini.errors import Refused
from addon.fake_gemini.fields import decode_bytes
from addon.fake_gemini.routes import Model

_TYPES = {
    "image": "png jpeg webp heic heif",
    "application": "pdf",
    "text": "plain",
    "audio": "wav mp3 mpeg aiff aac ogg flac opus webm",
    "video": "mp4 mpeg mov quicktime avi x-flv mpg webm wmv 3gpp",
}
KNOWN = frozenset(f"{kind}/{name}" for kind, names in _TYPES.items() for name in names.split())


def check_parts(response: dict[str, Any], where: str, model: Model, place: frozenset[str]) -> None:
    """Check the parts of a functionResponse, and the references to them. Raises ``Refused``."""
    parts = response.get("parts") or []
    if parts and not model.is_gemini_3:
        raise Refused("Multimodal function responses are not supported by this model.")
    names: list[str] = []
    for n, part in enumerate(parts):
        at = f"GenerateContentRequest.{where}.function_response.parts[{n}]"
        blob, file = part.get("inlineData"), part.get("fileData")
        if (blob is None) == (file is None):
            raise Refused(f"* {at}.data: required oneof field 'data' must have one initialized field\n")
        media = blob or file or {}
        if (kind := media.get("mimeType")) not in KNOWN:
            raise Refused(f"Unsupported MIME type: {kind}")
        if blob is not None and not decode_bytes(blob.get("data") or ""):
            raise Refused(f"* {at}.inline_data.data: must be base64 of at least one byte\n")
        if (name := media.get("displayName")) is not None:
            names.append(name)
    if len(set(names)) < len(names):
        raise Refused("Display names of the parts of a function response must be unique.")
    for name in _references(response.get("response")):
        if "vertex" not in place or name not in names:
            raise Refused(f"Function response references the part `{name}`, which it does not have.")


def _references(value: Any) -> Iterator[str]:
    """The display names that ``{"$ref": name}`` refers to."""
    if isinstance(value, list):
        for item in value:
            yield from _references(item)
    elif isinstance(value, dict):
        if value.keys() == {"$ref"} and isinstance(value["$ref"], str):
            yield value["$ref"]
        for item in value.values():
            yield from _references(item)
